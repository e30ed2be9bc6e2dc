"""What the guides of slime and Relax tell users who run out of memory: every point as flags of one job, judged, or why not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve())
SLIME, RELAX = ROOT / "examples/slime/grpo_4b.sh", ROOT / "examples/relax/grpo_4b.sh"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def points(script: Path, *options: str) -> list[dict[str, Any]]:
    done = run("advise", str(script), "--guide", "--json", *options)
    assert done.returncode in (0, 1), done.stderr
    return list(json.loads(done.stdout)["points"])


def changed(tmp_path: Path, script: Path, *changes: tuple[str, str]) -> Path:
    text = script.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    (tmp_path / "run.sh").write_text(text)
    return tmp_path / "run.sh"


def worst(script: Path, *words: str) -> int:
    answer = json.loads(run("estimate", str(script), "--json", *words).stdout)
    return int(max(phase["capacity_needed_bytes"] for gpu in answer["gpus"] for phase in gpu["phases"]))


def test_relax_has_twelve_solutions_in_the_order_of_its_page() -> None:
    told = points(RELAX)
    sections = list(dict.fromkeys(point["section"] for point in told))
    assert [int(section.split(".")[0]) for section in sections] == list(range(1, 13))
    for point in told:  # a change with its cost, or why nothing changes
        assert point["why"]
        assert point["overrides"] or point["gain_bytes"] == 0


@pytest.mark.parametrize("script", [SLIME, RELAX])
def test_every_gain_is_that_of_the_changed_script(tmp_path: Path, script: Path) -> None:
    before = worst(script)
    for point in points(script):
        if not point["overrides"]:
            continue
        out = [flag for flag in point["overrides"] if flag.startswith("~")]
        behind = " ".join(flag for flag in point["overrides"] if not flag.startswith("~"))
        after = worst(changed(tmp_path, script, ('"$@"', f'{behind} "$@"')), *out)
        assert before - after == point["gain_bytes"], point


def test_what_does_nothing_here_says_why(tmp_path: Path) -> None:
    told = {point["text"]: point for point in points(RELAX)}
    assert told["full recomputation, layer by layer"]["why"] == "it is so already"
    assert "one stage" in next(p["why"] for text, p in told.items() if "pipeline stage" in text)
    assert "memory of the host alone" in told["--disable-weights-backuper"]["why"]
    long = changed(
        tmp_path, SLIME, ("--rollout-max-response-len 8192", "--rollout-max-response-len 8192 --rollout-max-context-len 10240")
    )
    said = next(p for p in points(long) if p["text"] == "a smaller --max-tokens-per-gpu")
    assert said["why"] == "a sample of 10240 tokens is longer than the budget, and goes alone"
    assert said["overrides"] == []


def test_stages_share_layers_otherwise(tmp_path: Path) -> None:
    two = changed(
        tmp_path, SLIME, ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2")
    )
    assert worst(two, "--gpu", "H100-80GB") > 0
    of_relax = changed(
        tmp_path, RELAX, ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2")
    )
    stage = next(p for p in points(of_relax) if p["section"].startswith("12."))
    assert stage["overrides"] == ["--decoder-first-pipeline-num-layers=19"]


def test_supervised_training_has_no_such_guide(tmp_path: Path) -> None:
    done = run(
        "advise", str(changed(tmp_path, SLIME, ("--colocate \\\n", "--debug-train-only --loss-type sft_loss \\\n"))), "--guide"
    )
    assert done.returncode == 2
    assert "RL of verl, slime or Relax" in done.stderr
