"""TRL's own commands of its other trainers: DPO, KTO, GRPO and reward models."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
MODEL = ("--model_name_or_path", "Qwen/Qwen3-0.6B", "--dataset_name", "x/y", "--output_dir", "out")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)


def roles(kind: str, *words: str, beside: tuple[str, ...] = ()) -> dict[str, Any]:
    done = run("read", "--json", "--gpus", "1", *beside, "--", "trl", kind, *MODEL, *words)
    assert done.returncode == 0, done.stderr
    return {r["name"]: r["settings"] for r in json.loads(done.stdout)["roles"]}


def trainer(kind: str, *words: str, release: str = "trl 1.5.1") -> dict[str, Any]:
    (only,) = roles(kind, *words, beside=("--framework-version", release)).values()
    return dict(only)


@pytest.mark.parametrize(
    ("kind", "release", "head", "sequences"),
    [
        ("dpo", "trl 0.19.1", "trl_dpo_0_18", 8),
        ("dpo", "trl 1.5.1", "trl_dpo_0_29", 8),
        ("dpo", "trl 1.9.0", "trl_dpo", 8),
        ("kto", "trl 0.21.0", "trl_kto_0_18", 4),
        ("kto", "trl 1.9.0", "trl_kto", 4),
        ("reward", "trl 1.5.1", "reward_pairs", 8),
    ],
)
def test_heads_go_by_the_release(kind: str, release: str, head: str, sequences: int) -> None:
    found = trainer(kind, "--per_device_train_batch_size", "4", release=release)
    assert found["head"] == head and found["sequences_per_micro_batch"] == sequences
    assert found["sequence_tokens"] == 1024
    done = run("estimate", "--gpus", "1", "--framework-version", release, "--", "trl", kind, *MODEL)
    assert done.returncode in (0, 1), done.stderr


def test_a_reference_is_loaded_in_fp32_where_nobody_says_otherwise() -> None:
    assert trainer("dpo")["reference"] == "model" and trainer("dpo")["reference_format"] == "none"  # as the policy
    half = trainer("dpo", "--dtype", "bfloat16")
    assert half["precision.storage"] == "bf16" and half["reference_format"] == "fp32"
    assert trainer("dpo", "--torch_dtype", "bfloat16", release="trl 0.19.1")["reference_format"] == "none"
    adapted = trainer("dpo", "--use_peft")
    assert adapted["reference"] == "adapters_off" and adapted["lora.frozen_copies"] == 0


def test_grpo() -> None:
    beside = ("--sequence-tokens", "1024")
    found = roles("grpo", "--use_vllm", beside=beside)
    assert set(found) == {"actor", "rollout"} and found["actor"]["head"] == "trl_grpo_1_0"
    assert found["actor"]["logits_to_keep"] == 257 and found["rollout"]["gpu_memory_utilization"] == 0.3
    assert set(roles("grpo", "--use_vllm", "--vllm_mode", "server", beside=beside)) == {"trainer"}
    advice = run("advise", "--gpus", "1", *beside, "--gpu", "A100-40GB", "--", "trl", "grpo", *MODEL, "--use_vllm")
    assert advice.returncode in (0, 1), advice.stderr


@pytest.mark.parametrize(
    ("kind", "words", "release", "said"),
    [
        ("grpo", (), "1.5.1", "use_vllm: found 'false': not supported yet: GRPO with generation by Transformers"),
        ("dpo", (), "0.24.0", "DPO of TRL 0.21 to 0.28, which asks for the hidden states of all layers"),
        ("dpo", ("--use_liger_kernel",), "1.5.1", "Liger under this trainer"),
        ("dpo", ("--loss_type", "sft"), "1.5.1", "DPO with a likelihood loss beside it"),
        ("reward", ("--use_peft",), "1.5.1", "adapters of a reward model"),
        ("grpo", ("--use_vllm",), "0.29.1", "GRPO of TRL before 1.0"),
        ("reward", (), "0.21.0", "reward models of TRL before 0.24"),
        ("kto", ("--use_peft", "--load_in_4bit"), "0.21.0", "a packed base under kto of TRL 0.21.0"),
        ("rloo", (), "1.5.1", "not supported yet: the trainer rloo of TRL"),
    ],
)
def test_what_is_not_described_is_named(kind: str, words: tuple[str, ...], release: str, said: str) -> None:
    done = run("estimate", "--sequence-tokens", "512", "--framework-version", f"trl {release}", "--", "trl", kind, *MODEL, *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
