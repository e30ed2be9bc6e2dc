"""The build folder that is tested, and what `cmake --install` makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve()

# What tests configure is built by what builds the project: a bare Debian has no make, and CMake takes that without being asked.
if shutil.which("ninja") is not None:
    os.environ.setdefault("CMAKE_GENERATOR", "Ninja")


@pytest.fixture(scope="session")
def build() -> Path:
    """The build folder. A program that lies elsewhere (in a wheel) has none."""
    if not (PROGRAM.parent / "cmake_install.cmake").exists():
        pytest.skip("the program does not lie in a build folder")
    return PROGRAM.parent


@pytest.fixture(scope="session")
def prefix(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything installed, then moved: nothing in it may name the folder that it was made for."""
    there = tmp_path_factory.mktemp("prefix")
    subprocess.run(
        ["cmake", "--install", str(build), "--prefix", str(there / "made")], check=True, capture_output=True, text=True
    )
    return (there / "made").rename(there / "moved")
