"""Makes tests/data/executed_megatron_linear.jsonl: steps of Qwen3.5 on Megatron-core as the bridges make it, executed.

    python benchmarks/oracle/execute_megatron_linear.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE --fla FLASH_LINEAR_ATTENTION [--output tests/data/executed_megatron_linear.jsonl] [--only N...]

Needs torch, transformers 5.10, einops, safetensors, megatron-core 0.18.0, the Python of Transformer Engine 2.17.1, mbridge 10cb17f,
Megatron-Bridge 0.5.2 and flash-linear-attention 0.5.0 (their sources are enough); no GPU. As execute_megatron_vision.py, with the
functions of flash-linear-attention around kernels that do nothing. Padded runs are called as verl's engine calls a model without
packing: padded ids, a mask of booleans, no packed_seq_params.

Experts are shared out among the ranks of the tensors.

Functions that torch.compile makes one kernel of (megatron/core/jit.py) keep what their gradients need. That around Transformer
Engine's norm breaks there: the norm runs as it is, and the gate behind it is the kernel. The one around flash-linear-attention's
l2norm runs operator by operator, which makes the same tensors. mbridge's tower is that of transformers, with PyTorch's flash kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_vision as vision
import megatron_te
import torch
import transformers
import triton_stub
from execute import ROOT, Row
from torch.utils._python_dispatch import _disable_current_modes

BASE: Row = {
    **vision.BASE,
    "bridge": "mbridge",
    "kind": "qwen3_5",
    "deepstack": [],
    "packed": False,
    "layers": 8,
    "heads": 8,
    "groups": 2,
    "head_dim": 64,
    "key_heads": 4,
    "value_heads": 8,
    "key_dim": 32,
    "value_dim": 32,
    "experts": 0,
    "experts_per_token": 2,
    "expert_ffn": 96,
    "shared_ffn": 96,
    "images": [],
}
SPLIT, UNIFORM, BLOCK, SELECTIVE, STAGE = vision.SPLIT, vision.UNIFORM, vision.BLOCK, vision.SELECTIVE, vision.STAGE
MOE: Row = {"kind": "qwen3_5_moe", "experts": 8}
BRIDGE: Row = {"bridge": "Megatron-Bridge"}
PACKED: Row = {"packed": True}
IMAGE: Row = {"images": [[12, 16]]}
PAIR: Row = {"images": [[12, 16], [12, 16]], "sequences": 2}
LARGE: Row = {"images": [[32, 48]], "tokens": 448, "vocab": 256}
TWO: Row = {"sequences": 2}
ONE_HEAD: Row = {"value_heads": 4}
LONG: Row = {"tokens": 1000, "vocab": 128}
FIVE_HUNDRED: Row = {"tokens": 512, "vocab": 128}
FOUR: Row = {"tensor": 4, "sequence_parallel": True}  # ranks for two groups of queries
EVERYWHERE: list[Row] = [
    {},
    SPLIT,
    UNIFORM,
    SPLIT | UNIFORM,
    BLOCK,
    SPLIT | SELECTIVE,
    TWO,
    SPLIT | TWO | UNIFORM,
    ONE_HEAD,
    LONG,
    SPLIT | LONG | UNIFORM,
    LONG | ONE_HEAD | UNIFORM,
    PACKED,
    PACKED | TWO,
    PACKED | SPLIT | TWO | UNIFORM,
    PACKED | LONG | UNIFORM,
    STAGE,
    SPLIT | STAGE | UNIFORM,
    {"fused": True},
]
WITH_IMAGES: list[Row] = [
    IMAGE,
    SPLIT | IMAGE,
    SPLIT | IMAGE | UNIFORM,
    PAIR,
    SPLIT | PAIR | UNIFORM,
    LARGE,
    SPLIT | LARGE | UNIFORM,
    PACKED | IMAGE,
    PACKED | SPLIT | PAIR | UNIFORM,
    SPLIT | STAGE | IMAGE | UNIFORM,
]
RUNS: list[Row] = [
    *(kind | run for kind in ({}, MOE) for run in [*EVERYWHERE, *WITH_IMAGES]),
    *(BRIDGE | kind | run for kind in ({}, MOE) for run in [*EVERYWHERE, *WITH_IMAGES]),
    *(
        bridge | kind | run
        for bridge in ({}, BRIDGE)
        for kind in ({}, MOE)
        for run in (FOUR, FOUR | FIVE_HUNDRED | UNIFORM, FOUR | PACKED | TWO)
    ),
]


class Kernels(torch.autograd.Function):
    """A compiled function of tensors alone: keeps its arguments, makes its results."""

    @staticmethod
    def forward(ctx: Any, function: Any, *args: Any) -> Any:
        ctx.save_for_backward(*args)
        ctx.set_materialize_grads(False)
        return results(function, args)

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        kept = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        return (
            None,
            *[
                torch.zeros_like(x, memory_format=torch.contiguous_format) if w else None
                for x, w in zip(kept, wanted, strict=True)
            ],
        )


def results(function: Any, args: Any) -> Any:
    with _disable_current_modes(), torch.no_grad():
        out = function(*args)
    for one in out if isinstance(out, tuple) else (out,):
        megatron_te.made(one)
    return out


def compiled(function: Any, *args: Any) -> Any:
    recorded = torch.is_grad_enabled() and any(a.requires_grad for a in args)
    return Kernels.apply(function, *args) if recorded else results(function, args)


class Attention(megatron_te.DotProductAttention):
    """Transformer Engine's: of packed sequences, or of sequences side by side, which flash-attention wants in front."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if q.dim() == 3:
            return vision.Flash.apply(q.contiguous(), k.contiguous(), v.contiguous()).view(q.shape[0], -1)
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = megatron_te.Attention.apply(q, k, v, False)
        return out.view(*out.shape[:2], -1)


