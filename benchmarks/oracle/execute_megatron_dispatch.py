"""Makes tests/data/executed_megatron_dispatch.jsonl: what Megatron-core's allgather dispatcher saves and holds, executed.

    PYTHONPATH=MEGATRON_CORE python benchmarks/oracle/execute_megatron_dispatch.py [--output tests/data/...]

Needs torch and megatron-core 0.16.1 (its source is enough); no GPU. Its own MoEAllGatherTokenDispatcher with its own permutation
(not Transformer Engine's, which is not there), on the CPU with evenly routed tokens. The collectives are stood in for: gathering
repeats what the rank has, with the buffer that lasts for hidden states, and scattering takes a part. In place of experts stands a
function that saves nothing. A line: the sizes, `saved` as [bytes, count] of storages that autograd keeps, without inputs, `kept`
that live when all is done and only the dispatcher is there, and `highest` levels above what lived before, forward and backward.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from execute import Row, SavedBeside, Storages
from megatron.core.transformer.moe import token_dispatcher
from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = 256
# tokens of the rank, experts, experts a token, ranks that share the experts, ranks that split each, format of the router
RUNS: list[tuple[int, int, int, int, int, str]] = [
    (512, 8, 2, 1, 1, "fp32"),
    (512, 8, 2, 4, 1, "fp32"),
    (512, 8, 2, 4, 1, "bf16"),
    (512, 16, 4, 2, 2, "fp32"),
    (256, 16, 4, 8, 1, "bf16"),
]
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: int, buffer: torch.Tensor | None) -> torch.Tensor:
        ctx.ranks = ranks
        if buffer is None:
            return torch.cat([x] * ranks)
        for rank in range(ranks):
            buffer[rank * x.shape[0] : (rank + 1) * x.shape[0]].copy_(x)
        return buffer.view_as(buffer)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient[: gradient.shape[0] // ctx.ranks].clone(), None, None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: int) -> torch.Tensor:
        ctx.ranks = ranks
        return x[: x.shape[0] // ranks].clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.cat([gradient] * ctx.ranks), None


class Experts(torch.autograd.Function):
    """Rows in, rows out; saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        ctx.shape, ctx.format = probabilities.shape, probabilities.dtype
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.empty_like(gradient), torch.empty(ctx.shape, dtype=ctx.format)


def execute(tokens: int, experts: int, top: int, ranks: int, splits: int, dtype: str) -> Row:
    group, local = ranks * splits, experts // ranks
    buffer = torch.empty(tokens * group, HIDDEN, dtype=torch.bfloat16)

    def gather(x: torch.Tensor, group: Any = None, use_global_buffer: bool = False) -> torch.Tensor:
        return Gather.apply(x, ranks * splits, buffer if use_global_buffer else None)

    token_dispatcher.gather_from_sequence_parallel_region = gather
    token_dispatcher.reduce_scatter_to_sequence_parallel_region = lambda x, group=None: Scatter.apply(x, ranks * splits)
    one = object.__new__(MoEAllGatherTokenDispatcher)
    one.config = SimpleNamespace(moe_permute_fusion=False)
    one.tp_size, one.ep_size, one.tp_ep_group = splits, ranks, None
    one.local_expert_indices = list(range(local))
    x = torch.zeros(tokens, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    map_ = torch.zeros(tokens, experts, dtype=torch.bool)
    for token in range(tokens):
        for choice in range(top):
            map_[token, (token * top + choice) % experts] = True
    probabilities = map_.to(FORMATS[dtype]).requires_grad_()
    storages = Storages()
    for t in (x, map_, probabilities, buffer):
        storages.own(t)
    saving = SavedBeside((x, map_, probabilities, buffer))

    gc.collect()
    gc.disable()
    with storages, torch.autograd.graph.saved_tensors_hooks(saving, lambda t: t):

        def forward(hidden: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:  # the frames of MoELayer
            hidden, probs = one.dispatch_preprocess(hidden, map_, probs)
            dispatched, probs = one.token_dispatch(hidden, probs)

            def routed(hidden: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
                rows, _count, weights = one.dispatch_postprocess(hidden, probs)
                computed = Experts.apply(rows, weights)
                return one.combine_preprocess(computed)

            output = routed(dispatched, probs)
            output = one.token_combine(output)
            return one.combine_postprocess(output)

        out = forward(x, probabilities)
        highest = storages.highest
        saved = Counter(saving.seen.values())
        gradient = torch.empty_like(out)
        storages.highest = storages.live
        out.backward(gradient)
        back = storages.highest
        del out, gradient
        x.grad = probabilities.grad = None
    kept = storages.live
    gc.enable()
    sizes = {"tokens": tokens, "experts": experts, "top": top, "ranks": ranks, "splits": splits, "router": dtype}
    return {**sizes, "hidden": HIDDEN, "saved": sorted(saved.items()), "kept": kept, "highest": [highest, back]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_dispatch.jsonl")
    given = parser.parse_args()
    lines = [json.dumps(execute(*run), separators=(",", ":")) for run in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
