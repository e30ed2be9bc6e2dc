"""Megatron under verl: its fused kernels, and what the reference has in common with the actor."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from test_verl import ARR, FUSED, MEGATRON, command, run

OWN_CRITIC = ["algorithm.adv_estimator=gae", "critic.model.path=Qwen/Qwen3-8B", "critic.ppo_micro_batch_size_per_gpu=1"]


def written(*overrides: str, release: str = "0.9.0") -> dict[str, Any]:
    done = run("read", "--framework-version", release, *command("--config-name=ppo_megatron_trainer.yaml", *overrides))
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


def worst(*overrides: str) -> dict[str, int]:
    """The most that a GPU needs in every phase, in bytes."""
    words = command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, *overrides)
    done = run("estimate", "--json", "--framework-version", "0.9.0", "--gpu", "H100-80GB", *words)
    assert done.returncode in (0, 1), done.stderr
    out: dict[str, int] = {}
    for group in json.loads(done.stdout)["gpus"]:
        for phase in group["phases"]:
            out[phase["phase"]] = max(out.get(phase["phase"], 0), phase["capacity_needed_bytes"])
    return out


@pytest.mark.parametrize(
    ("release", "reference"),
    [("0.6.1", "unfused"), ("0.7.1", "unfused"), ("0.8.0", "verl_fused"), ("0.10.0", "verl_fused")],
)
def test_fused_kernels_of_the_release(release: str, reference: str) -> None:
    """Up to 0.7 a reference's configuration has no such key."""
    job = written(*MEGATRON, FUSED, f"{ARR}.actor.use_kl_loss=True", release=release)
    assert job["actor"]["cross_entropy"] == "verl_fused"
    assert job["ref"]["cross_entropy"] == reference


def test_fused_kernels_want_no_backend_and_leave_critics_alone() -> None:
    job = written(
        *MEGATRON[1:],
        *OWN_CRITIC,
        FUSED,
        "critic.model.use_fused_kernels=True",
        f"{ARR}.model.fused_kernel_options.impl_backend=null",
    )
    assert job["actor"]["cross_entropy"] == "verl_fused"
    assert job["critic"]["cross_entropy"] == "unfused"


def test_an_entropy_by_chunks_is_not_asked_for() -> None:
    entropy = [f"{ARR}.actor.entropy_coeff=0.01", f"{ARR}.actor.entropy_from_logits_with_chunking=True"]
    assert written(*MEGATRON, FUSED, *entropy)["actor"]["entropy_loss"] is True
    done = run("read", "--framework-version", "0.9.0", *command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, *entropy))
    assert done.returncode == 2
    assert "entropy in chunks under Megatron" in done.stderr


def test_fused_kernels_make_no_logits() -> None:
    """Plain: fp32 logits, their copy and softmax in passes that make an entropy."""
    plain, fused = worst(), worst(FUSED)
    for phase in ("actor.log_probs", "actor.forward", "actor.backward"):
        assert fused[phase] < plain[phase], phase
    logits = 4 * 16384 * 151936 // 4  # of a rank
    assert plain["actor.log_probs"] - fused["actor.log_probs"] > logits


def test_fused_kernels_take_multiples_of_128_columns() -> None:
    one = [*MEGATRON, FUSED, f"{ARR}.actor.megatron.tensor_model_parallel_size=1"]
    small = f"{ARR}.model.path=Qwen/Qwen2-0.5B"  # 896 columns
    assert written(*one, small)["actor"]["cross_entropy"] == "verl_fused"
    odd = f"{ARR}.model.path=HuggingFaceTB/SmolLM2-135M"  # 576
    words = command("--config-name=ppo_megatron_trainer.yaml", *one, odd)
    done = run("estimate", "--framework-version", "0.9.0", "--gpu", "H100-80GB", *words)
    assert done.returncode == 2
    assert "multiples of 128" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("release", "key", "status"),
    [
        ("0.6.1", "model.use_remove_padding", 0),  # always packed
        ("0.7.1", "actor.megatron.use_remove_padding", 2),
        ("0.7.1", "model.use_remove_padding", 0),
        ("0.9.0", "actor.megatron.use_remove_padding", 0),  # overwritten by the model's
        ("0.9.0", "model.use_remove_padding", 2),
    ],
)
def test_padded_sequences_are_refused_by_the_key_that_the_release_reads(release: str, key: str, status: int) -> None:
    dynamic = [f"{ARR}.actor.use_dynamic_bsz=True", f"{ARR}.rollout.log_prob_use_dynamic_bsz=True"]
    words = command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, *dynamic, f"{ARR}.{key}=False")
    done = run("read", "--framework-version", release, *words)
    assert done.returncode == status, done.stderr
    if status:
        assert f"{ARR}.{key}: found 'false': not supported yet: padded sequences under Megatron" in done.stderr


@pytest.mark.parametrize(
    ("release", "key"),
    [
        ("0.7.1", "actor.megatron.use_remove_padding"),
        ("0.9.0", "model.use_remove_padding"),
        ("0.10.0", "model.use_remove_padding"),
    ],
)
def test_padded_sequences_fill_micro_batches_by_their_number(release: str, key: str) -> None:
    static = [f"{ARR}.actor.use_dynamic_bsz=False", f"{ARR}.rollout.log_prob_use_dynamic_bsz=False"]
    counts = [f"{ARR}.actor.ppo_micro_batch_size_per_gpu=2", f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu=2"]
    fused = [FUSED] if release != "0.7.1" else []
    actor = written(*MEGATRON, *static, *counts, *fused, f"{ARR}.{key}=False", release=release)["actor"]
    assert (actor["sequences_per_micro_batch"], actor["sequence_tokens"]) == (2, "1k")
    assert actor["cross_entropy"] == "unfused"  # fused kernels want packed sequences


def test_predicted_tokens_under_megatron_are_refused() -> None:
    words = command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, f"{ARR}.model.mtp.enable=True")
    done = run("read", "--framework-version", "0.10.0", *words)
    assert done.returncode == 2
    assert f"{ARR}.model.mtp.enable: found 'true': not supported yet: multi-token prediction" in done.stderr, done.stderr


