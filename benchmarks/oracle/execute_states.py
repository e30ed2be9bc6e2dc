"""Makes tests/data/executed_states.jsonl: training steps of models with a state in place of keys and values, and of further forms.

    python benchmarks/oracle/execute_states.py [--only NAME...] [--output tests/data/executed_states.jsonl]

As execute.py, of transformers' own functions: neither flash-linear-attention nor mamba_ssm nor causal-conv1d may be installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers
from execute import ROOT, SMALL, WINDOWS, Row, as_on_cuda, execute, job_of
from row_lines import write_rows

HYBRID: Row = {
    **SMALL,
    "head_dim": 64,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 96,
    "linear_conv_kernel_dim": 4,
}
ROUTED: Row = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 128}
STATES: Row = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "vocab_size": 4096,
    "state_size": 16,
    "expand": 2,
    "intermediate_size": 1024,
    "conv_kernel": 4,
    "time_step_rank": 32,
    "use_bias": False,
    "use_conv_bias": True,
}
FALCON: Row = {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 4, "bias": False}
OPT: Row = {**SMALL, "ffn_dim": 1024, "dropout": 0.0, "do_layer_norm_before": False, "word_embed_proj_dim": 512}
LONG = ((1, 512, False), (1, 512, True), (2, 250, False), (2, 250, True))
SHORT = ((1, 96, False), (1, 96, True), (2, 48, False), (2, 48, True))
MODELS: dict[str, tuple[Row, tuple[tuple[int, int, bool], ...]]] = {
    "qwen3_next": ({"model_type": "qwen3_next", **HYBRID, **ROUTED}, LONG),
    "qwen3_next equal heads": (
        {
            "model_type": "qwen3_next",
            **HYBRID,
            **ROUTED,
            "linear_num_key_heads": 8,
            "attention_bias": True,
            "mlp_only_layers": [1],
        },
        LONG,
    ),
    "qwen3_5": ({"model_type": "qwen3_5_text", **HYBRID}, LONG),
    "qwen3_5 equal heads": (
        {"model_type": "qwen3_5_text", **HYBRID, "linear_num_key_heads": 8, "tie_word_embeddings": True},
        LONG,
    ),
    "qwen3_5_moe": ({"model_type": "qwen3_5_moe_text", **HYBRID, **ROUTED}, LONG),
    "mamba": ({"model_type": "mamba", **STATES}, SHORT),
    "mamba untied": (
        {
            "model_type": "mamba",
            **STATES,
            "use_bias": True,
            "use_conv_bias": False,
            "residual_in_fp32": False,
            "tie_word_embeddings": False,
        },
        SHORT,
    ),
    "mamba2": (
        {
            "model_type": "mamba2",
            "hidden_size": 512,
            "num_hidden_layers": 4,
            "vocab_size": 4096,
            "state_size": 64,
            "num_heads": 16,
            "head_dim": 64,
            "n_groups": 2,
            "conv_kernel": 4,
            "chunk_size": 128,
            "use_bias": False,
        },
        LONG,
    ),
    "falcon_mamba": ({"model_type": "falcon_mamba", **STATES}, SHORT),
    "falcon of 40 billion": ({"model_type": "falcon", **FALCON}, LONG),
    "falcon of 11 billion": ({"model_type": "falcon", **FALCON, "num_ln_in_parallel_attn": 1}, LONG),
    "opt with norms behind": ({"model_type": "opt", **OPT}, LONG),
    "opt with a narrow embedding": ({"model_type": "opt", **OPT, "word_embed_proj_dim": 256}, LONG),
    "olmo with clipped projections": ({"model_type": "olmo", **SMALL, "clip_qkv": 8.0}, LONG),
    "cohere2 without head_dim": ({"model_type": "cohere2", **SMALL, **WINDOWS, "pad_token_id": 0}, LONG),
    "bloom": (
        {"model_type": "bloom", "hidden_size": 512, "n_layer": 4, "num_hidden_layers": 4, "n_head": 8, "vocab_size": 4096},
        LONG,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(MODELS))
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_states.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    source = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on the meta device"
    lines: list[Row] = []
    for name in options.only:
        config, runs = MODELS[name]
        lines.append({"config": name, "fields": config})
        for sequences, tokens, checkpointing in runs:
            peaks, saved = execute(config, sequences, tokens, checkpointing)
            row: Row = {"id": f"{name}/b{sequences}s{tokens}" + ("/checkpointed" if checkpointing else ""), "config": name}
            row |= {"job": job_of(sequences, tokens, checkpointing), "source": source, "peaks": peaks}
            # Mamba-2's einsums save their operands under other shapes; Falcon's lists as indices are tensors of the host here
            if not checkpointing and config["model_type"] not in ("mamba2", "falcon"):
                row |= {"layer": config["num_hidden_layers"] // 2, "saved": saved}
            lines.append(row)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
