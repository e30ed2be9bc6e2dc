"""Makes tests/data/executed_slime_layers.jsonl: steps of models whose layers slime brings itself (--spec), executed.

    python benchmarks/oracle/execute_slime_layers.py --core MEGATRON --te TRANSFORMER_ENGINE --fla FLASH_LINEAR_ATTENTION
        --slime SLIME [--release 0.4.0] [--output tests/data/executed_slime_layers.jsonl] [--only N...]

Needs torch, transformers 5.10, einops, the Megatron-LM that slime installs (1dcf0dafa with docker/patch/latest/megatron.patch of
slime 624b824a), the Python of Transformer Engine 2.17.1, flash-linear-attention 0.4.2 and slime 624b824a (their sources are
enough); no GPU. executed_slime_layers_0_2.jsonl is of slime 0.2.1 on core_v0.14.0, of 0.2.2 and 0.2.4 on 3714d81d, with the patch of
each (0.2.1: GLM-4 alone, run by run with --only). Whole steps run on the CPU as one rank of PyTorch's fake process group: slime's
specifications of layers (slime_plugins/models) in Megatron's GPTModel, called as slime calls it: packed sequences, no positions, no
mask. The loss is the model's own, unfused. Passes without gradients run in evaluation mode, as slime's do.

Stood in for is what megatron_te.py says, kernels of flash-linear-attention as in execute_megatron_linear.py, and attention: of one
rank as flash-attention's for packed sequences, of several that share out tokens as in execute_megatron_linear_context.py. Every
gradient goes as soon as it has been added up. A line: the settings, parameters of the rank, and `peaks` of forward and backward
above what lives when a step is over.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import types
import typing
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import execute_megatron_linear as linear
import execute_megatron_linear_context as context
import execute_megatron_vision as vision
import megatron_te
import torch
import transformers
import typing_extensions
from execute import ROOT, Row
from torch.utils._python_dispatch import _disable_current_modes
from verl_megatron_step import execute

BASE: Row = {
    "kind": "qwen3_5",
    "layers": 4,
    "hidden": 192,
    "heads": 8,
    "groups": 2,
    "head_dim": 64,
    "ffn": 384,
    "vocab": 1024,
    "key_heads": 4,
    "value_heads": 8,
    "key_dim": 32,
    "value_dim": 32,
    "experts": 0,
    "experts_per_token": 2,
    "expert_ffn": 96,
    "shared_ffn": 96,
    "sequences": 1,
    "tokens": 256,
    "tensor": 1,
    "sequence_parallel": False,
    "context": 1,
    "expert": 1,
    "recompute": "none",
    "fused": True,
    "gradients": True,
}
SPLIT: Row = {"tensor": 2, "sequence_parallel": True}
UNIFORM: Row = {"recompute": "full"}
PASSES: Row = {"gradients": False}
CONTEXT: Row = {"context": 2}
TWO: Row = {"sequences": 2}
MOE: Row = {"kind": "qwen3_5_moe", "experts": 8}
NEXT: Row = {"kind": "qwen3_next", "experts": 8}
WIDE: Row = {"key_dim": 64, "value_dim": 64, "tokens": 512, "vocab": 256}
LARGE: Row = {"vocab": 8192}  # the heads have the highest levels
ONE_HEAD: Row = {"value_heads": 4}
SOME: list[Row] = [
    {},
    SPLIT | UNIFORM,
    SPLIT | CONTEXT | UNIFORM,
    SPLIT | PASSES,
    SPLIT | CONTEXT,
    UNIFORM | {"layers": 8},
]
EVERYWHERE: list[Row] = [
    *SOME,
    SPLIT,
    UNIFORM,
    PASSES,
    CONTEXT,
    CONTEXT | UNIFORM,
    SPLIT | CONTEXT | PASSES,
    TWO,
    SPLIT | CONTEXT | TWO | UNIFORM,
    ONE_HEAD,
    SPLIT | ONE_HEAD | UNIFORM,
    {"vocab": 8192},
    {"fused": False},
    WIDE | SPLIT | UNIFORM,
    WIDE | CONTEXT,
]
# norms behind both halves and turned neighbours; norms of all heads together; a block of multi-token prediction that is trained
GLM: Row = {"kind": "glm4", "heads": 8, "groups": 2, "head_dim": 32, "hidden": 256}
MINIMAX: Row = {"kind": "minimax_m2", "groups": 4, "head_dim": 32, "hidden": 256, "experts": 8, "shared_ffn": 0}
MIMO: Row = {"kind": "mimo", "groups": 4, "head_dim": 32, "hidden": 256, "mtp": 1}
NORMS: list[Row] = [{}, SPLIT, SPLIT | UNIFORM, UNIFORM, CONTEXT, SPLIT | CONTEXT | UNIFORM, SPLIT | PASSES, TWO]
HEADS: list[Row] = [{}, SPLIT, UNIFORM, SPLIT | UNIFORM, LARGE, SPLIT | LARGE | UNIFORM, SPLIT | PASSES, CONTEXT | UNIFORM]
REPLAY: Row = {"replay": True}
RUNS: list[Row] = [
    *EVERYWHERE,
    *(NEXT | run for run in [*SOME, ONE_HEAD, SPLIT | PASSES | UNIFORM]),
    *(MOE | run for run in [*SOME, SPLIT | PASSES | UNIFORM]),
    *(GLM | run for run in NORMS),
    *(MINIMAX | run for run in NORMS),
    *(MIMO | run for run in HEADS),
    *(MOE | REPLAY | run for run in ({}, SPLIT, SPLIT | UNIFORM, SPLIT | CONTEXT | UNIFORM)),
]


def older_runs(slime: Path) -> list[Row]:
    """Those whose layers an older slime has."""
    modules = {"qwen3_5": "qwen3_5", "qwen3_5_moe": "qwen3_5", "qwen3_next": "qwen3_next", "glm4": "glm4"}
    has = {kind for kind, name in modules.items() if (slime / f"slime_plugins/models/{name}.py").exists()}
    return [run for run in RUNS if run.get("kind", "qwen3_5") in has and not run.get("replay")]


def complete(run: Row) -> Row:
    """Experts are shared out among all ranks."""
    out = {**BASE, **run}
    if out["experts"]:
        out["expert"] = out["tensor"] * out["context"]
    return out


class Attention(vision.DotProductAttention):
    """Transformer Engine's, of packed sequences that several ranks may share out."""

    ranks = 1

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        if Attention.ranks == 1:
            return super().forward(q, k, v, *given, **named)
        rows = (x.unsqueeze(1) for x in (q.contiguous(), k.contiguous(), v.contiguous()))
        out = context.Ring.apply(*rows, Attention.ranks)
        return out.view(out.shape[0], -1)


