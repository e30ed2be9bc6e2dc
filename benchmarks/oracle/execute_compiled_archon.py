"""Makes tests/data/executed_compiled_archon.jsonl: steps of AReaL's Archon engine with every block under torch.compile.

    python benchmarks/oracle/execute_compiled_archon.py AREAL [--output tests/data/executed_compiled_archon.jsonl]

As execute_archon.py, but that parallelize_fn compiles the blocks. inductor writes its programs for
an H100 (inductor_program.py); they run on fake tensors, log-probs by the inference program.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from archon_code import archon_modules, unpack
from compiled_archon import compile_with
from compiled_graphs import compile_as_released
from execute import ROOT, Row
from execute_archon import add_run, meshes_are_real
from inductor_program import Inductor
from row_lines import write_rows
from sharded import follow_resizing

RELEASE = "v1.0.4"
FAMILIES, MODES = ("qwen2", "qwen3"), ("none", "full", "op")


def of(family: str, d: int, mode: str, tokens: int, *more: Any, tied: bool = False, vocabulary: int = 2048) -> tuple[Any, ...]:
    """A run of execute_archon.RUNS."""
    role, micro_batches = ("critic" if "critic" in more else "actor"), (2 if "two" in more else 1)
    tags = [one for one in more if one in ("wide", "broad")]
    return (family, tied, vocabulary, d, 1, 1, mode, tokens, "default", role, micro_batches, "compile", *tags)


RUNS = [
    *(of(family, d, mode, 4096) for family in FAMILIES for mode in MODES for d in (1, 2)),
    *(of(family, 4, mode, 2048, tied=True, vocabulary=16384) for family in FAMILIES for mode in MODES),
    *(of("qwen3", 2, mode, 4096, "wide") for mode in MODES),
    *(of(family, 2, "none", tokens) for family in FAMILIES for tokens in (5120, 6144, 8192)),  # of 8192 positions
    *(of(family, 2, mode, 6144, "critic") for family in FAMILIES for mode in ("none", "op")),
    *(of(family, 2, mode, 2048, "two", vocabulary=16384) for family in FAMILIES for mode in ("none", "op")),
    # fewer tokens than hidden states are wide; what is not met of such steps is told in docs/findings.md
    *(of("qwen3", 2, mode, 1152, "broad", vocabulary=1024) for mode in ("full", "op")),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areal", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_compiled_archon.jsonl")
    options = parser.parse_args()
    compile_as_released()
    follow_resizing()
    meshes_are_real()
    compile_with(Inductor())
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        archon_modules(unpack(options.areal, RELEASE, Path(folder)))
        for run in RUNS:
            if options.only in "/".join(map(str, run)):
                torch._dynamo.reset()
                add_run(run, lines, RELEASE)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