def test_unknown_overrides_are_told_once_and_those_of_the_reference_too() -> None:
    fp8 = "megatron.override_transformer_config.fp8"

    def told(*overrides: str) -> str:
        words = command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, f"{ARR}.actor.use_kl_loss=True", *overrides)
        done = run("read", "--framework-version", "0.10.0", *words)
        assert done.returncode == 2, done.stdout
        return done.stderr

    assert told(f"+{ARR}.actor.{fp8}=hybrid").count("not supported yet") == 1
    # allowed to the actor, and the reference alone has another value
    other = told(f"+{ARR}.actor.{fp8}=False", f"{ARR}.ref.megatron.override_transformer_config={{fp8:hybrid}}")
    assert f"{ARR}.ref.{fp8}" in other


def exchange(**settings: object) -> list[str]:
    """Experts on eight ranks, and what the command says of their exchange."""
    experts = [
        *[word.replace("Qwen3-8B", "Qwen3-30B-A3B") for word in MEGATRON],
        f"{ARR}.actor.megatron.expert_model_parallel_size=8",
        f"{ARR}.actor.megatron.expert_tensor_parallel_size=1",
        f"{ARR}.actor.use_kl_loss=True",
        "trainer.n_gpus_per_node=8",
    ]
    config = f"+{ARR}.actor.megatron.override_transformer_config"
    return [*experts, *[f"{config}.{key}={value}" for key, value in settings.items()]]


FLEX = {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True, "moe_router_dtype": "fp32", "moe_permute_fusion": True}


def test_tokens_that_deepep_exchanges() -> None:
    job = written(*exchange(**FLEX, moe_deepep_num_sms=24), release="0.10.0")
    for role in ("actor", "ref"):
        assert job[role]["dispatcher"] == "flex"
        assert job[role]["deepep_num_sms"] == 24
    assert written(*exchange(**FLEX), release="0.10.0")["actor"]["deepep_num_sms"] == 20
    words = command("--config-name=ppo_megatron_trainer.yaml", *exchange(**FLEX))
    told = run("explain", "--framework-version", "0.10.0", "--gpu", "H100-80GB", *words)
    assert told.returncode in (0, 1), told.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"moe_enable_deepep": True}, "moe_token_dispatcher_type=flex beside moe_enable_deepep"),
        (FLEX | {"moe_flex_dispatcher_backend": "hybridep"}, "moe_flex_dispatcher_backend"),
        (FLEX | {"moe_deepep_num_sms": 21}, "an even number"),
        (FLEX | {"moe_shared_expert_overlap": True}, "the shared experts overlap with this dispatcher only"),
    ],
)
def test_what_an_exchange_by_deepep_cannot_be(settings: dict[str, object], message: str) -> None:
    words = command("--config-name=ppo_megatron_trainer.yaml", *exchange(**settings))
    done = run("estimate", "--framework-version", "0.10.0", "--gpu", "H100-80GB", *words)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr


def test_deepep_serves_no_single_rank() -> None:
    alone = [word.replace("expert_model_parallel_size=8", "expert_model_parallel_size=1") for word in exchange(**FLEX)]
    done = run("estimate", "--framework-version", "0.10.0", *command("--config-name=ppo_megatron_trainer.yaml", *alone))
    assert done.returncode == 2 and "several ranks that share or split the experts" in done.stderr, done.stdout


def test_stages_of_the_reference_are_the_actors() -> None:
    uneven = [
        f"{ARR}.actor.megatron.tensor_model_parallel_size=1",
        f"{ARR}.actor.megatron.pipeline_model_parallel_size=8",
        f"+{ARR}.actor.megatron.override_transformer_config.num_layers_in_first_pipeline_stage=3",
        f"+{ARR}.actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=3",
        f"{ARR}.actor.use_kl_loss=True",
    ]
    for release in ("0.7.0", "0.10.0"):
        job = written(*MEGATRON, *uneven, release=release)
        for role in ("actor", "ref"):
            assert (job[role]["first_stage_layers"], job[role]["last_stage_layers"]) == (3, 3), role


def test_a_degree_that_the_layout_has_anyway_changes_nothing() -> None:
    """Scripts for NPUs write it among the overrides; another one than the layout's is refused."""
    at = f"+{ARR}.actor.megatron.override_transformer_config."
    assert worst(f"{at}context_parallel_size=1") == worst()
    # without a degree of its own an expert is split as the layers are: 1 is another one
    split = run(
        "check",
        "--framework-version",
        "0.9.0",
        *command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, f"{at}expert_tensor_parallel_size=1"),
    )
    assert split.returncode == 2
    done = run(
        "check",
        "--framework-version",
        "0.9.0",
        *command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, f"{at}context_parallel_size=2"),
    )
    assert done.returncode == 2
    assert "not supported yet: override_transformer_config.context_parallel_size" in done.stderr
