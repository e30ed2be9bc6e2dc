"""Runs the program over tests/cases/*.case and compares exit status and streams, word for word. The format: tests/cases/README.md."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve()
CASES = sorted((ROOT / "tests" / "cases").glob("*.case"))
SECTION = re.compile(r"^--- (command|file|example|folder|exit|stderr|stdout)\b(.*)\n", re.MULTILINE)


def sections(text: str) -> list[tuple[str, list[str], str]]:
    """(kind, words behind it, body) of every section, in order."""
    marks = list(SECTION.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [(mark[1], mark[2].split(), text[mark.end() : end]) for mark, end in zip(marks, ends)]


def content(body: str, mode: list[str]) -> bytes:
    raw = (body[:-1] if mode and body.endswith("\n") else body).encode()
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), raw) if "escaped" in mode else raw
    return raw * int(mode[mode.index("repeated") + 1]) if "repeated" in mode else raw


def body(parts: list[tuple[str, list[str], str]], kind: str) -> str | None:
    return next((text for name, _, text in parts if name == kind), None)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# "), "the first line says the claim"
    parts = sections(text)
    for kind, words, inside in parts:
        if kind == "file":
            (tmp_path / words[0]).write_bytes(content(inside, words[1:]))
        elif kind == "example":
            shutil.copy(ROOT / "examples" / words[0], tmp_path)
        elif kind == "folder":
            (tmp_path / words[0]).mkdir()
    command = shlex.split(body(parts, "command") or "")
    done = subprocess.run(
        [PROGRAM, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, "NO_COLOR": "1"}
    )
    if os.environ.get("OOMPLAN_UPDATE_CASES"):
        head = text[: text.index("--- exit\n")]
        out = f"--- stdout\n{done.stdout}" if body(parts, "stdout") is not None else ""
        path.write_text(f"{head}--- exit\n{done.returncode}\n--- stderr\n{done.stderr}{out}")
        return
    assert done.stderr == (body(parts, "stderr") or "")
    assert done.returncode == int(body(parts, "exit") or 0)
    if (expected := body(parts, "stdout")) is not None:
        assert done.stdout == expected


def test_there_are_cases() -> None:
    assert len(CASES) >= 100
