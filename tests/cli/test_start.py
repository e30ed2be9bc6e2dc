"""A job that one has in mind, in words that one can launch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


ASKED = {
    "grpo": ["--model", "qwen2.5-7b", "--gpus", "8"],
    "grpo with a reference and adapters": ["--model", "Qwen/Qwen3-8B", "--gpus", "32", "--reference", "--lora", "16"],
    "ppo": ["--model", "Qwen/Qwen3-1.7B", "--gpus", "16", "--algorithm", "ppo", "--response-tokens", "4096"],
    "dapo": ["--model", "Qwen/Qwen3-0.6B", "--gpus", "8", "--algorithm", "dapo", "--samples", "16", "--batch", "64"],
    "sft": ["--model", "Qwen/Qwen3-14B", "--gpus", "8", "--algorithm", "sft", "--prompt-tokens", "8192"],
    "dpo": ["--model", "Qwen/Qwen3-8B", "--gpus", "16", "--algorithm", "dpo"],
    "two machines of four": ["--model", "qwen2.5-7b", "--gpus", "8", "--nodes", "2", "--gpu", "H200-141GB"],
}


@pytest.mark.parametrize("release", ["1.0.4", "2.0.0"])
@pytest.mark.parametrize("name", ASKED)
def test_what_is_written_is_the_row(name: str, release: str, tmp_path: Path) -> None:
    asked = ["search", *ASKED[name], "--framework-version", release, "--keep", "2"]
    found = json.loads(run(*asked, "--json").stdout)
    gpu = ASKED[name][ASKED[name].index("--gpu") + 1] if "--gpu" in ASKED[name] else "H100-80GB"
    assert found["best"]
    for number, row in enumerate(found["best"], 1):
        written = run(*asked, "--launch", str(number))
        assert written.returncode == 0, written.stderr
        path = tmp_path / "job.yaml"
        path.write_text(written.stdout)
        again = json.loads(run("estimate", str(path), "--framework-version", release, "--gpu", gpu, "--json").stdout)
        for key in ("fits", "verdict", "fit_probability", "hosts"):
            assert again[key] == row["estimate"][key], key
        assert f"--framework-version {release} --gpu {gpu}" in written.stdout  # how to ask again


def test_the_first_line_says_what_is_assumed() -> None:
    asked = ["search", "--model", "qwen2.5-7b", "--gpus", "8", "--keep", "1"]
    told = run(*asked, "--response-tokens", "16k", "--batch", "64").stdout.splitlines()[0]
    assert told == "grpo of Qwen/Qwen2.5-7B by areal 2.0.0; assumed: 1,024 tokens a prompt, 8 responses to a prompt"
    told = run(*asked, "--samples", "4").stdout.splitlines()[0]
    assert told == "grpo of Qwen/Qwen2.5-7B by areal 2.0.0; assumed: 1,024 tokens a prompt, 8,192 a response, 128 prompts a step"


def test_the_first_row_is_the_job_as_it_stands() -> None:
    asked = ["examples/areal/grpo_7b.yaml", "--framework-version", "1.0.4"]
    lines = run("search", *asked, "--keep", "1").stdout.splitlines()
    row = next(i for i, line in enumerate(lines) if "what to change" in line) + 1
    assert lines[row].endswith("nothing: the job as it is")
    found = json.loads(run("search", *asked, "--keep", "1", "--json").stdout)
    assert found["as_it_stands"]["relative_step_time"] >= 1
    assert found["as_it_stands"]["estimate"]["verdict"] == json.loads(run("estimate", *asked, "--json").stdout)["verdict"]


WRONG = {
    "slime": (
        ["--framework", "slime"],
        "oomplan: command line --framework: found 'slime', expected verl, areal or oomplan: not supported yet",
    ),
    "a typing error": (
        ["--framework", "araal"],
        "oomplan: command line --framework: found 'araal', expected verl, areal or oomplan (did you mean 'areal'?)",
    ),
    "an algorithm": (
        ["--algorithm", "grop"],
        "oomplan: command line --algorithm: found 'grop', expected grpo, ppo, dapo, sft or dpo (did you mean 'grpo'?)",
    ),
    "machines": (["--nodes", "3"], "oomplan: command line --nodes: found 8 GPUs on 3 machines, expected as many GPUs on each"),
    "an old release": (
        ["--framework-version", "0.5.3"],
        "oomplan: command line --framework-version: found '0.5.3', expected 1.0.3 or later: not supported yet: files of AReaL before 1.0.3 are read, and not written",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_said_is_told(name: str) -> None:
    options, said = WRONG[name]
    done = run("search", "--model", "qwen2.5-7b", "--gpus", "8", *options)
    assert (done.returncode, done.stderr.strip()) == (2, said)


def test_options_of_a_described_job_are_refused_beside_a_file() -> None:
    done = run("search", "examples/grpo.yaml", "--algorithm", "ppo")
    assert (done.returncode, done.stderr.strip()) == (2, "oomplan: --algorithm: found together with a job, expected one of them")
