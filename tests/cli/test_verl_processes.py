"""What verl's workers of one process share: a context, Megatron's degrees, and up to 0.6 vLLM; and which engine vLLM runs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from test_verl import ARR, GRPO, MEGATRON, command, run

PPO = [
    "algorithm.adv_estimator=gae",
    "critic.model.path=Qwen/Qwen3-8B",
    "critic.ppo_micro_batch_size_per_gpu=1",
    f"{ARR}.actor.megatron.tensor_model_parallel_size=4",
    "critic.megatron.tensor_model_parallel_size=2",
]
ADAPTERS = [f"{ARR}.model.lora_rank=32", f"{ARR}.rollout.load_format=safetensors"]


def read(*overrides: str, release: str, front: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    words = command(*overrides)
    at = words.index("--") + 1
    done = run("read", "--framework-version", release, *words[:at], *front, *words[at:])
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout)), done.stderr


@pytest.mark.parametrize(("release", "degree", "idle"), [("0.7.0", 4, "critic.megatron"), ("0.9.0", 2, f"{ARR}.actor.megatron")])
def test_degrees_are_those_of_the_engine_that_is_built_first(release: str, degree: int, idle: str) -> None:
    """Up to 0.7 the actor's worker makes Megatron's groups, later the critic's, whose engine is built with its worker."""
    job, said = read("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, *PPO, release=release)
    for role in ("actor", "critic"):
        assert f"t{degree}" in job[role]["layout"], job[role]["layout"]
    assert f"{idle}.tensor_model_parallel_size={6 - degree} is not in force" in said


def test_degrees_that_agree_are_not_told() -> None:
    same = [*PPO[:-1], "critic.megatron.tensor_model_parallel_size=4"]
    assert "not in force" not in read("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, *same, release="0.9.0")[1]


def contexts(text: str) -> int:
    """Contexts in what is told of the fullest GPU."""
    fullest = text.split("what is on the device")[1].split("smallest device")[0]
    return sum(line.strip().startswith("context ") for line in fullest.splitlines())


@pytest.mark.parametrize(("release", "wanted"), [("0.5.0", 1), ("0.6.1", 1), ("0.7.0", 2), ("0.9.0", 2)])
def test_there_is_a_context_for_every_process(release: str, wanted: int) -> None:
    """Actor, reference and critic are one process; vLLM runs in it up to 0.6."""
    more = [*PPO[:-2], f"{ARR}.actor.megatron.tensor_model_parallel_size=4", "critic.megatron.tensor_model_parallel_size=4"]
    words = command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, *more, f"{ARR}.actor.use_kl_loss=True")
    done = run("explain", "--framework-version", release, "--gpu", "H200-141GB", *words)
    assert done.returncode in (0, 1), done.stderr
    assert contexts(done.stdout) == wanted, done.stdout[:6000]


def test_sglang_has_a_process_of_its_own() -> None:
    assert read(*GRPO, f"{ARR}.rollout.name=sglang", release="0.5.0")[0]["actor"]["in_process"] is False
    assert read(*GRPO, release="0.5.0")[0]["actor"]["in_process"] is True


@pytest.mark.parametrize(("release", "requests"), [("0.4.1", "auto"), ("0.5.0", "auto"), ("0.6.1", 7), ("0.9.0", 7)])
def test_requests_at_once_are_handed_over_from_0_6_on(release: str, requests: str | int) -> None:
    assert read(*GRPO, f"{ARR}.rollout.max_num_seqs=7", release=release)[0]["rollout"]["max_running_requests"] == requests


@pytest.mark.parametrize(
    ("release", "front", "first"),
    [
        ("0.4.1", (), False),
        ("0.4.1", ("VLLM_ATTENTION_BACKEND=XFORMERS",), True),
        ("0.4.1", ("VLLM_ATTENTION_BACKEND=FLASH_ATTN",), False),
        ("0.4.1", ("VLLM_USE_V1=0",), True),
        ("0.4.1", ("VLLM_USE_V1=1",), False),
        ("0.9.0", ("VLLM_ATTENTION_BACKEND=XFORMERS",), False),
    ],
)
def test_variables_choose_vllms_engine(release: str, front: tuple[str, ...], first: bool) -> None:
    job, said = read(*GRPO, release=release, front=front)
    assert job["rollout"]["first_engine"] is first
    assert ("runs its first engine (V0)" in said) is first


def test_a_small_share_of_the_card_is_enough_for_the_first_engine() -> None:
    """A run of verl's tuning logs: LoRA of 3B beside its server on one H100, a tenth of which is the server's. It started."""
    words = command(
        *GRPO,
        *ADAPTERS,
        f"{ARR}.model.path=Qwen/Qwen2.5-3B-Instruct",
        f"{ARR}.rollout.gpu_memory_utilization=0.1",
        f"{ARR}.rollout.tensor_model_parallel_size=1",
        f"{ARR}.rollout.max_model_len=1536",
        f"{ARR}.rollout.max_num_batched_tokens=1536",
        "trainer.n_gpus_per_node=1",
    )
    at = words.index("--") + 1
    for front, starts in (([], False), (["VLLM_ATTENTION_BACKEND=XFORMERS"], True)):
        done = run("estimate", "--framework-version", "0.4.1", "--gpu", "H100-80GB", *words[:at], *front, *words[at:])
        assert ("does not start" not in done.stdout) is starts, done.stdout[:3000]