def install_fla(sources: Path) -> None:
    """The package's modules around kernels that do nothing."""
    for word in ("exp2", "exp", "log", "log2", "math", "float32", "rsqrt", "get_int_dtype"):
        setattr(triton_stub.Kernel, word, triton_stub.Kernel)
    triton_stub.Kernel.arg_names = []
    sys.meta_path.insert(0, triton_stub.Finder())
    for name in ("fla", "fla.ops", "fla.modules", "fla.layers", "fla.models"):
        vision.without_init(name, sources)
    sys.modules["fla"].__version__ = "0.5.0"
    utils = importlib.import_module("fla.utils")
    utils.custom_device_ctx = lambda _: contextlib.nullcontext()
    utils.check_shared_mem = lambda *_, **__: True
    utils.get_multiprocessor_count = lambda *_, **__: 132
    for name in ("fla.modules.convolution", "fla.modules.l2norm", "fla.ops.gated_delta_rule"):
        importlib.import_module(name)
    for module in list(sys.modules.values()):
        for name in ("check_shared_mem", "get_multiprocessor_count"):
            if getattr(module, "__name__", "").startswith("fla.") and hasattr(module, name):
                setattr(module, name, getattr(utils, name))


def stand_in_kernels() -> None:
    """What megatron/core/jit.py compiles of these layers."""
    from megatron.core.ssm import gated_delta_net
    from megatron.core.transformer import attention

    net = gated_delta_net.GatedDeltaNet
    prepare = net._prepare_qkv_for_gated_delta_rule

    def gated_norm(self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        y = self.out_norm(x.reshape(-1, x.shape[-1]))
        rows = gate.reshape(-1, gate.shape[-1])
        return compiled(lambda a, b: (a * self.act_fn(b.float())).to(x.dtype), y, rows)

    def decay_and_beta(_self: Any, a_log: torch.Tensor, bias: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> Any:
        def run(*given: torch.Tensor) -> Any:
            log, shift, a, b = given
            return -log.exp() * torch.nn.functional.softplus(a.float() + shift), b.sigmoid()

        return compiled(run, a_log, bias, alpha, beta)

    def output_gate(_self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a * torch.sigmoid(b.contiguous().view(*a.shape).float())).to(a.dtype)

        return compiled(run, x, gate)

    net._apply_gated_norm, net._compute_g_and_beta = gated_norm, decay_and_beta
    net._prepare_qkv_for_gated_delta_rule = prepare.__wrapped__
    attention.Attention._apply_output_gate = output_gate


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """PyTorch's kernel on a GPU: keeps queries, keys, values, its output and a number a row and head in fp32."""

    def by_head(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)

    return by_head(OfTower.apply(q, k, v))


class LayerNorm(torch.autograd.Function):
    """PyTorch's on a GPU: two numbers a row in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows = x.shape[:-1]
        ctx.save_for_backward(x, weight, bias, torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.float32))
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:
        x, weight, bias, _mean, _scale = ctx.saved_tensors
        return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(bias)


def layer_norm(x: torch.Tensor, _shape: Any, weight: torch.Tensor, bias: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return LayerNorm.apply(x, weight, bias)


def gathered(outputs: list[torch.Tensor], given: torch.Tensor, *_: Any, **__: Any) -> None:
    """all_gather of parts of unlike sizes."""
    with _disable_current_modes(), torch.no_grad():
        for out in outputs:
            if out.shape == given.shape:
                out.copy_(given)


def use_permutation() -> None:
    """Transformer Engine's own, around kernels that do nothing."""
    from megatron.core.extensions import transformer_engine as extension
    from megatron.core.transformer.moe import moe_utils

    del sys.modules["transformer_engine.pytorch.permutation"]
    own = importlib.import_module("transformer_engine.pytorch.permutation")
    for module in (extension, moe_utils):
        for name, function in (
            ("fused_permute", own.moe_permute),
            ("fused_permute_with_probs", own.moe_permute_with_probs),
            ("fused_sort_chunks_by_index", own.moe_sort_chunks_by_index),
            ("fused_sort_chunks_by_index_with_probs", own.moe_sort_chunks_by_index_with_probs),
            ("fused_unpermute", own.moe_unpermute),
        ):
            if hasattr(module, name):
                setattr(module, name, function)


class OfTower(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        sequences, heads, tokens, width = q.shape
        out = torch.zeros(sequences, tokens, heads, width, dtype=q.dtype)
        ctx.save_for_backward(q, k, v, out, torch.empty(sequences, heads, tokens, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:
        q, k, v, _out, _sums = ctx.saved_tensors
        return tuple(torch.zeros(x.transpose(1, 2).shape, dtype=x.dtype).transpose(1, 2) for x in (q, k, v))


def hf_config(run: Row) -> Any:
    width = run["head_dim"] // 8
    rope = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [width - 2 * (width // 3), width // 3, width // 3],
    }
    text = {
        "num_hidden_layers": run["layers"],
        "hidden_size": run["hidden"],
        "num_attention_heads": run["heads"],
        "num_key_value_heads": run["groups"],
        "head_dim": run["head_dim"],
        "vocab_size": run["vocab"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "attention_dropout": 0.0,
        "rope_parameters": rope,
        "full_attention_interval": 4,
        "linear_num_key_heads": run["key_heads"],
        "linear_num_value_heads": run["value_heads"],
        "linear_key_head_dim": run["key_dim"],
        "linear_value_head_dim": run["value_dim"],
        "linear_conv_kernel_dim": 4,
        "tie_word_embeddings": False,
    }
    if run["experts"]:
        text |= {
            "num_experts": run["experts"],
            "num_experts_per_tok": run["experts_per_token"],
            "moe_intermediate_size": run["expert_ffn"],
            "shared_expert_intermediate_size": run["shared_ffn"],
            "router_aux_loss_coef": 0.001,
        }
    else:
        text["intermediate_size"] = run["ffn"]
    tower = {
        "depth": run["tower_layers"],
        "hidden_size": run["tower_hidden"],
        "intermediate_size": run["tower_ffn"],
        "num_heads": run["tower_heads"],
        "patch_size": run["patch"],
        "temporal_patch_size": run["temporal"],
        "spatial_merge_size": run["merge"],
        "out_hidden_size": run["hidden"],
        "num_position_embeddings": run["positions"],
    }
    out = transformers.AutoConfig.for_model(run["kind"], text_config=text, vision_config=tower, tie_word_embeddings=False)
    # 0 without multi-token prediction (verl/utils/megatron_utils.py: check_mtp_config)
    out.text_config.mtp_num_hidden_layers = run.get("mtp", 0)
    out.text_config.full_attention_interval = 4
    out.image_token_id, out.video_token_id, out.vision_start_token_id = vision.IMAGE, vision.VIDEO, vision.VISION_START
    return out


def of_mbridge(run: Row) -> Any:
    from mbridge.models.qwen3_5 import qwen3_5_vl_bridge as bridges

    kind = bridges.Qwen3_5MoeVlBridge if run["experts"] else bridges.Qwen3_5VlBridge
    bridge = kind(hf_config(run), dtype=torch.bfloat16)
    bridge.set_extra_args(**vision.overrides_of(run))
    return bridge._model_provider([])(run["first"], run["last"])


def of_megatron_bridge(run: Row) -> Any:
    """Qwen35VLBridge.provider_bridge, and what verl's engine sets of a provider."""
    from megatron.bridge.models.qwen_vl import qwen35_vl_provider as providers
    from megatron.core.process_groups_config import ProcessGroupCollection

    config = hf_config(run)
    text = config.text_config
    kind = providers.Qwen35VLMoEModelProvider if run["experts"] else providers.Qwen35VLModelProvider
    provider = kind(
        num_layers=run["layers"],
        hidden_size=run["hidden"],
        ffn_hidden_size=run["expert_ffn"] if run["experts"] else run["ffn"],
        num_attention_heads=run["heads"],
        num_query_groups=run["groups"],
        kv_channels=run["head_dim"],
        vocab_size=run["vocab"],
        seq_length=4096,
        layernorm_epsilon=1e-6,
        activation_func=torch.nn.functional.silu,
        rotary_base=1e7,
    )
    if run["experts"]:
        provider.moe_ffn_hidden_size, provider.num_moe_experts = run["expert_ffn"], run["experts"]
        provider.moe_router_topk, provider.moe_shared_expert_intermediate_size = run["experts_per_token"], run["shared_ffn"]
    provider.linear_key_head_dim, provider.linear_num_key_heads = run["key_dim"], run["key_heads"]
    provider.linear_value_head_dim, provider.linear_num_value_heads = run["value_dim"], run["value_heads"]
    provider.share_embeddings_and_output_weights = False
    provider.mtp_num_layers = run.get("mtp") or None
    provider.vision_config, provider.hf_text_config, provider.head_dim = config.vision_config, text, run["head_dim"]
    provider.mrope_section = text.rope_parameters["mrope_section"]
    overrides = {
        "tensor_model_parallel_size": run["tensor"],
        "pipeline_model_parallel_size": vision.stages_of(run),
        "context_parallel_size": run.get("context", 1),
        "virtual_pipeline_model_parallel_size": None,
        "sequence_parallel": run["sequence_parallel"],
        "expert_model_parallel_size": run["tensor"] if run["experts"] else 1,
        "expert_tensor_parallel_size": 1,
        "overlap_p2p_comm": False,
        "batch_p2p_comm": False,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        **vision.overrides_of(run),
    }
    provider.apply_overrides_and_finalize(dtype=torch.bfloat16, overrides=overrides)
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    return provider.provide(pre_process=run["first"], post_process=run["last"])


def model_of(run: Row) -> Any:
    megatron_te.Router.top = run["experts_per_token"]
    return vision.ready(of_mbridge(run) if run["bridge"] == "mbridge" else of_megatron_bridge(run))


class Inputs(vision.Inputs):
    """Padded: as verl/models/mcore/model_forward.py calls a model with a tower."""

    def __init__(self, run: Row) -> None:
        super().__init__(run)
        if not run["packed"]:
            self.packed = None
            if self.labels is not None:
                self.labels = self.labels.view(run["sequences"], run["tokens"])[:, : run["tokens"] // run.get("context", 1)]


def prepare(given: argparse.Namespace) -> None:
    for name in ("qwen3_5", "qwen3_5_moe"):  # before there is a package that they would look at
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    original = vision.DotProductAttention
    vision.DotProductAttention = Attention
    vision.prepare(given.core, given.te, given.mbridge, given.bridge)
    vision.DotProductAttention = original
    vision.without_init("mbridge.models.qwen3_5", given.mbridge)
    install_fla(given.fla)
    use_permutation()
    torch.nn.functional.scaled_dot_product_attention = flash
    torch.nn.functional.layer_norm = layer_norm
    torch.distributed.all_gather = gathered
    stand_in_kernels()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge", "fla"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_linear.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    prepare(given)
    runs = [{**BASE, **run} for run in RUNS]
    if given.only:
        for number in given.only:
            print(json.dumps(vision.execute(runs[number], model_of, Inputs)))
        return
    lines = [json.dumps(vision.execute(run, model_of, Inputs), separators=(",", ":")) for run in runs]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
