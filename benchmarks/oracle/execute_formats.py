"""Makes tests/data/executed_formats.jsonl: states, linear attention and experts in fp16, in fp32 and in fp32 under autocast.

    PYTHONPATH=build/python python benchmarks/oracle/execute_formats.py [--only NAME...] [--output tests/data/executed_formats.jsonl]

Models of execute_states.py, Nemotron-H and a few with experts, executed by fuzz.py's code: CUDA's autocast stood in for by
cuda_autocast.py, grouped products of other formats by grouped_products.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fuzz
import torch
import transformers
from execute import MODELS as PLAIN
from execute import ROOT, SMALL, Row
from execute_experts import EXPERTS
from execute_scaler import item_of
from execute_states import MODELS as STATES
from row_lines import write_rows

MIXED: Row = {
    "model_type": "nemotron_h",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 768,
    "vocab_size": 4096,
    "mamba_num_heads": 16,
    "mamba_head_dim": 64,
    "n_groups": 4,
    "ssm_state_size": 32,
    "chunk_size": 64,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "mlp_hidden_act": "relu2",
}
ROUTED: Row = {
    "moe_intermediate_size": 256,
    "moe_shared_expert_intermediate_size": 384,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}
MODELS: dict[str, Row] = {
    **{
        name: config
        for name, (config, _) in STATES.items()
        if not name.startswith(("falcon of", "opt", "olmo", "cohere", "bloom"))
    },
    "nemotron_h": {**MIXED, "hybrid_override_pattern": "M-M*-M", "num_hidden_layers": 6},
    "nemotron_h with experts": {**MIXED, **ROUTED, "hybrid_override_pattern": "MEM*EM", "num_hidden_layers": 6},
    "qwen3_moe": {"model_type": "qwen3_moe", **SMALL, **EXPERTS["qwen3_moe"]},
    "mixtral": {"model_type": "mixtral", **SMALL, **EXPERTS["mixtral"]},
    "deepseek_v3": {"model_type": "deepseek_v3", **SMALL, **PLAIN["deepseek_v3"]},
    "glm4_moe": {"model_type": "glm4_moe", **SMALL, **PLAIN["glm4_moe"]},
    "minimax_m2": {"model_type": "minimax_m2", **SMALL, **PLAIN["minimax_m2"]},
}
FORMATS = ("fp16", "fp32", "autocast")
RUNS = ((1, 96, "none"), (2, 70, "nonreentrant"), (2, 64, "reentrant"), (2, 130, "none"))
SHORT = ("mamba", "mamba untied", "falcon_mamba")  # scanned token by token
CASE: Row = {
    "engine": "single",
    "attention": "eager",
    "every": 1,
    "micro_batches": 1,
    "optimizer": "adamw",
    "clip": False,
    "head": "hf_loss",
    "keep_outputs": False,
    "lora": None,
    "padding": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(MODELS))
    parser.add_argument("--formats", nargs="+", default=list(FORMATS))
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_formats.jsonl")
    options = parser.parse_args()
    import oomplan

    item_of["number"] = 1.0
    fuzz.stand_in()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed without a device"
    lines: list[Row] = []
    for name in options.only:
        lines.append({"config": name, "fields": MODELS[name]})
        for dtype in options.formats:
            for sequences, tokens, recompute in RUNS:
                case = CASE | {"dtype": dtype, "sequences": sequences, "recompute": recompute}
                case["tokens"] = tokens // 4 if name in SHORT else tokens
                peaks, job = fuzz.execute_case(MODELS[name], case), fuzz.job_of(case)
                row = {"id": f"{name}/{fuzz.words_of(case)}", "config": name, "job": job, "source": by, "peaks": peaks}
                lines.append(row)
                off = fuzz.differences(peaks, fuzz.ask(oomplan._core, job, MODELS[name]))
                print(row["id"], " ".join(f"{phase} {percent:+.4f} %" for phase, percent in off.items()), flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
