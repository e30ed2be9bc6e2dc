"""Measures training steps on a real GPU: what PyTorch allocated and reserved, what the driver counted, what lived at the peak.

    python benchmarks/gpu/measure.py --output rows.jsonl [--cases FILE] [--only TEXT] [--snapshots FOLDER] [--list] [--rehearse]

Needs torch with CUDA and transformers. Each case runs in a process of its own (step.py), so that nothing of one is cached for
the next. The lines it writes are executed rows (benchmarks/accuracy/README.md, schema `oracle`) with `device` beside them:
benchmarks/accuracy/run.py --corpus rows.jsonl compares them with what oomplan predicts. Finished cases of an output that exists
are not run again. --rehearse runs the steps on the CPU with two layers and few tokens: no figures, but every case is tried.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GIB = 2**30
AHEAD = 4  # processes that have imported PyTorch and wait for their turn
Row = dict[str, Any]
Process = subprocess.Popen[str]


def cases_in(path: Path, only: str) -> list[Row]:
    """Lines of a file of cases; what a line leaves out is that of the defaults in its first line."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    defaults, cases = lines[0]["defaults"], lines[1:]
    whole = [{**defaults, **case} for case in cases]
    for case in whole:
        case["id"] = name_of(case)
    return [case for case in whole if only in case["id"]]


def name_of(case: Row) -> str:
    parts = [
        case["model"],
        f"L{case['layers']}",
        case["dtype"],
        case["attention"],
        f"b{case['batch']}s{case['seq']}x{case['grad_accum']}",
        f"{case['optimizer']}-{case['optimizer_impl']}",
        case["loss"],
    ]
    parts += ["ckpt" if case["checkpointing"] != "none" else ""]
    parts += ["expandable" if case["expandable_segments"] else ""]
    return "/".join(part for part in parts if part)


def done_in(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    return {json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()}


def started(case: Row) -> Process:
    """The process of a case: it imports what it needs, then waits for its settings and touches no GPU before it has them."""
    environment = dict(os.environ)
    environment["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{case['expandable_segments']}"
    environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"]
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [environment.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, str(HERE / "step.py")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(case: Row, process: Process, snapshots: Path | None, rehearse: bool) -> Row:
    """The row that a process of its own makes of a case; with "failed" where it did not."""
    settings = {"case": case, "rehearse": rehearse, "snapshot": ""}
    if snapshots is not None:
        settings["snapshot"] = str(snapshots / (case["id"].replace("/", "_") + ".json.gz"))
    try:
        output, errors = process.communicate(json.dumps(settings), timeout=900)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"id": case["id"], "failed": "not done after 900 s"}
    if process.returncode != 0:
        tail = errors.strip().splitlines()
        return {"id": case["id"], "failed": tail[-1][:300] if tail else f"exit {process.returncode}"}
    return dict(json.loads(output.splitlines()[-1]))


def rows_of(cases: list[Row], snapshots: Path | None, rehearse: bool) -> Iterator[Row]:
    """One row after another; the processes of the next cases import meanwhile."""
    waiting: deque[tuple[Row, Process]] = deque()
    coming = iter(cases)
    ahead = 1 if rehearse else AHEAD
    while True:
        for case in itertools.islice(coming, ahead - len(waiting)):
            waiting.append((case, started(case)))
        if not waiting:
            return
        case, process = waiting.popleft()
        yield run(case, process, snapshots, rehearse)


def line_of(row: Row) -> str:
    if "failed" in row:
        return f"{row['id']:90} failed: {row['failed']}"
    if "device" not in row:
        return f"{row['id']:90} runs"
    seen = row["device"]
    figures = (row["peak_bytes"], seen["reserved_peak_bytes"], seen["process_bytes"])
    return f"{row['id']:90} " + " ".join(f"{value / GIB:9.3f}" for value in figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", type=Path, default=HERE / "cases.jsonl", help="lines of cases, the first one with the defaults"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds it")
    parser.add_argument("--output", type=Path, help="where the rows go")
    parser.add_argument("--snapshots", type=Path, metavar="FOLDER", help="keep the allocator's history of each case, in short")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, small, without figures")
    options = parser.parse_args()
    cases = cases_in(options.cases, options.only)
    if options.list:
        print("\n".join(case["id"] for case in cases))
        return 0
    if not cases or (options.output is None and not options.rehearse):
        parser.error("no case has that name" if not cases else "--output is needed: rows are kept")
    if options.snapshots is not None:
        options.snapshots.mkdir(parents=True, exist_ok=True)
    if not options.rehearse:
        print(f"{'GiB':90} {'allocated':>9} {'reserved':>9} {'process':>9}")
    failed = 0
    done = done_in(options.output) if options.output else set()
    for row in rows_of([case for case in cases if case["id"] not in done], options.snapshots, options.rehearse):
        print(line_of(row), flush=True)
        failed += "failed" in row
        if options.output and "failed" not in row:
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
