"""Every ```sh and ```python block of README and docs runs; a ```text block right behind a ```sh block is its output.

A ```cpp, ```c or ```cmake block is the text of a file below examples/, which test_package.py builds and runs. With norun behind the
language a block is left out. OOMPLAN_UPDATE_GOLDEN=1 writes the ```text blocks anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan")))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
BLOCKS = [(page, number) for page in PAGES for number, _ in enumerate(BLOCK.finditer(page.read_text()))]


def run(language: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    tools = folder / "bin"
    tools.mkdir()
    (tools / "oomplan").symlink_to(PROGRAM.resolve())
    (tools / "python3").symlink_to(sys.executable)
    shutil.copytree(ROOT / "examples", folder / "examples")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    command = ["sh", "-c", code] if language == "sh" else [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("page", "number"), BLOCKS, ids=lambda value: getattr(value, "name", str(value)))
def test_block(page: Path, number: int, tmp_path: Path) -> None:
    text = page.read_text()
    block = list(BLOCK.finditer(text))[number]
    language, code, output = block.groups()
    done = run(language, code, tmp_path)
    # 1: a job that does not fit is an answer.
    assert done.returncode in ((0, 1) if language == "sh" else (0,)), done.stderr
    if output is None:
        return
    if os.environ.get("OOMPLAN_UPDATE_GOLDEN"):
        page.write_text(text[: block.start(3)] + done.stdout + text[block.end(3) :])
    else:
        assert done.stdout == output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_is_that_of_an_example(page: Path) -> None:
    known = {path.read_text(): path for kind in ("*.cpp", "*.c", "CMakeLists.txt") for path in (ROOT / "examples").rglob(kind)}
    blocks = re.findall(r"^```(?:cpp|c|cmake)\n(.*?)^```\n", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= (2 if page.name in ("README.md", "cpp.md") else 0)
    for block in blocks:
        assert block in known, f"no file below examples/ reads:\n{block}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
