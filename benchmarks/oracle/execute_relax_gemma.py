"""Makes tests/data/executed_relax_gemma.jsonl: steps of Gemma 4 as Relax trains it on Megatron-Bridge, executed.

    python benchmarks/oracle/execute_relax_gemma.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE --relax RELAX [--output tests/data/executed_relax_gemma.jsonl] [--only N...]

Needs what execute_megatron_vision.py needs, but Megatron-LM 0e6ac576f and Megatron-Bridge af17edf52, which the image of redai-studio/Relax
7a346d39 has, with Relax's patch of the latter (docker/patch/megatron/20260728-0e6ac576f.patch, megatron/bridge/models/gemma); of RELAX
the one file relax/models/gemma4/attention.py (b71db72d), which Relax's providers put in place of Megatron's attention
(relax/models/gemma4/gemma4_provider.py, 1d2f98c1: done here likewise). Experts are shared out among the ranks of the tensors.

The text of a checkpoint alone (GEMMA4_CONVERSION_MODE=text) runs as one rank of PyTorch's fake process group, called as
Relax calls models without a tower: all sequences in one row, no mask, packed_seq_params without padded lengths. Layers with a
window call flash-attention, which is stood in for as in execute_megatron_vision.py. The others' heads are wider than it takes, and
PyTorch computes them by its math function, as on a GPU: no kernel takes grouped queries of this width. What that function makes
inside of one operator (_safe_softmax) is not seen. The loss is the model's own, unfused.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_linear as linear
import execute_megatron_vision as vision
import execute_slime_actor as actor
import megatron_te
import torch
import triton_stub
from execute import ROOT, Row

BASE: Row = {
    "layers": 6,
    "hidden": 256,
    "heads": 8,
    "groups": 4,
    "head_dim": 64,
    "global_groups": 2,
    "global_dim": 320,  # more than flash-attention takes
    "ffn": 512,
    "experts": 0,
    "experts_per_token": 2,
    "expert_ffn": 96,
    "vocab": 1024,
    "window": 48,
    "sequences": 1,
    "tokens": 128,
    "tensor": 1,
    "sequence_parallel": False,
    "recompute": "none",
    "recompute_method": None,
    "recompute_layers": None,
    "first": True,
    "last": True,
    "fused": False,
}
SPLIT, UNIFORM, BLOCK = vision.SPLIT, vision.UNIFORM, vision.BLOCK
FOUR: Row = {"tensor": 4, "sequence_parallel": True}  # ranks for two groups of queries
TWO: Row = {"sequences": 2}
FUSED: Row = {"fused": True}
LONG: Row = {"tokens": 1000, "vocab": 128}
WORDS: Row = {"vocab": 8192}
RUNS: list[Row] = [
    {},
    TWO,
    SPLIT,
    SPLIT | TWO | FUSED,
    FOUR,
    FOUR | TWO | FUSED,
    UNIFORM,
    UNIFORM | FUSED | WORDS,
    SPLIT | UNIFORM | FUSED,
    SPLIT | UNIFORM | TWO | WORDS,
    FOUR | UNIFORM | FUSED,
    FOUR | UNIFORM | TWO | WORDS | FUSED,
    LONG,
    LONG | UNIFORM | FUSED,
    SPLIT | LONG | UNIFORM | FUSED,
    FOUR | LONG | UNIFORM | FUSED,
    FOUR | LONG | TWO | UNIFORM | FUSED,
    BLOCK | FUSED,
]
MOE: Row = {"experts": 8}
EVEN: Row = {"tokens": 1024, "vocab": 128}  # equally many tokens for every expert
RUNS += [
    MOE | run
    for run in (
        {},
        TWO | FUSED,
        SPLIT,
        FOUR | FUSED,
        UNIFORM,
        UNIFORM | FUSED | WORDS,
        SPLIT | UNIFORM | TWO | FUSED,
        FOUR | UNIFORM | FUSED,
        FOUR | UNIFORM | TWO | WORDS | FUSED,
        EVEN | UNIFORM | FUSED,
        FOUR | EVEN | UNIFORM | FUSED,
        FOUR | EVEN | TWO | UNIFORM | FUSED,
    )
]


class Inputs:
    """relax/backends/megatron/data.py: get_batch, of packed sequences."""

    def __init__(self, run: Row) -> None:
        from megatron.core.packed_seq_params import PackedSeqParams

        sequences, tokens = run["sequences"], run["tokens"]
        self.ids = torch.ones(1, sequences * tokens, dtype=torch.int64)
        self.labels = torch.zeros(1, sequences * tokens, dtype=torch.int64)
        offsets = torch.arange(0, (sequences + 1) * tokens, tokens, dtype=torch.int32)
        self.packed = PackedSeqParams(
            qkv_format="thd", cu_seqlens_q=offsets, max_seqlen_q=tokens, cu_seqlens_kv=offsets, max_seqlen_kv=tokens
        )

    def __call__(self, model: Any) -> Any:
        return model(self.ids, None, None, labels=self.labels, packed_seq_params=self.packed)


def provider_of(run: Row) -> Any:
    """Gemma4Bridge._build_dense_provider of the text of a checkpoint, and what Relax sets of a provider."""
    from megatron.bridge.models.gemma.gemma4_provider import Gemma4DenseProvider

    provider = Gemma4DenseProvider(
        num_layers=run["layers"],
        hidden_size=run["hidden"],
        ffn_hidden_size=run["ffn"],
        num_attention_heads=run["heads"],
        num_query_groups=run["groups"],
        kv_channels=run["head_dim"],
        global_kv_channels=run["global_dim"],
        num_global_query_groups=run["global_groups"],
        seq_length=4096,
        vocab_size=run["vocab"],
        window_size=(run["window"] - 1, 0),
        window_attn_skip_freq=[(i + 1) % 6 != 0 for i in range(run["layers"])],
        num_kv_shared_layers=0,
        attention_k_eq_v=True,
        per_layer_embed_vocab_size=run["vocab"],
        per_layer_embed_dim=0,
        final_logit_softcapping=30.0,
    )
    provider.tensor_model_parallel_size, provider.sequence_parallel = run["tensor"], run["sequence_parallel"]
    for name, value in vision.overrides_of(run).items():
        setattr(provider, name, value)
    return provider


def provider_of_experts(run: Row) -> Any:
    """Gemma4Bridge._build_moe_provider, and what Relax sets of a provider (scripts/models/gemma4-26B.sh, b71db72d)."""
    from megatron.bridge.models.gemma.gemma4_provider import Gemma4ModelProvider

    provider = Gemma4ModelProvider(
        num_layers=run["layers"],
        hidden_size=run["hidden"],
        ffn_hidden_size=run["ffn"],
        num_attention_heads=run["heads"],
        num_query_groups=run["groups"],
        kv_channels=run["head_dim"],
        seq_length=4096,
        vocab_size=run["vocab"],
        layernorm_epsilon=1e-6,
    )
    provider.window_size, provider.rotary_base = run["window"], (10_000, 1_000_000)
    provider.global_head_dim, provider.num_global_key_value_heads = run["global_dim"], run["global_groups"]
    provider.attention_k_eq_v, provider.interleaved_attn_pattern = True, (5, 1)
    provider.num_moe_experts, provider.moe_router_topk = run["experts"], run["experts_per_token"]
    provider.moe_ffn_hidden_size, provider.moe_shared_expert_intermediate_size = run["expert_ffn"], run["ffn"]
    provider.make_vocab_size_divisible_by = 128
    provider.moe_router_load_balancing_type, provider.moe_aux_loss_coeff = "none", 0.0
    provider.tensor_model_parallel_size, provider.sequence_parallel = run["tensor"], run["sequence_parallel"]
    provider.expert_model_parallel_size, provider.expert_tensor_parallel_size = run["tensor"], 1
    for name, value in vision.overrides_of(run).items():
        setattr(provider, name, value)
    made = provider.transformer_layer_spec

    def with_attention(config: Any) -> Any:
        spec = made(config)
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = CoreAttention.of_relax
        return spec

    provider.transformer_layer_spec = with_attention
    return provider


def model_of_experts(run: Row) -> Any:
    from megatron.core.process_groups_config import ProcessGroupCollection

    megatron_te.Router.top = run["experts_per_token"]
    provider = provider_of_experts(run)
    provider.finalize()
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    model = provider.provide(pre_process=True, post_process=True)
    model.vision_model = None
    return vision.ready(model)


def model_of(run: Row) -> Any:
    return model_of_experts(run) if run["experts"] else dense_model_of(run)


def dense_model_of(run: Row) -> Any:
    from megatron.bridge.models.gemma import gemma4_provider
    from megatron.core.process_groups_config import ProcessGroupCollection

    provider = provider_of(run)
    provider.finalize()
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    original = gemma4_provider.get_gemma4_layer_spec

    def with_attention(config: Any = None) -> Any:
        spec = original(config)
        spec.submodules.self_attention.submodules.core_attention = CoreAttention.of_relax
        return spec

    gemma4_provider.get_gemma4_layer_spec = with_attention
    try:
        model = provider.provide(pre_process=True, post_process=True)
    finally:
        gemma4_provider.get_gemma4_layer_spec = original
    model.vision_model = None
    return vision.ready(model)


class CoreAttention:
    of_relax: Any = None


def prepare(given: argparse.Namespace) -> None:
    vision.prepare(given.core, given.te, given.mbridge, given.bridge)
    for name in ("megatron.bridge.models.gemma", "megatron.bridge.models.gemma_vl"):
        vision.without_init(name, given.bridge / "src")
    for word in ("get_int_dtype", "float32"):
        setattr(triton_stub.Kernel, word, triton_stub.Kernel)
    sys.meta_path.insert(0, triton_stub.Finder())
    linear.use_permutation()
    for allow in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp):
        allow(False)  # what is computed again is, too
    flash = types.ModuleType("flash_attn")
    flash.flash_attn_varlen_func = lambda q, k, v, **_: vision.Flash.apply(q, k, v)  # type: ignore[attr-defined]
    flash.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    sys.modules["flash_attn"] = flash
    actor.stand_ins("relax", "relax.utils", "relax.utils.logging_utils")
    place = given.relax / "relax/models/gemma4/attention.py"
    spec = importlib.util.spec_from_file_location("relax_gemma4_attention", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    CoreAttention.of_relax = module.Gemma4CoreAttention


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge", "relax"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_relax_gemma.jsonl")
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
