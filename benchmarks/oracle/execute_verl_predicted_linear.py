"""Makes tests/data/executed_verl_predicted_linear.jsonl: steps of Qwen3.5 with multi-token prediction under verl's Megatron, executed.

    python benchmarks/oracle/execute_verl_predicted_linear.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE --fla FLASH_LINEAR_ATTENTION --verl VERL [--output ...] [--only N...]

Needs what execute_megatron_linear.py and execute_verl_predicted.py need. The bridges' models are those of the first, verl's passes
those of the second. A line is as there.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_linear as linear
import execute_verl_predicted as predicted
from execute import ROOT, Row
from verl_megatron_step import execute

BASE: Row = {
    **linear.BASE,
    "layers": 4,
    "mtp": 1,
    "entropy": False,
    "gradients": True,
    "runs": True,
    "native": False,
    "packed": False,
    "sequences": 2,
}
SPLIT, UNIFORM, MOE, PACKED = linear.SPLIT, linear.UNIFORM, linear.MOE, linear.PACKED
BRIDGE: Row = linear.BRIDGE | {"native": True}
FUSED: Row = {"fused": True}
IDLE, LAST, ALONE = predicted.IDLE, predicted.LAST, predicted.ALONE
LARGE: Row = {"vocab": 8192}
EVERYWHERE: list[Row] = [
    IDLE,
    SPLIT | UNIFORM | IDLE,
    PACKED | IDLE,
    PACKED | SPLIT | UNIFORM | IDLE,
    PACKED | SPLIT | IDLE | LAST,
    {},
    SPLIT,
    UNIFORM,
    SPLIT | UNIFORM,
    LARGE,
    SPLIT | LARGE | UNIFORM,
    ALONE,
    SPLIT | LAST,
    {"images": [[12, 16], [12, 16]]},
    {"sequences": 1},
]
OF_BRIDGE: list[Row] = [  # packed, mbridge's model fails: positions are those of a row (mbridge/models/qwen3_vl/rope_utils.py)
    PACKED,
    PACKED | SPLIT,
    PACKED | SPLIT | UNIFORM,
    PACKED | SPLIT | LARGE | UNIFORM,
    PACKED | FUSED,
    SPLIT | FUSED,
    SPLIT | UNIFORM | FUSED | IDLE,
]
RUNS: list[Row] = [
    *(kind | run for kind in ({}, MOE) for run in EVERYWHERE),
    *(BRIDGE | kind | run for kind in ({}, MOE) for run in [*EVERYWHERE, *OF_BRIDGE]),
]


def model_of(run: Row) -> Any:
    return predicted.patched(run, linear.model_of(run))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge", "fla", "verl"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_verl_predicted_linear.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    linear.prepare(given)
    predicted.prepare_verl(given.verl)
    runs = [{**BASE, **run} for run in RUNS]
    if given.only:
        for number in given.only:
            print(json.dumps(execute(runs[number], model_of, predicted.loss_of)))
        return
    lines = [json.dumps(execute(run, model_of, predicted.loss_of), separators=(",", ":")) for run in runs]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
