"""Makes tests/data/executed_compiled.jsonl: torchtitan's dense models with every block under torch.compile.

    python benchmarks/oracle/execute_compiled.py TORCHTITAN [--output tests/data/executed_compiled.jsonl]

As execute_parallel.py, but that each TransformerBlock is compiled as torchtitan's apply_compile does it: behind the checkpoint that wraps
it, in front of FSDP. inductor writes its program for an H100 (inductor_program.py); the program runs on fake tensors.
"""

from __future__ import annotations

import argparse
import inspect
import tempfile
from pathlib import Path
from typing import Any

import execute_parallel
import torch
import torch.nn.functional as F
from execute import ROOT, Row
from execute_parallel import COMMITS, LivesOfParts, config_of, execute, flash_sdpa, job_of, rms_norm, selective_contexts
from inductor_program import Inductor
from row_lines import write_rows
from titan_code import titan_model, unpack
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

MODES = ("none", "full", "selective")
# source, family, vocabulary, ranks, recomputation, sequences, tokens of one, head
RUNS = [
    *(("2025-02", "llama", 1024, 1, mode, 1, 4096, "cross_entropy") for mode in MODES),
    *(("2025-09", "llama", 1024, 1, mode, 1, 4096, "cross_entropy") for mode in MODES),
    *(("0.2.2", "llama", 1024, 1, mode, 1, 4096, "cross_entropy") for mode in MODES),
    *(("2025-09", "qwen3", 1024, 1, mode, 1, 4096, "cross_entropy") for mode in MODES),
    *(("0.2.2", "qwen3", 1024, 1, mode, 1, 4096, "cross_entropy") for mode in MODES),
    *(("2025-02", "llama", 1024, 1, mode, 4, 2048, "cross_entropy") for mode in MODES),
    *(("2025-09", "qwen3", 1024, 1, mode, 4, 2048, "cross_entropy") for mode in MODES),
    ("2025-02", "llama", 32768, 1, "selective", 2, 4096, "cross_entropy"),
    ("2025-09", "llama", 32768, 1, "selective", 1, 4096, "cross_entropy_compiled"),
    ("2025-09", "qwen3", 32768, 1, "full", 2, 2048, "cross_entropy_compiled"),
]
EAGER_LOSS = execute_parallel.cross_entropy


class Lives(LivesOfParts):
    @classmethod
    def is_infra_mode(cls) -> bool:
        """Dynamo leaves everything alone under any other mode."""
        return True


def fused_norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """On a GPU nn.RMSNorm is an operator, which inductor takes apart; the model's last norm is not compiled."""
    if not torch.compiler.is_compiling():
        return rms_norm(x, shape, weight, eps)
    return torch.ops.aten._fused_rms_norm(x, list(shape), weight, eps)[0]


def compiled_model(root: Path, family: str, config: Row, mode: str, tokens: int, inductor: Inductor) -> Any:
    model = titan_model(root, config, tokens)
    for name, block in list(model.layers.named_children()):
        wrapped = block
        if mode != "none":
            contexts = {"context_fn": selective_contexts} if mode == "selective" else {}
            wrapped = checkpoint_wrapper(block, preserve_rng_state=False, **contexts)
        model.layers.register_module(name, torch.compile(wrapped, backend=inductor, fullgraph=True))
    return model


def run_once(model: Any, sequences: int, tokens: int) -> None:
    """Dynamo compiles where no other mode is on."""
    ids = torch.empty(sequences, tokens, dtype=torch.int64)
    wants_masks = "attention_masks" in inspect.signature(type(model).forward).parameters
    logits = model(ids, attention_masks=None) if wants_masks else model(ids)
    execute_parallel.cross_entropy(logits, ids).backward()
    model.zero_grad()


def execute_run(run: Any, sources: dict[str, Path], inductor: Inductor) -> Row:
    source, family, vocabulary, _ranks, mode, sequences, tokens, head = run
    torch._dynamo.reset()
    compiled = head == "cross_entropy_compiled"
    execute_parallel.cross_entropy = torch.compile(EAGER_LOSS, backend=inductor, fullgraph=True) if compiled else EAGER_LOSS
    inductor.programs.clear()
    lives, fake = Lives(), FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = compiled_model(sources[source], family, config_of(family, vocabulary), mode, tokens, inductor)
        run_once(model, sequences, tokens)
    return execute(model, True, run, lives, fake)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torchtitan", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_compiled.jsonl")
    options = parser.parse_args()
    F.rms_norm, F.scaled_dot_product_attention = fused_norm, flash_sdpa
    inductor = Inductor()
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        sources = {name: unpack(options.torchtitan, commit, Path(folder) / name) for name, commit in COMMITS.items()}
        for run in RUNS:
            id_ = "compiled/" + "/".join(map(str, run))
            if options.only and not any(word in id_ for word in options.only):
                continue
            peaks = execute_run(run, sources, inductor)
            config = {"config": f"{run[1]} {run[2]}", "fields": config_of(run[1], run[2])}
            if config not in lines:
                lines.append(config)
            job = job_of(run)
            job["trainer"]["compile"] = True
            row = {"id": id_, "config": config["config"], "job": job}
            by = f"torch {torch.__version__.split('+')[0]}, torchtitan {COMMITS[run[0]]} compiled and executed on fake tensors"
            lines.append(row | {"source": by, "peaks": peaks})
            print(row["id"], peaks, flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
