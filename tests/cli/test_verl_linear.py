"""Linear attention under verl: what is taken to run it, and what says that something else does."""

from __future__ import annotations

import json

import pytest
from test_verl import ARR, FIXED, command, fullest, run
from test_verl_images import IMAGES

ASKED = ("--framework-version", "0.9.0", "--gpu", "H100-80GB")
NOTE = "linear attention is taken to run in transformers' own functions"
MODELS = ["Qwen/Qwen3.5-27B", "Qwen/Qwen3-Next-80B-A3B-Instruct"]


def of_model(model: str) -> list[str]:
    return [word.replace("Qwen/Qwen2.5-7B-Instruct", model) for word in FIXED]


@pytest.mark.parametrize("model", MODELS)
def test_linear_attention_runs_in_functions_of_transformers(model: str) -> None:
    """verl installs neither package of kernels; what is taken is said, and how to say otherwise."""
    done = run("estimate", "--quick", *ASKED, *command(*of_model(model)))
    assert done.returncode in (0, 1), done.stderr
    said = " ".join(done.stdout.split())
    assert NOTE in said
    assert "--linear-attention says what is installed" in said


@pytest.mark.parametrize("model", MODELS)
def test_kernels_that_are_installed_keep_less(model: str) -> None:
    needed = []
    for kernels in ("torch", "fla", "fla_conv"):
        done = run("estimate", "--quick", "--json", "--linear-attention", kernels, *ASKED, *command(*of_model(model)))
        assert done.returncode in (0, 1), done.stderr
        told = json.loads(done.stdout)
        assert not any(NOTE in note["text"] for note in told["notes"])
        needed.append(fullest(done))
    assert needed[0] >= max(needed[1:])


def test_words_for_what_is_installed_are_told() -> None:
    done = run("check", "--linear-attention", "triton", *ASKED, *command(*of_model(MODELS[0])))
    assert done.returncode == 2
    assert "--linear-attention: found 'triton', expected torch, fla or fla_conv" in done.stderr


def test_what_is_installed_is_said_of_jobs_of_verl() -> None:
    done = run("check", "examples/areal/grpo_7b.yaml", "--linear-attention", "fla")
    assert done.returncode == 2
    assert "a job file says it as linear_attention" in done.stderr


def test_ulysses_of_linear_attention_asks_for_its_kernels() -> None:
    words = [word.replace("Qwen/Qwen2.5-VL-7B-Instruct", MODELS[0]) for word in IMAGES]
    split = command(*words, f"{ARR}.actor.ulysses_sequence_parallel_size=2")
    done = run("estimate", *ASKED, *split)
    assert done.returncode == 2, done.stdout
    assert "Ulysses of linear attention asks for flash-linear-attention, which verl does not install" in done.stderr
    done = run("estimate", "--quick", "--linear-attention", "fla", *ASKED, *split)
    assert done.returncode in (0, 1), done.stderr