def prepare(given: argparse.Namespace) -> None:
    for name in ("qwen3_5", "qwen3_5_moe", "qwen3_next"):  # before there is a package that they would look at
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    for name in ("override", "Self"):
        if not hasattr(typing, name):  # Python 3.11 and before
            setattr(typing, name, getattr(typing_extensions, name))
    sys.path.insert(0, str(given.core))
    for name in ("slime", "slime.utils", "slime_plugins", "slime_plugins.models"):
        vision.without_init(name, given.slime)
    if not hasattr(torch, "get_current_dtype"):  # slime 0.2 asks for it where a config.json has no dtype
        torch.get_current_dtype = torch.get_default_dtype  # type: ignore[attr-defined]
    accelerator = types.ModuleType("slime.utils.accelerator")
    accelerator.current_device = accelerator.device = lambda: "cpu"  # type: ignore[attr-defined]
    sys.modules[accelerator.__name__] = sys.modules["slime.utils"].accelerator = accelerator  # type: ignore[attr-defined]
    megatron_te.DotProductAttention = Attention  # type: ignore[assignment,misc]
    megatron_te.stand_in(given.te)
    from megatron.core.models.common.embeddings import rope_utils

    rope_utils.fused_apply_rotary_pos_emb_thd = megatron_te.rotary
    linear.install_fla(given.fla)
    modules = sys.modules["fla.modules"]
    modules.FusedRMSNormGated = importlib.import_module("fla.modules.fused_norm_gate").FusedRMSNormGated  # type: ignore[attr-defined]
    modules.ShortConvolution = importlib.import_module("fla.modules.convolution").ShortConvolution  # type: ignore[attr-defined]
    linear.use_permutation()
    torch.distributed.all_gather = linear.gathered
    roll_within_vocabulary()
    torch.tensor = context.without_pins(torch.tensor)  # type: ignore[assignment]


def roll_within_vocabulary() -> None:
    """Tokens that come from another rank of a context are nobody's."""
    from megatron.core.models.gpt import gpt_model
    from megatron.core.transformer import multi_token_prediction as predicted

    roll = predicted.roll_tensor

    def rolled(tensor: torch.Tensor, *given: Any, **named: Any) -> Any:
        out = roll(tensor, *given, **named)
        with _disable_current_modes(), torch.no_grad():
            out[0].zero_()
        return out

    predicted.roll_tensor = gpt_model.roll_tensor = rolled


def stand_in_gate() -> None:
    """What megatron/core/jit.py compiles of attention."""
    from megatron.core.transformer import attention

    def output_gate(_self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a * torch.sigmoid(b.contiguous().reshape(a.shape).float())).to(a.dtype)

        return linear.compiled(run, x, gate)

    attention.Attention._apply_output_gate = output_gate


