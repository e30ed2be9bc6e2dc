"""Python of README and docs is typed: mypy --strict takes every block as it stands."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "```python" in page.read_text()]


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="no mypy")
def test_blocks_pass_mypy_strict(tmp_path: Path) -> None:
    files = []
    for page in PAGES:
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```\n", page.read_text(), re.MULTILINE | re.DOTALL)):
            file = tmp_path / f"{page.stem}_{number}.py"
            file.write_text(block)
            files.append(str(file))
    assert len(files) > 5
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *files],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "bindings" / "python")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
