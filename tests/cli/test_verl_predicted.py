"""Multi-token prediction under verl: blocks that the actor trains, and servers that guess ahead with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from test_verl import ARR, command, run

MTP = f"{ARR}.model.mtp"
MIMO = [
    "--config-name=ppo_megatron_trainer.yaml",
    "algorithm.adv_estimator=grpo",
    f"{ARR}.model.path=XiaomiMiMo/MiMo-7B-RL",
    f"{ARR}.rollout.tensor_model_parallel_size=4",
    f"{ARR}.actor.ppo_micro_batch_size_per_gpu=1",
    f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu=1",
    f"{ARR}.ref.log_prob_micro_batch_size_per_gpu=1",
    f"{ARR}.actor.use_kl_loss=True",
    f"{ARR}.actor.megatron.tensor_model_parallel_size=2",
    f"{ARR}.actor.megatron.pipeline_model_parallel_size=2",
]
TRAINED = [f"{MTP}.enable=True", f"{MTP}.enable_train=True", f"{MTP}.detach_encoder=True"]
VLLM, SGLANG = f"{ARR}.rollout.name=vllm", f"{ARR}.rollout.name=sglang"
AHEAD = f"{MTP}.enable_rollout=True"
ASKED = ("--framework-version", "0.10.0", "--gpu", "H100-80GB")


def written(*overrides: str, release: str = "0.10.0") -> dict[str, Any]:
    done = run("read", "--framework-version", release, *command(*MIMO, *overrides))
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


def estimated(*overrides: str) -> dict[str, Any]:
    done = run("estimate", "--json", *ASKED, *command(*MIMO, *overrides))
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def of_last_stage(told: dict[str, Any], phase: str) -> int:
    return max(int(p["capacity_needed_bytes"]) for group in told["gpus"][1:] for p in group["phases"] if p["phase"] == phase)


@pytest.mark.parametrize("release", ["0.8.0", "0.9.0", "0.10.0"])
def test_the_actor_alone_has_the_block(release: str) -> None:
    job = written(VLLM, *TRAINED, release=release)
    assert job["actor"]["mtp_layers"] == 1
    assert job["ref"]["mtp_layers"] == 0
    assert job["rollout"]["draft_tokens"] == "none"
    assert written(VLLM, release=release)["actor"]["mtp_layers"] == 0


def test_the_last_stage_has_the_block_and_runs_it_in_every_pass() -> None:
    without, told = estimated(VLLM), estimated(VLLM, *TRAINED)
    for phase in ("actor.load", "actor.log_probs", "actor.backward", "actor.optimizer"):
        assert of_last_stage(told, phase) > of_last_stage(without, phase), phase
    assert of_last_stage(told, "ref.log_probs") < of_last_stage(told, "actor.log_probs")


def test_fused_kernels_are_off_beside_it() -> None:
    fused = f"{ARR}.model.use_fused_kernels=True"
    assert written(VLLM, fused)["actor"]["cross_entropy"] == "verl_fused"
    job = written(VLLM, fused, *TRAINED)
    assert job["actor"]["cross_entropy"] == "unfused"


def test_servers_guess_ahead() -> None:
    vllm = written(VLLM, *TRAINED, AHEAD, f"{MTP}.num_speculative_tokens=2")["rollout"]
    assert (vllm["draft_tokens"], vllm["sleep"]) == (2, 1)


@pytest.mark.parametrize("gpu", ["A100-80GB", "a100-80gb", "A100"])
def test_what_is_refused_does_not_hang_on_how_the_gpu_is_spelled(gpu: str) -> None:
    words = command(*MIMO, SGLANG, *TRAINED, AHEAD)
    done = run("check", "--framework-version", "0.8.0", "--gpu", gpu, *words)
    assert done.returncode == 2, done.stdout
    assert "graphs of SGLang's drafts on A100" in done.stderr


def test_a_block_that_is_not_trained_has_weights_and_states_and_does_not_run() -> None:
    idle = [f"{MTP}.enable=True", f"{MTP}.enable_train=False"]
    assert (written(VLLM, *idle)["actor"]["mtp_layers"], written(VLLM, *idle)["actor"]["mtp_runs"]) == (1, False)
    without, told, trained = estimated(VLLM), estimated(VLLM, *idle), estimated(VLLM, *TRAINED)
    assert of_last_stage(told, "actor.load") == of_last_stage(trained, "actor.load") > of_last_stage(without, "actor.load")
    assert of_last_stage(told, "actor.backward") < of_last_stage(trained, "actor.backward")


def drafts_of(told: dict[str, Any], phase: str) -> dict[str, int]:
    sites = [s for p in told["gpus"][0]["phases"] if p["phase"] == phase for s in p["composition"]]
    return {s["name"]: int(s["bytes"]) for s in sites if "draft" in s["name"]}


def test_drafts_of_sglang_sleep_with_it() -> None:
    rollout = written(SGLANG, *TRAINED, AHEAD)["rollout"]
    assert (rollout["sleep"], rollout["draft_tokens"], rollout["draft_steps"], rollout["draft_branches"]) == (1, 4, 3, 1)


QWEN35 = [
    f"{ARR}.model.path=Qwen/Qwen3.5-9B",
    f"{ARR}.model.use_remove_padding=True",
    f"{ARR}.actor.megatron.tensor_model_parallel_size=4",
]
OF_SGLANG = f"+{ARR}.rollout.engine_kwargs.sglang"
WITHOUT_RADIX = [f"{OF_SGLANG}.disable_radix_cache=True", f"{OF_SGLANG}.max_running_requests=64"]


def test_drafts_beside_recurrent_states_need_the_radix_cache_off() -> None:
    words = [*MIMO, *QWEN35, SGLANG, f"{MTP}.enable=True", AHEAD]
    done = run("check", *ASKED, *command(*words))
    assert done.returncode == 2, done.stdout
    assert "SGLang itself refuses drafts beside recurrent states with its radix cache" in done.stderr
    job = written(*QWEN35, SGLANG, f"{MTP}.enable=True", AHEAD, *WITHOUT_RADIX)
    assert (job["rollout"]["share_prompts"], job["rollout"]["max_running_requests"]) == (False, 64)


@pytest.mark.parametrize(
    ("release", "backend", "is_flashinfer"), [("0.10.0", "", True), ("0.10.0", "fa3", False), ("0.9.0", "", False)]
)
def test_sglang_attends_as_verl_asks_it_to(release: str, backend: str, is_flashinfer: bool) -> None:
    said = [f"{OF_SGLANG}.attention_backend={backend}"] if backend else []
    assert written(SGLANG, *said, release=release)["rollout"]["flashinfer_attention"] is is_flashinfer


def test_a_block_that_is_computed_again_fails_on_the_release_that_is_installed() -> None:
    full = [f"+{ARR}.actor.megatron.override_transformer_config.recompute_{k}" for k in ("method=uniform", "num_layers=1")]
    full.append(f"+{ARR}.actor.megatron.override_transformer_config.recompute_granularity=full")
    said = "itself fails where blocks of multi-token prediction are computed again"
    assert any(said in note["text"] for note in estimated(VLLM, *TRAINED, *full)["notes"])
    assert not any(said in note["text"] for note in estimated(VLLM, *TRAINED)["notes"])
