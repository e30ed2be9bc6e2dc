"""Makes tests/data/golden_megatron.jsonl: golden memory values of Megatron-LM's functional tests, for those that can be described.

    python benchmarks/oracle/compact_golden.py ROWS [--output tests/data/golden_megatron.jsonl]

ROWS is a file of measured training rows (benchmarks/accuracy/README.md, schema `measured_training`). A line of the output has a job,
the fields of a config.json, what the recipe adds to it (`added`, `left`), and the bytes on the last rank: `peak`, `resident`. Tests
on A100 are left out: the job's card is not said here. Sizes only, no text of others.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))

from corpus import ROOT, CannotExpress, Row
from megatron_golden import golden_config, golden_job, is_golden

GIB = 2**30
# routing of these is far from even: docs/findings.md
UNEVEN = ("ep4_etp1_memory_speed", "ep8_resume_torch_dist_dist_optimizer")
# its peak rose when the run was resumed: docs/findings.md
RESUMED = ("gpt3_weekly_mcore_tp4_cp2_current_scaling_native_fp8_tp_sp_cp_tp_overlap/dev_dgx_gb200",)


def compacted(row: Row) -> Row | None:
    left = row["extra_values"].get("current_alloc_last_gib")
    if not left or "A100" in str(row["gpu"]) or any(word in str(row["id"]) for word in UNEVEN + RESUMED):
        return None
    job = golden_job(row)
    apart = job["apart"]
    told = {"stage": int(row["parallelism"].get("pp") or 1)}
    if "fp8_recipe" in job["trainer"]:
        told["fp8_transposes"] = "H100" in str(row["gpu"])
    return {
        "id": row["id"],
        "job": {"framework": job["framework"], "model": "golden", "trainer": job["trainer"], "apart": told},
        "fields": golden_config(row),
        "added": apart["added_bytes"],
        "left": apart["left_bytes"],
        "peak": round(row["value_gib"] * GIB),
        "resident": round(left * GIB),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/golden_megatron.jsonl")
    given = parser.parse_args()
    lines: list[str] = []
    for text in given.rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        if not is_golden(row):
            continue
        try:
            line = compacted(row)
        except CannotExpress:
            continue
        if line:
            lines.append(json.dumps(line, separators=(",", ":")))
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} tests")


if __name__ == "__main__":
    main()
