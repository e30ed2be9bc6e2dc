"""Which files a job file can make the program read, and which the program writes over."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
JOB = (ROOT / "examples" / "areal" / "grpo_7b.yaml").read_text()
SECRET = "experiment_name: hunter2\ntotal_train_epochs: [hunter2\n"  # not even valid: a parser would tell where, and what
Write = Callable[[str], Path]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes jobs/job.yaml with a beginning of its own, beside a folder of someone else."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret.yaml").write_text(SECRET)
    (tmp_path / "other" / "base.yaml").write_text(JOB)

    def job(beginning: str) -> Path:
        path = tmp_path / "jobs" / "job.yaml"
        path.write_text(beginning.replace("%", str(tmp_path)) + "\n" + JOB)
        return path

    return job


@pytest.mark.parametrize(
    "beginning",
    [
        "defaults: [../other/secret, _self_]",
        "defaults: [%/other/secret, _self_]",
        "defaults: [link, _self_]",
        "defaults: [folder/secret, _self_]",
        "defaults: [round, _self_]",
        "defaults: [secret, _self_]\nhydra: {searchpath: ['file://%/other']}",
        "defaults: [secret, _self_]\nhydra: {searchpath: ['../other']}",
        "defaults: [secret, _self_]\nhydra: {searchpath: ['%/jobs/folder']}",
    ],
)
@pytest.mark.parametrize("command", ["read", "estimate", "advise"])
def test_defaults_outside_of_the_folder_are_refused_unread(command: str, beginning: str, write: Write, tmp_path: Path) -> None:
    job = write(beginning)
    (tmp_path / "jobs" / "link.yaml").symlink_to(tmp_path / "other" / "secret.yaml")
    (tmp_path / "jobs" / "folder").symlink_to(tmp_path / "other")
    (tmp_path / "jobs" / "round.yaml").symlink_to(tmp_path / "jobs" / "round.yaml")
    done = run(command, job)
    assert done.returncode == 2, done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    if "round" not in beginning and "[%" not in beginning:  # to Hydra, "/" begins at the config root
        assert "--config-root" in done.stderr and str(job) in done.stderr


def test_what_lies_outside_is_not_told_either(write: Write) -> None:
    there, missing = (run("read", write(f"defaults: [../other/{name}, _self_]")) for name in ("secret", "missing"))
    assert there.returncode == missing.returncode == 2
    assert there.stderr.replace("secret", "missing") == missing.stderr


def test_a_config_root_is_read(write: Write, tmp_path: Path) -> None:
    job = write("defaults: [../other/base, _self_]")
    assert run("read", "--config-root", tmp_path / "other", job).returncode == 0
    assert run("read", "--config-root", f"{tmp_path / 'jobs'},{tmp_path}", job).returncode == 0
    refused = run("read", "--config-root", tmp_path / "others", job)
    assert refused.returncode == 2 and "others" in refused.stderr
    beside = run("read", "--config-root", tmp_path / "oth", job)  # a beginning of a name is no folder around it
    assert beside.returncode == 2


def test_links_within_the_folder_are_followed(write: Write, tmp_path: Path) -> None:
    """As in a Kubernetes ConfigMap, where every file is a link into a hidden folder beside it."""
    hidden = tmp_path / "jobs" / "..data"
    hidden.mkdir()
    (hidden / "base.yaml").write_text(JOB)
    (tmp_path / "jobs" / "base.yaml").symlink_to(hidden / "base.yaml")
    assert run("read", write("defaults: [base, _self_]")).returncode == 0


def test_a_predicted_run_replaces_only_a_predicted_run(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text((ROOT / "examples" / "grpo.yaml").read_text())
    text = job.read_text()
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "to_job").symlink_to(job)
    (tmp_path / "hard").hardlink_to(job)
    os.mkfifo(tmp_path / "pipe")
    for name in ("job.yaml", "link", "to_job", "hard", "pipe", "."):
        done = run("explain", job, "--save-snapshot", tmp_path / name)
        assert done.returncode == 2 and "Traceback" not in done.stderr, (name, done.stderr)
        assert job.read_text() == text and not (tmp_path / "new").exists(), name
    assert run("explain", job, "--save-snapshot", tmp_path / "new").returncode == 0
    first = (tmp_path / "new").read_bytes()
    assert run("explain", job, "--save-snapshot", tmp_path / "new").returncode == 0
    assert (tmp_path / "new").read_bytes() == first