def hf_config(run: Row) -> Any:
    if run["kind"] != "qwen3_next":
        return linear.hf_config({**vision.BASE, **run})
    return transformers.AutoConfig.for_model(
        "qwen3_next",
        num_hidden_layers=run["layers"],
        hidden_size=run["hidden"],
        rms_norm_eps=1e-6,
        linear_num_key_heads=run["key_heads"],
        linear_num_value_heads=run["value_heads"],
        linear_key_head_dim=run["key_dim"],
        linear_value_head_dim=run["value_dim"],
        linear_conv_kernel_dim=4,
    )


def transformer_config(run: Row) -> Any:
    """core_transformer_config_from_args of the flags in slime's scripts/models."""
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import TransformerConfig

    linear_layers = run["kind"].startswith("qwen3_")
    fields: Row = {
        "num_layers": run["layers"],
        "hidden_size": run["hidden"],
        "num_attention_heads": run["heads"],
        "num_query_groups": run["groups"],
        "kv_channels": run["head_dim"],
        "ffn_hidden_size": run["ffn"],
        "normalization": "RMSNorm",
        "rotary_interleaved": run["kind"] == "glm4",
        "post_self_attn_layernorm": run["kind"] == "glm4",
        "post_mlp_layernorm": run["kind"] == "glm4",
        "add_qkv_bias": run["kind"] in ("glm4", "mimo"),
        "mtp_num_layers": run.get("mtp"),
        "layernorm_zero_centered_gamma": linear_layers,
        "attention_output_gate": linear_layers,
        "qk_layernorm": linear_layers or run["kind"] == "minimax_m2",
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "bias_activation_fusion": True,
        "bias_dropout_fusion": True,
        "apply_rope_fusion": run["kind"] not in ("glm4", "minimax_m2"),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "perform_initialization": False,
        "attention_backend": AttnBackend.flash,
        "gradient_accumulation_fusion": run["fused"],
        "deallocate_pipeline_outputs": True,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "tensor_model_parallel_size": run["tensor"],
        "context_parallel_size": run["context"],
        "sequence_parallel": run["sequence_parallel"],
    }
    if run["experts"]:
        fields |= {
            "num_moe_experts": run["experts"],
            "moe_ffn_hidden_size": run["expert_ffn"],
            "moe_router_topk": run["experts_per_token"],
            "moe_grouped_gemm": True,
            "moe_permute_fusion": True,
            "moe_router_dtype": "fp32",
            "moe_aux_loss_coeff": 0.0,
            "moe_shared_expert_intermediate_size": run["shared_ffn"] or None,
            "moe_shared_expert_gate": linear_layers and bool(run["shared_ffn"]),
            "expert_model_parallel_size": run["expert"],
            "expert_tensor_parallel_size": 1,
        }
    if run["kind"] == "minimax_m2":
        fields |= {
            "moe_router_score_function": "sigmoid",
            "moe_router_pre_softmax": True,
            "moe_router_enable_expert_bias": True,
            "moe_router_load_balancing_type": "none",
        }
    if run["recompute"] == "full":
        fields |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    known = TransformerConfig.__dataclass_fields__
    return TransformerConfig(**{name: value for name, value in fields.items() if value or name in known})


SPECIFICATIONS = {"glm4": ("glm4", "get_glm_spec"), "minimax_m2": ("minimax_m2", "get_minimax_m2_layer_spec")}


def spec_of(run: Row, config: Any) -> Any:
    args = SimpleNamespace(
        num_experts=run["experts"] or None,
        hf_checkpoint="",
        sequence_parallel=run["sequence_parallel"],
        qwen_gdn_backend="fla",
        transformer_impl="transformer_engine",
        moe_grouped_gemm=True,
        qk_layernorm=False,
        multi_latent_attention=False,
        moe_use_legacy_grouped_gemm=False,
        post_self_attn_layernorm=True,
        post_mlp_layernorm=True,
    )
    if run["kind"] in SPECIFICATIONS:
        name, function = SPECIFICATIONS[run["kind"]]
        return getattr(importlib.import_module(f"slime_plugins.models.{name}"), function)(args, config, None)
    if run["kind"] == "mimo":  # none of slime's (slime/backends/megatron_utils/model_provider.py)
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

        return get_gpt_layer_with_transformer_engine_spec()
    hf_attention = importlib.import_module("slime_plugins.models.hf_attention")
    name = "qwen3_next" if run["kind"] == "qwen3_next" else "qwen3_5"
    module = importlib.import_module(f"slime_plugins.models.{name}")
    hf_attention._load_hf_config = module._load_hf_config = lambda _path: hf_config(run)
    if run.get("release") == "0.2.2":  # it has no such function yet
        loaded = SimpleNamespace(from_pretrained=lambda *_path, **_named: hf_config(run))
        hf_attention.AutoConfig = module.AutoConfig = loaded
    return getattr(module, f"get_{name}_spec")(args, config, None)


