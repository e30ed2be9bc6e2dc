"""Makes tests/data/oracle_rows.jsonl: what PyTorch executed, for every row that a kernel set describes.

    python benchmarks/oracle/compact.py ROWS... [--output tests/data/oracle_rows.jsonl]

ROWS are files of executed training steps (benchmarks/accuracy/README.md, schema `oracle`) with their model configs beside them.
A line of the output is either a config ({"config", "fields"}) or a row ({"id", "config", "job", "peaks", "saved"}): peaks are
bytes per phase; saved lists [dtype, shape, count] of the tensors that one layer (its number: layer) saves for backward, given for
rows without checkpointing. Sizes only, no text of others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))

from corpus import ROOT, CannotExpress, Row, rows_of, schema_of
from executed import PHASES, oracle_job

FIELDS = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
    "max_position_embeddings",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
    "n_routed_experts",
    "n_shared_experts",
    "first_k_dense_replace",
    "n_group",
    "topk_group",
    "topk_method",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "clip_qkv",
    "use_bias",
    "bias",
    "multi_query",
    "new_decoder_architecture",
    "parallel_attn",
    "alibi",
    "activation_function",
    "ffn_dim",
    "n_embd",
    "n_head",
    "n_layer",
    "n_positions",
    "architectures",
    "norm_topk_prob",
    "shared_expert_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
    "rope_parameters",
    "partial_rotary_factor",
    "layer_types",
    "sliding_window",
    "no_rope_layer_interval",
    "attention_out_bias",
    "residual_dropout",
    "attention_dropout",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_qk_norm",
    "text_config",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "full_attention_interval",
    "state_size",
    "conv_kernel",
    "expand",
    "time_step_rank",
    "use_conv_bias",
    "residual_in_fp32",
    "num_heads",
    "n_groups",
    "chunk_size",
)
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "uint64": "int64"}


def saved_tensors(row: Row) -> list[list[Any]]:
    """Of the middle layer, by dtype and shape."""
    counted: Counter[str] = Counter()
    for tensor in row["saved_middle_layer"]["tensors"]:
        counted[json.dumps([SHORT.get(tensor["dtype"], tensor["dtype"]), tensor["shape"]])] += tensor["count"]
    return [[*json.loads(key), count] for key, count in sorted(counted.items())]


def source(row: Row) -> str:
    versions = row.get("versions") or {}
    return ", ".join(f"{name} {str(version).split('+')[0]}" for name, version in sorted(versions.items()))


def compact(row: Row, corpus: Path, core: Any) -> tuple[str, Row, Row] | None:
    """Name and fields of the config, and the row; None when no kernel set describes it."""
    try:
        job, config = oracle_job(row, corpus)
        fields = {key: config[key] for key in FIELDS if config.get(key) is not None}
        text = json.dumps(job)
        figures = core.training_figures(text, json.dumps(config))
        if figures != core.training_figures(text, json.dumps(fields)):
            raise SystemExit(f"{row['id']}: the kept fields of the config do not describe the model")
    except (CannotExpress, ValueError):
        return None
    del job["model"]
    name = f"{row['model']} {row['layers']}" + (" small vocabulary" if row.get("config_overrides") else "")
    out: Row = {"id": row["id"], "config": name, "job": job, "source": source(row) + " executed"}
    out["peaks"] = {phase: row["peaks_by_phase"][phase]["bytes"] for phase in PHASES if phase in row["peaks_by_phase"]}
    # under a checkpoint a layer saves its input alone; a cache replaces k and v by copies of another shape
    if row["checkpointing"] == "none" and not job["apart"]["forward_only"] and not row.get("use_cache"):
        out["layer"] = row["middle_layer_index"]
        out["saved"] = saved_tensors(row)
    return name, fields, out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "oracle_rows.jsonl")
    options = parser.parse_args()
    import oomplan

    configs: dict[str, Row] = {}
    rows: list[Row] = []
    for corpus in options.rows:
        for row in rows_of(corpus):
            if schema_of(row) != "oracle":
                continue
            kept = compact(row, corpus.resolve(), oomplan._core)
            if kept is None:
                continue
            name, fields, out = kept
            if configs.setdefault(name, fields) != fields:
                raise SystemExit(f"two configs are called {name}")
            rows.append(out)
    with options.output.open("w", encoding="utf-8") as file:
        for name, fields in configs.items():
            file.write(json.dumps({"config": name, "fields": fields}, separators=(",", ":")) + "\n")
        for out in rows:
            file.write(json.dumps(out, separators=(",", ":")) + "\n")
    print(f"{len(rows)} rows, {len(configs)} configs: {options.output}")


if __name__ == "__main__":
    main()
