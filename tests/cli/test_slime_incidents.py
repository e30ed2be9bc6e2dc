"""Reports of out-of-memory errors under slime that say enough: where the answer breaks first, and how much is allocated there.

The job is the example, which has the settings of slime's examples/retool: Qwen3-4B, tensor degree 2, 9,216 tokens of a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve())
ROWS = [json.loads(line) for line in (ROOT / "tests/data/slime_incidents.jsonl").read_text().splitlines()]


def answer(row: dict[str, Any], tokens: int) -> dict[str, Any]:
    words = ["--set", f"NUM_GPUS={row['gpus']}", "--framework-version", row["release"], "--gpu", row["gpu"]]
    words += ["--sequence-tokens", str(tokens), "--json"]
    done = subprocess.run(
        [PROGRAM, "estimate", "examples/slime/grpo_4b.sh", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.truth
@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_the_phase_that_was_reported_breaks_first(row: dict[str, Any]) -> None:
    gpu = answer(row, row["tokens"])["gpus"][0]
    broken = [p for p in gpu["phases"] if p["capacity_needed_bytes"] > gpu["usable_bytes"]]
    assert broken[0]["phase"] == row["breaks_in"]
    asked = (row["tried_gib"] + row["allocated_gib"]) * 2**30
    if row["at_once"]:  # the block that was refused is the phase's highest moment
        assert broken[0]["allocated_bytes"] == pytest.approx(asked, rel=0.002)
    else:
        assert broken[0]["allocated_bytes"] > asked


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_samples_as_long_as_the_flags_say_fit(row: dict[str, Any]) -> None:
    gpu = answer(row, 9216)["gpus"][0]
    assert all(p["capacity_needed_bytes"] <= gpu["usable_bytes"] for p in gpu["phases"])
