"""Every JSON that oomplan prints has the shape that docs/schema writes down."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text())
    return loaded


def check(answer: dict[str, Any]) -> None:
    name, _, number = answer["schema"].removeprefix("oomplan.").partition("/")
    assert number == "1"
    jsonschema.Draft202012Validator(schema(name)).validate(answer)


def said(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([PROGRAM, *arguments, "--json"], capture_output=True, text=True, timeout=60, cwd=ROOT)
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "schema").glob("*.json")), ids=lambda path: path.name)
def test_schema_is_a_schema(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "golden").glob("*.json")), ids=lambda path: path.name)
def test_golden(path: Path) -> None:
    check(json.loads(path.read_text()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("command", ["read", "estimate", "explain"])
def test_examples(command: str, path: Path) -> None:
    answer = said(command, str(path))
    check(answer)
    assert answer["schema"] == {"read": "oomplan.job/1"}.get(command, "oomplan.estimate/1"), answer


@pytest.mark.parametrize(
    "arguments",
    [
        ["gpus"],
        ["op", "swiglu", "tokens=64", "hidden=32", "width=96", "--by", "liger"],
        ["op", "swiglu", "tokens=64"],
        ["facts"],
        ["facts", "vllm", "--version", "0.11.0"],
        ["model", "qwen2.5-7b"],
        ["models", "qwen3"],
        ["model", "deepseek-v3", "--parameters"],
        ["search", "--model", "qwen2.5-7b", "--gpus", "8", "--keep", "2"],
        ["search", "--model", "qwen2.5-72b", "--gpus", "1"],
        ["advise", "examples/grpo.yaml", "actor.tokens_per_micro_batch=64k"],
        ["advise", "examples/areal/grpo_7b.yaml", "--framework-version", "1.0.4", "--gpu", "A10G-24GB"],
        ["advise", "tests/data/areal/patch_v0.5.yaml", "--framework-version", "0.5.3"],
        ["search", "examples/areal/grpo_7b.yaml", "--keep", "2"],
        ["estimate", "no-such-file.yaml"],
        ["estimte"],
        ["facts", "vlm"],
    ],
    ids=" ".join,
)
def test_program(arguments: list[str]) -> None:
    check(said(*arguments))


def test_same_input_same_bytes() -> None:
    if not EXAMPLES:
        pytest.skip("no examples")
    first, second = (
        subprocess.run([PROGRAM, "explain", str(EXAMPLES[0]), "--json"], capture_output=True).stdout for _ in range(2)
    )
    assert first == second
