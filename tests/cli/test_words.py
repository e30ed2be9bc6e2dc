"""What people type: versions, models, numbers of GPUs, and commands without their `--`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def answer(*arguments: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return loaded


def test_version() -> None:
    assert run("-V").stdout == run("--version").stdout == run("version").stdout != ""


def test_models_lists_those_with_the_word() -> None:
    every = [row["id"] for row in answer("models")["models"]]
    qwen = [row["id"] for row in answer("models", "QWEN")["models"]]
    assert qwen == [name for name in every if "qwen" in name.lower()] and 0 < len(qwen) < len(every)
    assert len(every) == len(list((ROOT / "models" / "architectures").glob("*.json")))
    totals = {row["id"]: row["parameters"] for row in answer("models", "qwen3-8b")["models"]}
    assert totals["Qwen/Qwen3-8B"] == 8_190_735_360
    assert run("models", "no-such-model").returncode == 2


def test_a_word_of_several_models_suggests_one_that_has_it() -> None:
    for word in ("qwen", "llama", "gemma"):
        told = run("model", word).stderr
        nearest = told.split("did you mean '")[1].split("'")[0]
        assert word in nearest.lower(), told
        assert f"oomplan models {word}" in told


@pytest.mark.parametrize("gpus", ["8xh200", "8 x h200", "8 X H200-141GB", "8xH200-141GB"])
def test_a_number_and_a_kind_are_read_alike(gpus: str) -> None:
    meant = answer("estimate", "examples/grpo.yaml", "gpus=8 x H200-141GB")["gpus"]
    assert answer("estimate", "examples/grpo.yaml", f"gpus={gpus}")["gpus"] == meant
    searched = answer("search", "--model", "qwen2.5-1.5b", "--gpus", gpus, "--keep", "1")["best"]
    assert searched == answer("search", "--model", "qwen2.5-1.5b", "--gpus", "8", "--gpu", "h200", "--keep", "1")["best"]


def test_a_number_alone_keeps_the_kind() -> None:
    assert answer("read", "examples/grpo.yaml", "gpus=8")["settings"]["gpus"] == "8 x H100-80GB"


@pytest.mark.parametrize("gpus", ["x h100", "8x", "8 x", "eight", "0", "8h100", ""])
def test_what_is_no_number_of_gpus(gpus: str) -> None:
    assert run("estimate", "examples/grpo.yaml", f"gpus={gpus}").returncode == 2
    assert run("search", "--model", "qwen2.5-1.5b", "--gpus", gpus).returncode == 2


def test_two_kinds_of_gpu_contradict_each_other() -> None:
    done = run("search", "--model", "qwen2.5-1.5b", "--gpus", "8xh100", "--gpu", "h200")
    assert done.returncode == 2 and "--gpu" in done.stderr


@pytest.mark.parametrize(("engine", "key"), [("sglang", "mem_fraction_static"), ("vllm", "gpu_memory_utilization")])
def test_memory_fraction_hints_at_the_engines_word(engine: str, key: str) -> None:
    for word in ("memory_fraction", "mem_fraction"):
        told = run("estimate", "examples/grpo.yaml", f"rollout.engine={engine}", f"rollout.{word}=0.5").stderr
        assert f"did you mean '{key}'" in told, told


@pytest.mark.parametrize(
    "command", ["vllm serve Qwen/Qwen3-8B -tp 2", "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"]
)
def test_a_servers_command_without_its_bar(command: str) -> None:
    done = run("serve", "--gpu", "h100", *command.split())
    assert done.returncode == 2
    assert f"expected oomplan serve --gpu h100 -- {command}" in done.stderr
    assert run("serve", "--gpu", "h100", "--", *command.split()).returncode in (0, 1)


@pytest.mark.parametrize("share", ["1.5", "-1", "ninety", "90%", ""])
def test_a_probability_is_a_number_from_0_to_1(share: str) -> None:
    done = run("search", "examples/grpo.yaml", "--min-probability", share)
    assert done.returncode == 2 and "a number from 0 to 1" in done.stderr


def test_search_says_what_it_left_out() -> None:
    found = answer("search", "examples/grpo.yaml", "--min-probability", "0.97", "--keep", "3")
    assert found["min_probability"] == 0.97
    assert all(row["estimate"]["fit_probability"] is None or row["estimate"]["fit_probability"] >= 0.97 for row in found["best"])
    if found["left_out"]["fitting"]:
        assert "left out: " in run("search", "examples/grpo.yaml", "--min-probability", "0.97", "--keep", "3").stdout


HEAVY = """oomplan: 1
model: MiniMaxAI/MiniMax-M2
gpus: 64 x H200-141GB
framework: verl 0.9.0
prompt_tokens: 4k
response_tokens: 28k
sequences_per_step: 1024
rollout: {engine: vllm 0.11.0, layout: d8t8, gpu_memory_utilization: 0.6}
actor: {beside: rollout, layout: d64, tokens_per_micro_batch: 32k, offload: [parameters, optimizer]}
ref: {beside: actor}
"""


def test_an_estimate_says_where_changes_are_judged_by_levels(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(HEAVY)
    said = "some changes are judged by what lives"
    heavy, usual = answer("estimate", str(tmp_path / "job.yaml")), answer("estimate", "examples/grpo.yaml", "gpus=8 x A10G-24GB")
    assert heavy["remedies"] and any(said in note["text"] for note in heavy["notes"])
    assert usual["remedies"] and not any(said in note["text"] for note in usual["notes"])


COMMANDS = [
    ("search", "examples/grpo.yaml"),
    ("search", "tests/data/areal/patch_v2.0.yaml", "--framework-version", "2.0.0", "--gpus", "32", "--keep", "3"),
    ("advise", "examples/areal/grpo_7b.yaml", "--framework-version", "1.0.4", "--gpu", "A10G-24GB"),
    ("estimate", "examples/grpo.yaml"),
]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2]).replace("/", "_"))
def test_tables_obey_the_terminal(command: tuple[str, ...], width: int) -> None:
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    with subprocess.Popen(
        [PROGRAM, *command, "--color", "never"], cwd=ROOT, stdout=follower, stderr=subprocess.DEVNULL
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 65536):
                shown += chunk
        except OSError:  # the other end is closed
            pass
        assert process.wait(60) in (0, 1)
    os.close(leader)
    sections = [section.splitlines() for section in shown.decode().replace("\r", "").split("\n\n")]
    tables = [rows for rows in sections if any("what to change" in row for row in rows)]
    assert tables or command[0] == "estimate"
    if not tables:
        rows = next(section for section in sections if any("of usable" in row for row in section))
        assert any(" worst" in row for row in rows)
        assert any("####" in row or "████" in row for row in rows) == (width >= 80)
        tables = [rows]
    for rows in tables:
        longest = max(len(word) for row in rows for word in row.split())
        assert all(len(row) <= max(width, 6 + longest) for row in rows), [row for row in rows if len(row) > width]
