"""Makes tests/data/executed_megatron_hf_tower.jsonl: steps of Qwen2.5-VL as Megatron-Bridge makes it, executed.

    python benchmarks/oracle/execute_megatron_hf_tower.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE [--output tests/data/executed_megatron_hf_tower.jsonl] [--only N...]

Needs what execute_megatron_vision.py needs, with transformers 5.5. The tower is transformers' own, whole on every rank, with PyTorch's
kernel for attention; the language model is Megatron-core's. `packed`: one sequence with packed_seq_params; the bridge packs no
embeddings, so that several sequences fail there. Otherwise padded ids and a mask of booleans.
"""

from __future__ import annotations

import argparse
import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_linear as linear
import execute_megatron_vision as vision
import torch
from execute import ROOT, Row

BASE: Row = {**vision.BASE, **vision.QWEN25, "bridge": "Megatron-Bridge", "packed": False}
SPLIT, UNIFORM, BLOCK, STAGE = vision.SPLIT, vision.UNIFORM, vision.BLOCK, vision.STAGE
TWO, PAIR, TEXT, LARGE = vision.TWO, vision.PAIR, vision.TEXT, vision.LARGE
RUNS: list[Row] = [
    {},
    SPLIT,
    UNIFORM,
    SPLIT | UNIFORM,
    BLOCK,
    TWO,
    SPLIT | TWO | UNIFORM,
    PAIR,
    SPLIT | PAIR,
    SPLIT | PAIR | UNIFORM,
    TEXT,
    SPLIT | TEXT | UNIFORM,
    {"fused": True},
    SPLIT | UNIFORM | {"fused": True},
    LARGE,
    SPLIT | LARGE,
    SPLIT | LARGE | UNIFORM,
    STAGE,
    SPLIT | STAGE,
    SPLIT | STAGE | UNIFORM,
    SPLIT | STAGE | LARGE,
    {"tower_layers": 2},
    {"packed": True},
    SPLIT | UNIFORM | {"packed": True},
    LARGE | {"packed": True},
]


def of_megatron_bridge(run: Row) -> Any:
    """Qwen25VLBridge.provider_bridge, and what verl's engine sets of a provider."""
    from megatron.bridge.models.qwen_vl.qwen25_vl_provider import Qwen25VLModelProvider
    from megatron.core.process_groups_config import ProcessGroupCollection

    config = vision.hf_config(run)
    provider = Qwen25VLModelProvider(
        num_layers=run["layers"],
        hidden_size=run["hidden"],
        ffn_hidden_size=run["ffn"],
        num_attention_heads=run["heads"],
        num_query_groups=run["groups"],
        kv_channels=run["head_dim"],
        vocab_size=run["vocab"],
        seq_length=4096,
        layernorm_epsilon=1e-6,
        activation_func=torch.nn.functional.silu,
        rotary_base=1e6,
    )
    provider.normalization, provider.gated_linear_unit = "RMSNorm", True
    provider.add_qkv_bias, provider.add_bias_linear, provider.hidden_dropout = True, False, 0.0
    provider.share_embeddings_and_output_weights = False
    provider.mrope_section = config.text_config.rope_scaling["mrope_section"]
    provider.vision_config = config.vision_config
    provider.vision_start_token_id = vision.VISION_START
    provider.image_token_id, provider.video_token_id = vision.IMAGE, vision.VIDEO
    overrides = {
        "tensor_model_parallel_size": run["tensor"],
        "pipeline_model_parallel_size": vision.stages_of(run),
        "virtual_pipeline_model_parallel_size": None,
        "sequence_parallel": run["sequence_parallel"],
        "overlap_p2p_comm": False,
        "batch_p2p_comm": False,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        **vision.overrides_of(run),
    }
    provider.apply_overrides_and_finalize(dtype=torch.bfloat16, overrides=overrides)
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    return provider.provide(pre_process=run["first"], post_process=run["last"])


def model_of(run: Row) -> Any:
    model = of_megatron_bridge(run)
    if not hasattr(model.config, "_attn"):
        model.vision_model = getattr(model, "visual", None)
    return vision.ready(model)


def prepare(given: argparse.Namespace) -> None:
    importlib.import_module("transformers.models.qwen2_5_vl.modeling_qwen2_5_vl")
    original = vision.DotProductAttention
    vision.DotProductAttention = linear.Attention
    vision.prepare(given.core, given.te, given.mbridge, given.bridge)
    vision.DotProductAttention = original
    torch.nn.functional.scaled_dot_product_attention = linear.flash
    torch.nn.functional.layer_norm = linear.layer_norm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_hf_tower.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    prepare(given)
    runs = [{**BASE, **run} for run in RUNS]
    if given.only:
        for number in given.only:
            print(json.dumps(vision.execute(runs[number], model_of, linear.Inputs)))
        return
    lines = [json.dumps(vision.execute(run, model_of, linear.Inputs), separators=(",", ":")) for run in runs]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
