"""Command lines of servers as they are typed, right and wrong: tests/data/serve_commands.jsonl."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
CASES = [json.loads(line) for line in (ROOT / "tests" / "data" / "serve_commands.jsonl").read_text(encoding="utf-8").splitlines()]


def test_there_are_enough() -> None:
    assert len(CASES) >= 80 and len({case["name"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]).replace(" ", "_"))
def test_command(case: dict[str, Any], tmp_path: Path) -> None:
    for name, text in case.get("files", {}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    version = ["--engine-version", case["version"]] if "version" in case else []
    words = [PROGRAM, "serve", "--gpu", "H200-141GB", *version, "--", *shlex.split(case["command"])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == case["status"], said
    for words_said in case["says"]:
        assert words_said in said, said
    for silent in case.get("silent", []):
        assert silent not in said, said
    if "figures" not in case:
        return
    done = subprocess.run([PROGRAM, "serve", "--json", *words[2:]], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    found = json.loads(done.stdout)
    for key, value in case["figures"].items():
        assert found[key] == value, (key, found[key])
