"""Makes tests/data/executed_float8.jsonl: torchtitan's Llama with torchao's float8 matrices, every block under torch.compile.

    python benchmarks/oracle/execute_float8.py TORCHTITAN AO [--output tests/data/executed_float8.jsonl]

As execute_compiled.py. AO is a clone of pytorch/ao with its history.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import execute_compiled
import torch
import torch.nn.functional as F
from ao_code import convert, float8_modules, unpack_float8
from compiled_float8 import AO
from execute import ROOT, Row
from execute_compiled import execute_run, fused_norm
from execute_parallel import COMMITS, KEPT, config_of, flash_sdpa, job_of
from inductor_program import Inductor
from titan_code import unpack

# scaling and a run of execute_compiled.py
RUNS = [
    ("rowwise", ("2025-02", "llama", 1024, 1, "selective", 2, 2048, "cross_entropy")),
    ("tensorwise", ("2025-02", "llama", 1024, 1, "none", 1, 4096, "cross_entropy")),
    ("rowwise", ("2025-02", "llama", 32768, 1, "full", 1, 4096, "cross_entropy")),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torchtitan", type=Path)
    parser.add_argument("ao", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_float8.jsonl")
    options = parser.parse_args()
    F.rms_norm, F.scaled_dot_product_attention = fused_norm, flash_sdpa
    torch._inductor.config.triton.mix_order_reduction = False  # releases before 2.10 have none
    KEPT.add(torch.ops.aten.max.default)
    inductor, plain = Inductor(), execute_compiled.titan_model
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        sources = {name: unpack(options.torchtitan, commit, Path(folder) / name) for name, commit in COMMITS.items()}
        for scaling, run in RUNS:
            ao = unpack_float8(options.ao, AO[run[0]], Path(folder) / "ao" / run[0])

            def model_in_float8(*given: Any, how: Any = (ao, scaling)) -> Any:
                model = plain(*given)
                float8_modules(how[0])
                convert(model, how[1], False)
                return model

            execute_compiled.titan_model = model_in_float8
            peaks = execute_run(run, sources, inductor)
            config = {"config": f"{run[1]} {run[2]}", "fields": config_of(run[1], run[2])}
            if config not in lines:
                lines.append(config)
            job = job_of(run)
            job["trainer"] |= {"compile": True, "float8": scaling}
            row = {"id": f"float8/{scaling}/" + "/".join(map(str, run)), "config": config["config"], "job": job}
            by = f"torch {torch.__version__.split('+')[0]}, torchtitan {COMMITS[run[0]]} with torchao {AO[run[0]]}"
            lines.append(row | {"source": f"{by}, compiled and executed on fake tensors", "peaks": peaks})
            print(row["id"], peaks, flush=True)
            options.output.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