def model_of(run: Row) -> Any:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
    from megatron.core.transformer.module import Float16Module

    megatron_te.Router.top = run["experts_per_token"]
    Attention.ranks = run["context"]
    stand_in_gate()
    os.environ["ENABLE_ROUTING_REPLAY"] = "1" if run.get("replay") else "0"
    importlib.import_module("slime.utils.routing_replay").RoutingReplay.all_routing_replays.clear()
    config = transformer_config(run)
    spec = spec_of(run, config)
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        mtp_block_spec=get_gpt_mtp_block_spec(config, spec, use_transformer_engine=True) if run.get("mtp") else None,
        vocab_size=run["vocab"],
        max_sequence_length=4096,
        position_embedding_type="rope",
        rotary_percent={"glm4": 0.5, "minimax_m2": 0.5, "mimo": 1.0}.get(run["kind"], 0.25),
        share_embeddings_and_output_weights=False,
    )
    whole = Float16Module(config, model)
    for module in whole.modules():
        if hasattr(module, "_maintain_float32_expert_bias"):
            module._maintain_float32_expert_bias()  # as the first forward pass does: a block of its own
    for parameter in whole.parameters():
        parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return whole.train(run["gradients"])


def replay(run: Row) -> None:
    """Routes that were recorded on the host (slime/utils/routing_replay.py); a layer that runs again reads them once more."""
    from slime.utils.routing_replay import RoutingReplay

    tokens = run["tokens"] // run["context"] // run["tensor"]
    for one in RoutingReplay.all_routing_replays:
        one.clear()
        choices = torch.arange(tokens * run["experts_per_token"]) % run["experts"]
        one.top_indices_list = [choices.view(tokens, -1)]  # int64: of int32 a copy to the same device would be none
    os.environ["ROUTING_REPLAY_STAGE"] = "replay_forward"


def loss_of(run: Row, model: Any) -> torch.Tensor:
    from megatron.core.packed_seq_params import PackedSeqParams

    if run.get("replay"):
        with _disable_current_modes():
            replay(run)

    local = run["tokens"] // run["context"]
    ids, labels = (torch.zeros(1, local, dtype=torch.int64) for _ in range(2))
    mask = torch.ones(1, local, dtype=torch.float32)
    each = run["tokens"] // run["sequences"]
    offsets = torch.arange(0, run["tokens"] + 1, each, dtype=torch.int32)
    packed = PackedSeqParams(cu_seqlens_q=offsets, cu_seqlens_kv=offsets, max_seqlen_q=each, max_seqlen_kv=each, qkv_format="thd")
    named: Row = {"input_ids": ids, "position_ids": None, "attention_mask": None}
    if not run.get("mtp"):
        loss = model(**named, labels=labels, packed_seq_params=packed, loss_mask=mask).sum()
        os.environ["ROUTING_REPLAY_STAGE"] = "replay_backward"
        return loss
    if run["gradients"]:
        named["mtp_kwargs"] = {"mtp_labels": ids}
    return own_loss(run, model(**named, labels=None, packed_seq_params=packed, loss_mask=mask), labels)


def own_loss(run: Row, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """get_log_probs_and_entropy (slime/backends/megatron_utils/loss.py); the entropy is a metric, and that of training."""
    from megatron.core import parallel_state
    from slime.utils import ppo_utils

    log_probs, _entropy = ppo_utils.calculate_log_probs_and_entropy(
        logits.squeeze(0).contiguous(),
        labels[0],
        parallel_state.get_tensor_model_parallel_group(),
        with_entropy=run["gradients"],
        with_entropy_grad=False,
    )
    return log_probs.squeeze(-1).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "fla", "slime"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_slime_layers.jsonl")
    parser.add_argument("--release", default="0.4.0", help="of slime; runs of an older one are added to the file")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    prepare(given)
    older = given.release != "0.4.0"
    chosen = [run | {"release": given.release} for run in older_runs(given.slime)] if older else RUNS
    runs = [complete(run) for run in chosen]
    if given.only:
        for number in given.only:
            print(json.dumps(execute(runs[number], model_of, loss_of)))
        return
    with given.output.open("a" if older else "w", encoding="utf-8") as file:
        for run in runs:
            print(json.dumps(execute(run, model_of, loss_of), separators=(",", ":")), file=file, flush=True)


if __name__ == "__main__":
    main()
