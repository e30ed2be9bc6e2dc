"""`advise`, and `search` of a framework's file: what they print can be pasted and patched, and then says what was promised."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
CASES = [
    ("tests/data/areal/patch_v0.5.yaml", "0.5.3"),
    ("tests/data/areal/patch_v1.0.yaml", "1.0.4"),
    ("tests/data/areal/patch_v2.0.yaml", "2.0.0"),
]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


def answer(folder: Path, *arguments: str) -> dict[str, Any]:
    done = run(folder, *arguments, "--json")
    assert done.returncode in (0, 1), done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def patched(folder: Path, diff: str) -> None:
    subprocess.run(["patch", "-p0"], cwd=folder, input=diff, text=True, check=True, capture_output=True)


@pytest.fixture(params=CASES, ids=lambda case: case[1])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    path, version = request.param
    shutil.copy(ROOT / path, tmp_path / "job.yaml")
    return tmp_path, ["job.yaml", "--framework-version", version, "--gpu", "H100-80GB"]


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch")
def test_a_diff_that_patch_applies_says_what_the_arguments_say(job: tuple[Path, list[str]]) -> None:
    folder, call = job
    original = (folder / "job.yaml").read_text()
    remedies = answer(folder, "advise", *call)["remedies"]
    for number, remedy in list(enumerate(remedies, 1))[::4]:  # the library's own tests take every one
        by_arguments = answer(folder, "estimate", *call, *remedy["overrides"])
        diff = run(folder, "advise", *call, "--diff", str(number)).stdout
        assert diff == remedy["diff"]
        patched(folder, diff)
        by_file = answer(folder, "estimate", *call)
        (folder / "job.yaml").write_text(original)
        assert by_file["gpus"] == by_arguments["gpus"] and by_file["fits"] == remedy["fits"]


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch")
def test_a_configuration_is_pasted_patched_or_written(job: tuple[Path, list[str]]) -> None:
    folder, call = job
    call = [*call, "--gpus", "32"]
    best = answer(folder, "search", *call, "--keep", "1")["best"][0]
    assert all(not change["key"].startswith(("actor.layout", "rollout.layout", "gpus")) for change in best["changes"])
    text = run(folder, "search", *call, "--keep", "1").stdout
    pasted = shlex.split(text[text.index("command line\n") + 13 : text.index("\nThe step time")])
    assert pasted == best["overrides"]
    estimate = answer(folder, "estimate", *call[:-2], *pasted)
    assert estimate["fits"]
    written = run(folder, "search", *call, "--job", "1").stdout
    patched(folder, run(folder, "search", *call, "--diff", "1").stdout)
    assert (folder / "job.yaml").read_text() == written
    assert answer(folder, "estimate", *call[:-2])["gpus"] == estimate["gpus"]


def test_an_estimate_that_does_not_fit_advises_in_the_words_of_the_file(job: tuple[Path, list[str]]) -> None:
    folder, call = job
    done = run(folder, "estimate", *call)
    assert done.returncode == 1 and "tokens_per_micro_batch" not in done.stdout
    assert run(folder, "advise", *call).returncode == 1


def test_wrong_numbers_and_effects_are_refused(job: tuple[Path, list[str]]) -> None:
    folder, call = job
    for arguments, message in (
        (["--diff", "99"], "so many changes were found"),
        (["--diff", "0"], "a whole number from 1"),
        (["--allow", "numeric"], "did you mean 'numerics'?"),
    ):
        done = run(folder, "advise", *call, *arguments)
        assert done.returncode == 2 and message in done.stderr
