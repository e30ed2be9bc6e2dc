"""Makes tests/data/executed_ring.jsonl: torchtitan's Llama under context parallelism, every block under torch.compile.

    python benchmarks/oracle/execute_ring.py TORCHTITAN AO [--output tests/data/executed_ring.jsonl]

As execute_float8.py. A rank has its part of every sequence, as context_parallel leaves it; PyTorch's ring attention runs inside of the
compiled block on a fake process group (ring_code.py). What the table of positions has beside its part is added, as train.py holds it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import execute_compiled
import torch
import torch._inductor.config
import torch.nn.functional as F
from ao_code import unpack_float8
from compiled_float8 import AO
from compiled_ring import model_in_ring
from execute import ROOT, Row
from execute_compiled import execute_run, fused_norm
from execute_parallel import COMMITS, KEPT, job_of
from inductor_program import Inductor
from ring_code import ring_sdpa
from titan_code import unpack

# a quarter of the widths that are compiled for compiled_ring.cpp: inductor orders its kernels by the sizes
SIZES: Row = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}
SIZES |= {"intermediate_size": 3584, "max_position_embeddings": 131072, "tie_word_embeddings": False}
SOURCE, POSITION = "2025-02", 8 * SIZES["head_dim"] // 2  # bytes of a complex64 row of the table
HIGHEST = ((2, 1), (4, 2), (8, 6))  # ranks, and the one that is written down for full checkpoints
# scaling, ranks, rank, recomputation, vocabulary, sequences, tokens of one on a rank
RUNS = [
    *(("none", ranks, 0, mode, 1024, 1, 7680) for ranks in (2, 4) for mode in ("none", "selective")),
    *(("none", ranks, rank, "full", 1024, 1, 7680) for ranks, rank in HIGHEST),
    ("none", 8, 0, "none", 1024, 2, 3840),
    *(
        ("tensorwise", ranks, rank, "full", vocabulary, 1, 7680)
        for (ranks, rank), vocabulary in zip(HIGHEST, (32768, 1024), strict=False)
    ),
    ("tensorwise", 2, 0, "selective", 1024, 1, 7680),
    ("tensorwise", 4, 0, "none", 1024, 1, 7680),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torchtitan", type=Path)
    parser.add_argument("ao", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_ring.jsonl")
    options = parser.parse_args()
    F.rms_norm = fused_norm
    torch._inductor.config.triton.mix_order_reduction = False  # releases before 2.10 have none
    KEPT.add(torch.ops.aten.max.default)
    inductor, plain = Inductor(), execute_compiled.titan_model
    execute_compiled.config_of = lambda _family, words: {"model_type": "llama", **SIZES, "vocab_size": words}
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        sources = {SOURCE: unpack(options.torchtitan, COMMITS[SOURCE], Path(folder) / SOURCE)}
        ao = unpack_float8(options.ao, AO[SOURCE], Path(folder) / "ao")
        for scaling, ranks, rank, mode, vocabulary, sequences, tokens in RUNS:
            run: Any = (SOURCE, "llama", vocabulary, 1, mode, sequences, tokens, "cross_entropy")
            execute_compiled.titan_model = model_in_ring(ao, scaling, plain)
            with ring_sdpa(ranks, rank):
                peaks = execute_run(run, sources, inductor)
            table = (2 * ranks - 1) * tokens * POSITION
            config = {"config": f"llama {vocabulary}", "fields": {"model_type": "llama", **SIZES, "vocab_size": vocabulary}}
            if config not in lines:
                lines.append(config)
            job = job_of(run)
            job["trainer"] |= {"compile": True, "float8": scaling, "layout": f"d1c{ranks}", "sequence_tokens": ranks * tokens}
            job["apart"] = {"beyond": ["layout"]}  # a layer by itself, without the engine that shards it
            row = {
                "id": f"ring/{scaling}/c{ranks}/rank {rank}/{mode}/{vocabulary}/{sequences}/{tokens}",
                "config": config["config"],
            }
            by = f"torch {torch.__version__.split('+')[0]}, torchtitan {COMMITS[SOURCE]} with torchao {AO[SOURCE]}"
            row |= {"job": job, "source": f"{by}, compiled and executed on fake tensors as rank {rank}"}
            lines.append(row | {"peaks": {phase: peak + table for phase, peak in peaks.items()}})
            print(row["id"], lines[-1]["peaks"], flush=True)
            options.output.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
