"""Mistakes that users of verl make, and what is said about each, word for word: tests/data/broken_verl.jsonl.

A row has an `id`, the `release` that is asked for (null: none), what is handed over, and the lines on stderr. Handed over is a
`command`, a `script`, or the `file` of `files`. PWD stands for the folder. OOMPLAN_UPDATE_CASES=1 writes the lines anew: read the
difference before you keep it.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve())
DATA = ROOT / "tests" / "data" / "broken_verl.jsonl"


def told(row: dict[str, Any], folder: Path) -> tuple[int, list[str]]:
    """Exit status and lines on stderr."""
    folder.mkdir()
    for name, text in row.get("files", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    words = ["check"]
    if row["release"] is not None:
        words += ["--framework-version", row["release"]]
    if "script" in row:
        (folder / "run.sh").write_bytes(row["script"].encode())
        words.append("run.sh")
    elif "command" in row:
        words += ["--", *(word.replace("PWD", str(folder)) for word in row["command"])]
    else:
        words.append(row["file"])
    given = {"HOME": "/root", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([PROGRAM, *words], cwd=folder, env=given, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.replace(str(folder), "PWD").splitlines()


def test_what_is_wrong_with_a_launch_of_verl_is_said(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) >= 60
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda i: told(rows[i], tmp_path / str(i)), range(len(rows))))
    accepted = [row["id"] for row, (status, _) in zip(rows, answers) if status != 2]
    assert not accepted, f"no error: {accepted}"
    if os.environ.get("OOMPLAN_UPDATE_CASES"):
        new = [{**row, "said": said} for row, (_, said) in zip(rows, answers)]
        DATA.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in new))
        return
    wrong = [f"{row['id']}:\n  {chr(10).join(said)}" for row, (_, said) in zip(rows, answers) if said != row["said"]]
    if wrong:
        pytest.fail("\n".join(wrong))
