"""Makes tests/data/executed_verl_linear.jsonl: steps of Qwen3.5 and Qwen3-Next as verl runs them with kernels of linear attention.

    python benchmarks/oracle/execute_verl_linear.py VERL... --fla DIR --conv DIR [--only WORD] [--output FILE]

VERL, DIR and DIR are checkouts of verl, flash-linear-attention and causal-conv1d. As execute_verl_vision.py, whose FSDP1 and FSDP2 run
here; packages' autograd functions are their own (fla_code.py). Packed rows tell Qwen3.5's layers where their sequences begin, as verl's
engine does it (verl/workers/engine/fsdp/transformer_impl.py), those of Qwen3-Next do not.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import unittest.mock
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import cuda_autocast
import execute_fsdp1
import execute_verl_vision
import fla_code
import flash_stub
import sharded
import torch
import transformers
from execute import ROOT, Row, SavedByLayer, Storages
from execute_states import HYBRID, ROUTED
from execute_verl_vision import USUAL, Code, Ends, job_of, stand_ins, told_ends, under_fsdp1, under_fsdp2
from execute_vision import CONFIGS, HYBRID_TEXT, Features
from row_lines import write_rows
from vision_code import select_by_mask, standing_in

EQUAL = {**HYBRID_TEXT, "linear_num_key_heads": 8}
MODELS: dict[str, Row] = {
    "qwen3_5": CONFIGS["qwen3_5"],
    "qwen3_5, equal heads": CONFIGS["qwen3_5"] | {"text_config": {**EQUAL, "model_type": "qwen3_5_text"}},
    "qwen3_5_moe": CONFIGS["qwen3_5"]
    | {"model_type": "qwen3_5_moe", "text_config": {**HYBRID_TEXT, **ROUTED, "model_type": "qwen3_5_moe_text"}},
    "qwen3_next": {"model_type": "qwen3_next", **HYBRID, **ROUTED, "vocab_size": 1024},
    "qwen3_next, equal heads": {"model_type": "qwen3_next", **HYBRID, **ROUTED, "linear_num_key_heads": 8, "vocab_size": 1024},
}
CASES: list[Row] = [
    {"lengths": (512,)},
    {"lengths": (512,), "checkpointing": True},
    {"lengths": (200, 200, 112)},
    {"lengths": (200, 200, 112), "checkpointing": True},
    {"lengths": (1024, 1024), "checkpointing": True, "ranks": 8},
    {"sequences": 2, "lengths": (250, 250)},
    {"sequences": 2, "lengths": (250, 250), "checkpointing": True},
    {"lengths": (512,), "storage": "bf16", "reduce": "bf16"},
]
WITH_IMAGES: list[Row] = [
    {"lengths": (512,), "images": 1},
    {"lengths": (200, 200, 112), "images": 2, "grid": (8, 12), "checkpointing": True},
]
AUTOCAST: list[Row] = [{"autocast": True, **case} for case in CASES[2:6]]
# of four ranks the first, whose part begins with a sequence
ULYSSES: list[Row] = [
    {"ulysses": 2, "lengths": (512,)},
    {"ulysses": 2, "lengths": (300, 300, 300, 124)},
    {"ulysses": 4, "lengths": (300, 300, 300, 124, 512, 512), "checkpointing": True, "ranks": 8},
    {"ulysses": 2, "lengths": (512, 512), "autocast": True, "checkpointing": True},
]
SOME: list[Row] = [*CASES[1:4], CASES[5]]


def cases_of(name: str, engine: str, kernels: str) -> list[Row]:
    """All for one model; transformers' own functions where the other rows of them (execute_verl_vision.py) have none: packed rows."""
    # verl tells layers of Qwen3-Next nothing of Ulysses: each takes its rank's tokens for a row
    alone = ULYSSES[::2] if (name, engine) == ("qwen3_next", "fsdp2") else []
    if kernels == "torch":
        return [*CASES[2:4], {"autocast": True, **CASES[3]}] if (name, engine) == ("qwen3_5", "fsdp2") else alone
    if name != "qwen3_5":
        return [*SOME, *alone] if engine == "fsdp2" else CASES[2:4]
    return [*CASES, *WITH_IMAGES, *AUTOCAST, *ULYSSES] if engine == "fsdp2" else [*SOME, *WITH_IMAGES, *ULYSSES[1:3]]


