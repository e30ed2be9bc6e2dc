"""TRL's other trainers in Oumi's files: heads by release, references and teachers, vLLM in GRPO's processes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_oumi import role, run

ALONE = ("oumi", "train", "-c", "sft_8b.yaml", "--fsdp.enable_fsdp", "false")
TEACHER = "meta-llama/Llama-3.2-3B-Instruct"


def trainer(kind: str, *words: str, release: str = "0.8+") -> dict[str, Any]:
    return role("--framework-version", release, "--", *ALONE, "--training.trainer_type", kind, *words)


@pytest.mark.parametrize(
    ("release", "kind", "head", "sequences"),
    [
        ("0.2.0", "TRL_DPO", "trl_dpo_0_18", 4),
        ("0.8", "TRL_DPO", "trl_dpo_0_29", 4),
        ("0.5.0", "TRL_KTO", "trl_kto_0_18", 2),
        ("0.8+", "TRL_KTO", "trl_kto_0_18", 2),
    ],
)
def test_heads_go_by_the_release(release: str, kind: str, head: str, sequences: int) -> None:
    found = trainer(kind, release=release)
    assert found["head"] == head and found["sequences_per_micro_batch"] == sequences
    assert found["reference"] == "model"
    # from TRL 0.29 on the reference is loaded by its name, in fp32 where nothing says otherwise
    assert found["reference_format"] == ("none" if release < "0.8" else "fp32")
    said = trainer(kind, "--training.trainer_kwargs.precompute_ref_log_probs", "true", release=release)
    assert said["reference"] == "none"


def test_a_reference_is_the_policy_without_its_adapters() -> None:
    adapters = ("--training.use_peft", "true", "--peft.lora_r", "16")
    old, new = (trainer("TRL_DPO", *adapters, release=release) for release in ("0.2.0", "0.8+"))
    assert old["reference"] == new["reference"] == "adapters_off"
    assert old["lora.frozen_copies"] == 0 and new["lora.frozen_copies"] == 1
    packed = (*adapters, "--peft.q_lora", "true")
    assert trainer("TRL_DPO", *packed)["lora.format"] == "storage"
    assert trainer("TRL_DPO", *packed, release="0.2.0")["lora.format"] == "fp32"


def test_a_second_model_is_counted() -> None:
    def total(*words: str) -> int:
        command = (*ALONE, "--training.trainer_type", "TRL_DPO", *words)
        done = run("estimate", "--json", "--gpu", "H200-141GB", "--", *command)
        assert done.returncode in (0, 1), done.stderr
        (gpu,) = json.loads(done.stdout)["gpus"]
        return next(int(p["allocated_bytes"]) for p in gpu["phases"] if p["phase"] == "trainer.load")

    alone = total("--training.trainer_kwargs.precompute_ref_log_probs", "true")
    wide = total()
    as_policy = total("--training.trainer_kwargs.model_init_kwargs", "{dtype: bfloat16}")
    parameters = 8030261248
    assert as_policy - alone == pytest.approx(2 * parameters, rel=1e-3)
    assert wide - alone == pytest.approx(4 * parameters, rel=1e-3)


def grpo(*words: str, release: str = "0.8+") -> dict[str, Any]:
    command = (*ALONE, "--training.trainer_type", "TRL_GRPO", "--training.grpo.use_vllm", "true", *words)
    done = run("read", "--json", "--sequence-tokens", "1024", "--framework-version", release, "--", *command)
    assert done.returncode == 0, done.stderr
    return {r["name"]: r["settings"] for r in json.loads(done.stdout)["roles"]}


def test_grpo_generates_in_its_own_processes_or_elsewhere() -> None:
    roles = grpo("--training.grpo.vllm_gpu_memory_utilization", "0.4")
    assert set(roles) == {"actor", "rollout"}
    actor, rollout = roles["actor"], roles["rollout"]
    assert actor["head"] == "trl_grpo_1_0" and actor["logits_to_keep"] == 257
    assert rollout["beside"] == "actor" and rollout["in_process"] is True
    assert rollout["gpu_memory_utilization"] == 0.4 and rollout["max_running_requests"] == 2 * 4
    served = grpo("--training.grpo.vllm_mode", "server")
    assert set(served) == {"trainer"} and served["trainer"]["head"] == "trl_grpo_1_0"
    told = grpo("--training.trainer_kwargs.vllm_mode", "colocate", release="0.8")
    assert told["actor"]["head"] == "trl_grpo_1_0" and told["rollout"]["engine"].startswith("vllm ")


@pytest.mark.parametrize(("kind", "section"), [("TRL_GKD", "gkd"), ("TRL_GOLD", "gold")])
def test_a_teacher_is_a_model_of_its_own(kind: str, section: str) -> None:
    name = f"--training.{section}.teacher_model_name_or_path"
    found = trainer(kind, name, TEACHER)
    assert found["head"] == "trl_gkd" and found["reference"] == "model" and found["reference_model"] == TEACHER
    assert found["sequence_tokens"] == 4096 + 128  # the policy writes behind what is capped
    assert trainer(kind, name, TEACHER, f"--training.{section}.lmbda", "0.0")["sequence_tokens"] == 4096
    command = (*ALONE, "--training.trainer_type", kind, name, TEACHER)
    done = run("estimate", "--gpu", "H200-141GB", "--", *command)
    assert done.returncode in (0, 1), done.stderr
    other = run("estimate", "--", *command[:-1], "Qwen/Qwen3-0.6B")
    assert other.returncode == 2 and "the same vocabulary" in other.stderr


def test_advice_speaks_of_pairs() -> None:
    command = (*ALONE, "--training.trainer_type", "TRL_DPO", "--training.use_peft", "true", "--model.model_max_length", "16384")
    done = run("advise", "--json", "--gpu", "A100-40GB", "--", *command)
    assert done.returncode == 1, done.stderr
    words = [word for remedy in json.loads(done.stdout)["remedies"] for word in remedy["overrides"]]
    assert "--training.per_device_train_batch_size=1" in words or "--training.per_device_train_batch_size 1" in " ".join(words)
    explained = run("explain", "--gpu", "A100-40GB", "--", *command)
    assert explained.returncode in (0, 1), explained.stderr


def test_advice_names_the_format_of_a_reference() -> None:
    command = ("torchrun", "--nproc-per-node=2", "-m", "oumi", "train", "-c", "sft_8b.yaml", "--training.trainer_type", "TRL_DPO")
    done = run("advise", "--json", "--gpu", "A100-80GB", "--allow", "numerics", "--", *command)
    assert done.returncode == 1, done.stderr
    words = [word for remedy in json.loads(done.stdout)["remedies"] for word in remedy["overrides"]]
    assert "--training.trainer_kwargs.model_init_kwargs.dtype=bfloat16" in words
