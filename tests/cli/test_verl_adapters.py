"""Adapters under verl's Megatron: what they cost the actor, and what the servers get."""

from __future__ import annotations

import json

from test_verl import ARR, run

MEGATRON = [
    "--",
    "python3",
    "-m",
    "verl.trainer.main_ppo",
    "model_engine=megatron",
    "algorithm.adv_estimator=grpo",
    f"{ARR}.actor.use_kl_loss=True",
    f"{ARR}.actor.use_dynamic_bsz=True",
    f"{ARR}.rollout.name=vllm",
    f"{ARR}.rollout.log_prob_use_dynamic_bsz=True",
    f"{ARR}.actor.megatron.tensor_model_parallel_size=2",
    f"{ARR}.ref.log_prob_use_dynamic_bsz=True",
]
DENSE, EXPERTS = f"{ARR}.model.path=Qwen/Qwen3-8B", f"{ARR}.model.path=Qwen/Qwen3-30B-A3B"
APART = [f"{ARR}.actor.megatron.expert_model_parallel_size=4", f"{ARR}.actor.megatron.expert_tensor_parallel_size=1"]
LORA = [f"{ARR}.model.lora.rank=32"]


def phases(*words: str) -> dict[str, int]:
    done = run("estimate", "--framework-version", "0.10.0", "--gpu", "H100-80GB", "--json", *MEGATRON, *words)
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    out: dict[str, int] = {}
    for gpu in told["gpus"]:
        for phase in gpu["phases"]:
            out[phase["phase"]] = max(out.get(phase["phase"], 0), phase["capacity_needed_bytes"])
    return out


def test_adapters_alone_have_gradients_and_states() -> None:
    whole, adapted = phases(DENSE), phases(DENSE, *LORA)
    assert "ref.log_probs" in whole
    assert "ref.log_probs" not in adapted
    # of 8.19e9 parameters on two ranks, masters and states shared by four, there is no fp32 gradient, master or state, and no reference
    parameters = 8_190_735_360 / 2
    assert abs(whole["actor.optimizer"] - adapted["actor.optimizer"] - parameters * (4 + 12 / 4 + 2)) < 0.03 * parameters * 9


def test_experts_have_adapters_too() -> None:
    attention = f"{ARR}.model.lora.target_modules=[linear_qkv,linear_proj]"
    every, some = phases(EXPERTS, *APART, *LORA), phases(EXPERTS, *APART, *LORA, attention)
    assert some["actor.backward"] < every["actor.backward"]
    # what every expert gets travels, twice on the servers
    assert some["rollout.receive_weights"] < every["rollout.receive_weights"]
