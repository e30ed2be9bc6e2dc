"""Makes tests/data/executed_megatron_linear_context.jsonl: Qwen3.5 of Megatron-Bridge, padded, whose tokens several ranks share out.

    python benchmarks/oracle/execute_megatron_linear_context.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE --fla FLASH_LINEAR_ATTENTION [--output FILE] [--only N...]

As execute_megatron_linear.py, with context parallelism: the model gets all tokens and labels of this rank's, as verl's engine has
them (verl/models/mcore/util.py, 0.10: build_vlm_attn_mask_bshd, preprocess_bshd_engine). Megatron-core's exchange of tokens for
heads around a gated delta rule is its own. Attention is stood in for: what Transformer Engine's ring of keys and values makes
(te_attention.cpp), of the first rank.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_linear as linear
import execute_megatron_vision as vision
import torch
from execute import ROOT, Row

SPLIT, UNIFORM, STAGE, TWO, IMAGE, PAIR, MOE = (
    linear.SPLIT,
    linear.UNIFORM,
    linear.STAGE,
    linear.TWO,
    linear.IMAGE,
    linear.PAIR,
    linear.MOE,
)
BASE: Row = {**linear.BASE, **linear.BRIDGE, "context": 2}
LARGE: Row = {"images": [[32, 48]], "tokens": 512, "vocab": 256}
FOUR: Row = {"context": 4, "tokens": 512, "vocab": 128}
EVERYWHERE: list[Row] = [
    {},
    SPLIT,
    UNIFORM,
    SPLIT | UNIFORM,
    TWO,
    SPLIT | TWO | UNIFORM,
    {"value_heads": 4},
    FOUR,
    FOUR | UNIFORM,
    FOUR | TWO | UNIFORM,
    STAGE,
    SPLIT | STAGE | UNIFORM,
    {"fused": True},
    IMAGE,
    SPLIT | IMAGE,
    SPLIT | IMAGE | UNIFORM,
    SPLIT | PAIR | UNIFORM,
    LARGE,
    SPLIT | LARGE | UNIFORM,
    SPLIT | STAGE | IMAGE | UNIFORM,
]
RUNS: list[Row] = [kind | run for kind in ({}, MOE) for run in EVERYWHERE]


class Ring(torch.autograd.Function):
    """AttnFuncWithCPAndKVP2P."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ranks: int) -> torch.Tensor:
        joint = (*k.shape[:-1], k.shape[-1] + v.shape[-1])
        shape = (*q.shape[:-1], v.shape[-1])
        rounds, steps = [], []
        for _ in range(ranks):
            rounds.append(torch.empty(joint, dtype=q.dtype))
            steps.append(torch.empty(shape, dtype=q.dtype))
        total = torch.empty(shape, dtype=torch.float32)
        kept = rounds[-1]
        out = torch.zeros(shape, dtype=q.dtype)
        del rounds, steps, total
        ctx.save_for_backward(q, kept, out, torch.empty(q.shape[1], q.shape[2], q.shape[0], dtype=torch.float32))
        ctx.shapes = k.shape, v.shape
        return out

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:
        q, kept, _out, _sums = ctx.saved_tensors
        keys, values = ctx.shapes
        queries = torch.zeros_like(q)
        pair = (*kept.shape[:-1], 2 * kept.shape[-1])
        comes, goes = torch.empty(pair, dtype=q.dtype), torch.zeros(pair, dtype=q.dtype)
        step = torch.empty_like(q), torch.empty_like(kept)
        del comes, step
        flat, k, v = goes.view(-1), keys.numel(), values.numel()
        return queries, flat[:k].view(keys), flat[k : k + v].view(values), None


class Attention(linear.Attention):
    ranks = 1

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        if q.dim() == 3 or Attention.ranks == 1:
            return super().forward(q, k, v, *given, **named)
        out = Ring.apply(q.contiguous(), k.contiguous(), v, Attention.ranks)
        return out.view(*out.shape[:2], -1)


def without_pins(function: Any) -> Any:
    def made(*args: Any, pin_memory: bool = False, **named: Any) -> Any:
        del pin_memory
        return function(*args, **named)

    return made


def model_of(run: Row) -> Any:
    Attention.ranks = run["context"]
    return linear.model_of(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge", "fla"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_linear_context.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    linear.Attention = Attention  # type: ignore[misc]
    linear.prepare(given)
    torch.tensor = without_pins(torch.tensor)  # type: ignore[assignment]
    runs = [{**BASE, **run} for run in RUNS]
    if given.only:
        for number in given.only:
            print(json.dumps(vision.execute(runs[number], model_of, linear.Inputs)))
        return
    lines = [json.dumps(vision.execute(run, model_of, linear.Inputs), separators=(",", ":")) for run in runs]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
