"""The JSON Schema of job files is made from the table that reads them, and takes what read() takes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
FILE = ROOT / "docs" / "schema" / "job_file.schema.json"


def printed(*arguments: str) -> str:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True).stdout


def validator() -> Any:
    return jsonschema.Draft202012Validator(json.loads(FILE.read_text()))


def test_the_file_is_what_the_program_prints() -> None:
    if os.environ.get("OOMPLAN_UPDATE_GOLDEN"):
        FILE.write_text(printed("schema"))
    assert FILE.read_text() == printed("schema")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_and_what_read_makes_of_them(path: Path) -> None:
    for text in (path.read_text(), printed("read", str(path))):
        validator().validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("key", "value"),
    [("modl", "qwen2.5-7b"), ("actor", {"tokens": 1}), ("actor", {"recompute": "some"}), ("rollout", {"recompute": "full"}),
     ("actor", {"precision": {"stored": "bf16"}}), ("sync", {"by": "pigeon"}), ("oomplan", 2)],
)  # fmt: skip
def test_what_read_refuses_is_no_job_file(key: str, value: Any) -> None:
    job = yaml.safe_load((ROOT / "examples" / "grpo.yaml").read_text())
    if isinstance(value, dict):
        job[key] = {**job.get(key, {}), **value}
    else:
        job[key] = value
    assert not validator().is_valid(job)
    text = json.dumps(job)
    done = subprocess.run([PROGRAM, "read", "-"], input=text, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2
