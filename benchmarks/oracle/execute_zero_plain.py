"""Makes tests/data/executed_zero_plain.jsonl: ZeRO on 16-bit parameters without DeepSpeed's 16-bit mode.

    python benchmarks/oracle/execute_zero_plain.py [--output tests/data/executed_zero_plain.jsonl]

Oumi hands its model on in bf16 and `bf16.enabled: auto`, which Transformers makes false: gradients are then reduced and added up in
fp32. Needs what execute_zero.py needs, whose engine and steps these are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import execute_zero
from execute_zero import CONFIGS, DIFFERENT, RANKS, ROOT, SMALL, TOKENS, Row, third_step
from row_lines import write_rows

BUCKET = {"reduce_bucket": 2_500_000}
FEW = {"reduce_bucket": 200_000}  # a matrix is larger
SPLIT: list[tuple[str, Row, int]] = [
    *((mode, {"stage": 3, **SMALL}, n) for mode, n in (("none", 1), ("nonreentrant", 2), ("reentrant", 1))),
    ("nonreentrant", {"stage": 3, **SMALL, **FEW}, 1),
]
WHOLE: list[tuple[str, Row, int]] = [
    *((mode, {"stage": 2, **BUCKET}, n) for mode, n in (("none", 1), ("nonreentrant", 2))),
    ("none", {"stage": 2, **BUCKET, "overlap_comm": True}, 1),
    ("nonreentrant", {"stage": 2, **FEW}, 2),
]
RUNS = [
    *(("qwen2_few_words", *step) for step in SPLIT + WHOLE),
    *(("llama", *step) for step in SPLIT),
]


def without_16_bits(initialize: Any) -> Any:
    def made(*given: Any, config: Row, **more: Any) -> Any:
        return initialize(*given, config=config | {"bf16": {"enabled": False}}, **more)

    return made


def execute(config: str, checkpointing: str, zero: Row, micro_batches: int) -> Row:
    import deepspeed

    deepspeed.initialize = without_16_bits(deepspeed.initialize)
    engine = execute_zero.make_engine(CONFIGS[config], checkpointing, zero, micro_batches)
    return third_step(engine, 1, TOKENS[config], micro_batches)


def job_of(*run: Any) -> Row:
    job = execute_zero.job_of(*run, {})
    job["trainer"]["precision"] = {"storage": "bf16", "compute": "bf16", "reduce": "fp32"}
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_zero_plain.jsonl")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--run", type=int, help="execute one run and print its peaks")
    options = parser.parse_args()
    if options.run is not None:
        print("peaks " + json.dumps(execute(*RUNS[options.run])))
        return
    versions = ", ".join(f"{name} {metadata.version(name).split('+')[0]}" for name in ("deepspeed", "torch", "transformers"))
    place = {"LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "DS_ACCELERATOR": "cpu"}
    place |= {"MASTER_ADDR": "localhost", "OMP_NUM_THREADS": "1"}
    lines: list[Row] = [{"config": name, "fields": CONFIGS[name]} for name in ("llama", "qwen2_few_words")]
    jobs = [(number, rank) for number, run in enumerate(RUNS) for rank in (DIFFERENT if run[2]["stage"] < 3 else DIFFERENT[:1])]

    def told(job: tuple[int, int]) -> Row:
        command = [sys.executable, __file__, "--run", str(job[0])]
        env = os.environ | place | {"RANK": str(job[1]), "MASTER_PORT": str(29000 + 8 * job[0] + job[1])}
        out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        print(job, out.splitlines()[-1], flush=True)
        return dict(json.loads(next(line for line in out.splitlines() if line.startswith("peaks "))[6:]))

    with ThreadPoolExecutor(options.workers) as pool:
        found = dict(zip(jobs, pool.map(told, jobs), strict=True))
    for number, run in enumerate(RUNS):
        of_ranks = [peaks for (at, _), peaks in found.items() if at == number]
        peaks = {phase: max(one[phase] for one in of_ranks) for phase in of_ranks[0]}
        name, source = "plain/" + execute_zero.name_of(*run, {}), f"{versions} executed on the fake process group"
        lines.append({"id": name, "config": run[0], "job": job_of(*run), "source": source, "peaks": peaks})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
