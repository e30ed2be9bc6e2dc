"""Mistakes that users of slime make, and what is said about each, word for word: tests/data/broken_slime.jsonl.

A row has an `id`, the `release` that is asked for and what is changed in examples/slime/grpo_4b.sh: pairs of a text and what stands
in its place. OOMPLAN_UPDATE_CASES=1 writes the lines anew: read the difference before you keep it.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_broken_verl import told

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
EXAMPLES = ROOT / "examples"


def script_of(row: dict[str, Any], example: str) -> str:
    text = example
    for before, after in row["changes"]:
        assert before in text, (row["id"], before)
        text = text.replace(before, after)
    return text


def judge(data: Path, example: Path, folder: Path) -> None:
    """Every row of `data`, which changes `example`, is refused with the words that stand in it."""
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) >= 40
    text = example.read_text()
    scripts = [{**row, "script": script_of(row, text)} for row in rows]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda i: told(scripts[i], folder / str(i)), range(len(rows))))
    accepted = [row["id"] for row, (status, _) in zip(rows, answers) if status != 2]
    assert not accepted, f"no error: {accepted}"
    if os.environ.get("OOMPLAN_UPDATE_CASES"):
        new = [{**row, "said": said} for row, (_, said) in zip(rows, answers)]
        data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in new))
        return
    wrong = [f"{row['id']}:\n  {chr(10).join(said)}" for row, (_, said) in zip(rows, answers) if said != row["said"]]
    if wrong:
        pytest.fail("\n".join(wrong))


def test_what_is_wrong_with_a_script_of_slime_is_said(tmp_path: Path) -> None:
    judge(DATA / "broken_slime.jsonl", EXAMPLES / "slime" / "grpo_4b.sh", tmp_path)
