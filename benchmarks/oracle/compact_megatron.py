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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))

from corpus import ROOT, CannotExpress, Row
from megatron import PHASES, config_of, executed_job

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


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
