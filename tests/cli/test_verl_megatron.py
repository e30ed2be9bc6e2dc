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


def test_overrides_that_repeat_the_model_change_nothing() -> None:
    at = f"+{ARR}.actor.megatron.override_transformer_config."
    repeated = ["normalization=RMSNorm", "gated_linear_unit=True", "add_bias_linear=False", "sequence_parallel=True", "bf16=True"]
    mindspeed = ["swiglu=True", "use_fused_swiglu=True", "use_fused_rmsnorm=True", "use_distributed_optimizer=True"]
    mindspeed.append("context_parallel_algo=kvallgather_cp_algo")
    words = [at + word for word in repeated + mindspeed]
    assert worst(*words) == worst()
    done = run("read", "--framework-version", "0.10.0", *command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, *words))
    assert done.stderr.count("an argument of MindSpeed") == len(mindspeed), done.stderr
    for other in ("normalization=LayerNorm", "add_bias_linear=True", "sequence_parallel=False", "swiglu=False"):
        done = run(
            "check",
            "--framework-version",
            "0.9.0",
            *command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, at + other),
        )
        key = other.split("=")[0]
        assert f"not supported yet: override_transformer_config.{key}" in done.stderr, other


def test_a_reference_of_the_asynchronous_trainer_goes_over_what_it_takes_from_its_queue() -> None:
    """data.train_batch_size is 0 there: ppo_mini_batch_size x async_training.require_batches prompts."""
    words = [
        "--config-name=fully_async_ppo_megatron_trainer.yaml",
        *MEGATRON,
        f"{ARR}.actor.use_kl_loss=True",
        f"{ARR}.actor.ppo_mini_batch_size=64",
        f"{ARR}.rollout.n=8",
        f"{ARR}.actor.megatron.pipeline_model_parallel_size=2",
        f"{ARR}.hybrid_engine=False",
        "data.train_batch_size=0",
        "data.gen_batch_size=1",
        "async_training.require_batches=2",
        "rollout.nnodes=1",
        "rollout.n_gpus_per_node=8",
    ]
    module = "verl.experimental.fully_async_policy.fully_async_main"
    done = run("read", "--framework-version", "0.10.0", *command("--config-path=config", *words, module=module))
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["sequences_per_step"] == "1k"  # 64 x 2 x 8
    done = run("check", "--framework-version", "0.10.0", *command("--config-path=config", *words, module=module))
    assert done.returncode in (0, 1), done.stderr


@pytest.mark.parametrize("stages", [1, 2])
def test_supervised_training_has_the_micro_batches_of_its_batch(stages: int) -> None:
    words = [
        "engine=megatron",
        "model.path=Qwen/Qwen3-8B",
        f"engine.pipeline_model_parallel_size={stages}",
        "data.train_batch_size=64",
        "data.use_dynamic_bsz=False",
        "data.micro_batch_size_per_gpu=2",
        "data.max_length=4096",
    ]
    program = ["--", "torchrun", "--nproc-per-node", "8", "--nnodes", "1", "-m", "verl.trainer.sft_trainer"]
    done = run("read", "--framework-version", "0.9.0", *program, *words)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["trainer"]["micro_batches"] == 64 // (8 // stages) // 2


@pytest.mark.parametrize(
    ("release", "maker", "core", "loss"),
    [
        ("0.4.0", "verl", "0.12", "verl_undivided"),
        ("0.4.1", "verl", "0.12", "verl_undivided"),
        ("0.5.0", "verl", "0.12", "verl_undivided"),
        ("0.6.1", "verl", "0.16", "unfused"),
        ("0.7.1", "mbridge", "0.16", "unfused"),
    ],
)
def test_megatron_of_the_release(release: str, maker: str, core: str, loss: str) -> None:
    """The files of 0.7 are the first with use_mbridge on."""
    actor = written(*MEGATRON, release=release)["actor"]
    assert (actor["models_by"], str(actor["core_release"]), actor["cross_entropy"]) == (maker, core, loss)


def test_models_that_verl_makes_itself_have_its_settings() -> None:
    routed = [word.replace("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3") for word in MEGATRON]
    own, bridge = (
        {**written(*routed, f"{ARR}.actor.megatron.use_mbridge={on}", release="0.7.1")["actor"]} for on in (False, True)
    )
    assert (own["router_dtype"], own["router_aux_loss"]) == ("fp64", True)
    assert (bridge["router_dtype"], bridge["router_aux_loss"]) == ("bf16", False)
    old = written(*routed, f"+{ARR}.actor.megatron.override_transformer_config.moe_router_dtype=fp32", release="0.4.1")["actor"]
    assert old["router_dtype"] == "fp32"


FULL = [
    f"{ARR}.model.gradient_checkpointing_kwargs.activations_checkpoint_{word}" for word in ("granularity", "method", "num_layers")
]


@pytest.mark.parametrize(
    ("switch", "override", "recompute"),
    [("True", [], "full"), ("False", [], "none"), ("False", ["full"], "full"), ("True", ["selective"], "full")],
)
def test_recomputation_of_0_4_is_asked_for_by_the_model(switch: str, override: list[str], recompute: str) -> None:
    """verl/single_controller/base/megatron/worker.py: with the switch the model's words are written over the overrides."""
    words = [f"{key}={value}" for key, value in zip(FULL, ("full", "uniform", "1"))]
    prefix = f"+{ARR}.actor.megatron.override_transformer_config.recompute_"
    more = [f"{prefix}granularity={word}" for word in override]
    if override == ["full"]:
        more += [f"{prefix}method=uniform", f"{prefix}num_layers=1"]
    job = written(*MEGATRON, *words, f"{ARR}.model.enable_gradient_checkpointing={switch}", *more, release="0.4.1")
    assert job["actor"]["recompute"] == recompute


@pytest.mark.parametrize(("release", "status"), [("0.4.0", 2), ("0.5.0", 2), ("0.6.1", 0)])
def test_an_entropy_in_the_loss_fails_in_verl_itself_before_0_6(release: str, status: int) -> None:
    """Executed: the entropy's backward pass finds logits that the log-probs have written over (verl #1970)."""
    words = command("--config-name=ppo_megatron_trainer.yaml", *MEGATRON, f"{ARR}.actor.entropy_coeff=0.01")
    done = run("check", "--framework-version", release, *words)
    assert (done.returncode == 2) == (status == 2), done.stderr
    if status:
        assert f"{ARR}.actor.entropy_coeff" in done.stderr
        assert "verl before 0.6 itself fails" in done.stderr


def test_padded_sequences_may_be_shared_out_by_their_tokens() -> None:
    """From 0.8 on (verl/models/mcore/util.py: preprocess_bshd_engine)."""
    padded = [f"{ARR}.model.use_remove_padding=False", f"{ARR}.actor.use_dynamic_bsz=False"]
    padded += [f"{ARR}.rollout.log_prob_use_dynamic_bsz=False", f"{ARR}.actor.ppo_micro_batch_size_per_gpu=2"]
    padded += [f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu=2"]
    halves = f"{ARR}.actor.megatron.context_parallel_size=2"
    actor = written(*MEGATRON, *padded, halves)["actor"]
    assert actor["sequences_per_micro_batch"] == 2
    assert "c2" in actor["layout"]
    assert worst(*padded, halves)["actor.backward"] < worst(*padded)["actor.backward"]
