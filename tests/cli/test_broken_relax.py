"""Mistakes that users of Relax make, and what is said about each, word for word: tests/data/broken_relax.jsonl, rows of which
are as in test_broken_slime.py, and change examples/relax/grpo_4b.sh."""

from __future__ import annotations

from pathlib import Path

from test_broken_slime import DATA, EXAMPLES, judge


def test_what_is_wrong_with_a_script_of_relax_is_said(tmp_path: Path) -> None:
    judge(DATA / "broken_relax.jsonl", EXAMPLES / "relax" / "grpo_4b.sh", tmp_path)