def first_part(lengths: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Of the sequences what the first rank has."""
    left, out = sum(lengths) // ranks, []
    for length in lengths:
        if left > 0:
            out.append(min(left, length))
            left -= length
    return tuple(out)


def split_context(case: Row, device: str) -> Any:
    """build_cp_context (fla/ops/cp/context.py), which reads the sequences' ends. What it gives is kept for all layers."""
    context: Any = importlib.import_module("fla.ops.cp.context")
    lengths = first_part(case["lengths"], case["ulysses"])

    kept: list[tuple[Any, Any]] = []

    def build(cu_seqlens: Any, *_: Any) -> Any:
        if kept and kept[0][0] is cu_seqlens:
            return kept[0][1]
        ends = torch.empty(len(lengths) + 1, dtype=torch.int32, device=device)
        ulysses: Any = importlib.import_module("verl.utils.ulysses")
        group = ulysses.get_ulysses_sequence_parallel_group()
        same = {"group": group, "cu_seqlens": ends, "cu_seqlens_cpu": Ends(lengths), "conv1d_kernel_size": 4}
        made = context.FLACPContext(is_first_rank=True, is_last_rank=False, pre_num_ranks=0, pre_num_conv_tokens=0, **same)
        kept[:] = [(cu_seqlens, made)]
        return made

    return build


DENSE = ("qwen3_5", "qwen3_5, equal heads")
LAYER = 1  # of three with linear attention, whose saved tensors are listed


class SavedInside(SavedByLayer):
    """What a layer saves under FSDP, whose mode is another one in every run. Told of the last forward pass."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__(Storages(), layer)

    def inside(self, value: bool) -> None:
        self.storages = execute_fsdp1.Resized.now or sharded.ResizedParts.now  # type: ignore[assignment]
        super().inside(value)
        if value:
            self.made = {}
            self.open = self.hooks()
            self.open.__enter__()
        else:
            self.open.__exit__(None, None, None)


def saved_of(run: Any, code: Code, config: Row, case: Row) -> Row:
    """A run of its own: the hooks hold what is saved in another way."""
    plain, watched = execute_verl_vision.build, []

    def build(*args: Any) -> Any:
        model = plain(*args)
        text = model.model.language_model if hasattr(model.model, "language_model") else model.model
        watched.append(SavedInside(text.layers[LAYER]))
        return model

    with unittest.mock.patch.object(execute_verl_vision, "build", build):
        run(code, config, case)
    return {"layer": LAYER, "saved": watched[0].counted()}


def case_of(config: Row, changes: Row, device: str) -> Row:
    case = USUAL | {"images": 0, "patch": 16} | changes
    case["tokens"] = sum(case["lengths"])
    if "vision_config" not in config:
        case["axes"] = ()
    elif case["sequences"] == 1:
        case["told"] = functools.partial(told_ends, case["lengths"], device)
    return case


def job_with_kernels(code: Code, engine: str, config: Row, case: Row, kernels: str) -> Row:
    job = job_of(code, engine, config, case)
    trainer = job["trainer"]
    trainer["linear_attention"] = kernels
    trainer["sequence_tokens"] = case["lengths"][0]
    if case["sequences"] > 1:
        trainer["sequences_per_micro_batch"] = case["sequences"]
    return job


def rows_of(code: Code, only: str) -> Iterator[Row]:
    for name, config in MODELS.items():
        family = config["model_type"]
        module: Any = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        for engine, device in (("fsdp1", "meta"), ("fsdp2", "cpu")):
            for kernels in ("fla_conv", "fla", "torch"):
                for changes in cases_of(name, engine, kernels):
                    words = "/".join(f"{key}={value}" for key, value in changes.items())
                    row = f"verl {code.release}/{engine}/{name}/{kernels}/{words}"
                    if only not in row:
                        continue
                    case = case_of(config, changes, device)
                    Features.rows = case["images"] * case["grid"][0] * case["grid"][1] // 4
                    code.tell_tokens(case["tokens"])
                    linear: Any = importlib.import_module("verl.models.transformers.qwen3_5")
                    linear._build_fla_cp_context = split_context(case, device)
                    fla_code.choose(module, kernels)
                    with standing_in(module, device) if "vision_config" in config else nullcontext():
                        run = under_fsdp1 if engine == "fsdp1" else under_fsdp2
                        told_of = {"peaks": run(code, config, case)}
                        # of experts a mask is saved that is not described; of transformers' own rule execute_states.py tells
                        if not case["checkpointing"] and kernels != "torch" and name in DENSE:
                            told_of |= saved_of(run, code, config, case)
                    code.leave()
                    yield {"id": row, "config": name, "job": job_with_kernels(code, engine, config, case, kernels)} | told_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path, nargs="+")
    parser.add_argument("--fla", type=Path, required=True)
    parser.add_argument("--conv", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_verl_linear.jsonl")
    options = parser.parse_args()
    execute_fsdp1.stand_in()
    flash_stub.stand_in()
    sharded.follow_resizing()
    select_by_mask(Storages)
    select_by_mask(sharded.LivesOfParts)
    stand_ins()
    cuda_autocast.stand_in()
    fla_code.install_fla(options.fla)
    fla_code.install_conv(options.conv)
    torch.cuda.current_device = lambda: torch.device("meta")  # where the gated norm makes its weight
    lines: list[Row] = [{"config": name, "fields": config} for name, config in MODELS.items()]
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    versions += f", flash-linear-attention {fla_code.release(options.fla)}, causal-conv1d {fla_code.release(options.conv)}"
    for checkout in options.verl:
        code = Code(checkout)
        for row in rows_of(code, options.only):
            print(row["id"], row["peaks"], flush=True)
            lines.append(row | {"source": f"{versions}, verl {code.release} executed on tensors without data"})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
