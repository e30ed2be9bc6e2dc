"""Makes tests/data/executed_megatron.jsonl: what Megatron-core executed on fake tensors, for every row that can be described.

    python benchmarks/oracle/compact_megatron.py ROWS [--output tests/data/executed_megatron.jsonl]

ROWS is a file of executed steps (benchmarks/accuracy/README.md, schema `oracle_megatron`). A line of the output is either a config
({"config", "fields"}) or a row ({"id", "config", "job", "peaks", "parameters", "saved"}): peaks are bytes per phase, saved lists
[dtype, shape, count] of the tensors that one layer saves for backward, without recomputation; lengths of 1 are left out of shapes. Sizes only, no text of others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))

from corpus import ROOT, CannotExpress, Row, not_yet
from megatron import config_of, layout_of
from megatron_command import PHASES

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def recompute_of(given: Any) -> Row:
    if not given:
        return {"recompute": "none"}
    if given["granularity"] == "selective":
        return {"recompute": "selective", "recompute_modules": given["modules"]}
    return {"recompute": "full", "recompute_method": given["method"], "recompute_layers": given["num_layers"]}


def optimizer_of(aware: Row | None) -> Row:
    if not aware:
        return {}
    if aware["main_params_dtype"] != "float32" or aware["main_grads_dtype"] != "float32":
        raise not_yet("masters and gradients of Megatron's optimizer in other formats")
    formats = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8"}
    return {
        "precision_aware_optimizer": True,
        "exp_avg_dtype": formats[aware["exp_avg_dtype"]],
        "exp_avg_sq_dtype": formats[aware["exp_avg_sq_dtype"]],
    }


def executed_job(row: Row) -> Row:
    if set(row.get("overrides") or {}) - {"bias_dropout_fusion"}:  # without dropout the kernel's inputs are the same
        raise not_yet("an override of Megatron's configuration")
    if row.get("overrides") and row["dropout"] > 0:
        raise not_yet("Megatron without fused bias and dropout")
    trainer: Row = {
        "engine": "megatron",
        "kernels": "transformer_engine",
        "kernel_internals": False,  # fake tensors have none
        "layout": layout_of(row),
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": row["grads"]},
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq"],
        "micro_batches": row["micro_batches"],
        "sequence_parallel": row["sp"],
        "virtual_stages": row["vpp"] or 1,
        "attention": row["attention"],
        "cross_entropy": row["cross_entropy"] or "unfused",
        **({"jit_fuser": False} if row["cross_entropy"] == "native" else {}),  # fake tensors ran uncompiled
        "gradient_accumulation_fusion": row["gradient_accumulation_fusion"],
        "distributed_optimizer": row["distributed_optimizer"],
        "deallocate_outputs": row.get("deallocate_outputs", True),
        "context_exchange": row.get("cp_comm", "p2p"),
        "router_dtype": row.get("router_dtype") or "bf16",
        "permute_fusion": bool(row.get("permute_fusion")) or not row["arch"].get("moe"),
        "expert_capacity": row.get("moe_capacity") or "auto",
        "expert_imbalance": row.get("imbalance") or 1,
        "rotary_fusion": row.get("rope_fusion", True),
        "attention_mask": bool(row.get("attention_mask")),
        "mtp_layers": row.get("mtp") or 0,
        "te_release": "2.9" if row.get("te") == "2.9" else "2.11",
        **optimizer_of(row.get("precision_aware")),
        **recompute_of(row["recompute"]),
    }
    return {"framework": "torch", "model": row["model"], "trainer": trainer, "apart": {"stage": row["stage"] + 1}}


def compacted(row: Row, config: str) -> Row:
    job = executed_job(row)
    out: Row = {
        "id": row["id"],
        "config": config,
        "job": job,
        "peaks": {phase: row["peaks_by_phase"][phase] for phase in PHASES} | {"peak": row["peak_bytes"]},
        "parameters": row["parameters_on_rank"],
    }
    if not row["recompute"] and not row["vpp"]:
        saved: Counter[tuple[str, tuple[int, ...]]] = Counter()
        for tensor in row["saved_in_layer"]["tensors"]:
            if row["arch"].get("mla") and row.get("rope_fusion", True) and tensor["shape"][1:-1] == [1, 1]:
                continue  # cosines and sines of fused latent attention: they stay from step to step
            shape = tuple(length for length in tensor["shape"] if length > 1)
            saved[SHORT.get(tensor["dtype"], tensor["dtype"]), shape] += tensor["count"]
        out["saved"] = sorted([dtype, shape, count] for (dtype, shape), count in saved.items())
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron.jsonl")
    given = parser.parse_args()
    known: dict[str, str] = {}
    lines: list[str] = []
    for text in given.rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        try:
            fields = config_of(row["arch"], int(row["seq"]), float(row["dropout"]))
            name = known.setdefault(json.dumps(fields), f"{row['model']} {len(known)}")
            line = compacted(row, name)
        except CannotExpress:
            continue
        if not any(json.loads(one).get("config") == name for one in lines):
            lines.append(json.dumps({"config": name, "fields": fields}, separators=(",", ":")))
        lines.append(json.dumps(line, separators=(",", ":")))
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
