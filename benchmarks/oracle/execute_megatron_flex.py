"""Makes tests/data/executed_megatron_flex.jsonl: what Megatron-core's flex dispatcher with DeepEP saves and holds, executed.

    PYTHONPATH=MEGATRON_CORE python benchmarks/oracle/execute_megatron_flex.py [--output tests/data/...]

Needs torch and megatron-core 0.16.1 (its source is enough); no GPU. Its own MoEFlexTokenDispatcher, FusedDispatch and FusedCombine
with its own permutation (not Transformer Engine's, which is not there), on the CPU as one rank of a group. DeepEP's buffer is stood
in for: `Exchange` gives tensors of the shapes and formats that deep_ep/buffer.py and csrc/deep_ep.cpp give (DeepEP 1.2.1), of a
group whose ranks all route as this one does. Every token's experts are drawn until this rank's rows are those of even routing; how
many tokens they are is in the line. In place of experts stands a function that saves nothing. A line: the sizes, `received` tokens
and `remote` ones, that come over the network, `saved` as [bytes, count] of storages that autograd keeps, without inputs, `handle` of
those that a ctx keeps, `kept` that live when all is done and only the dispatcher is there, and `highest` levels above what lived
before, forward and backward. Storages on the host (counts of tokens) are left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from execute import IN_PLACE, Row, SavedBeside, Storages

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = 256
NODE = 8  # ranks that reach each other over NVLink
CHANNELS = 10  # half of 20 multiprocessors
# tokens of the rank, experts, experts a token, ranks that share the experts, ranks that split each, format of the router
RUNS: list[tuple[int, int, int, int, int, str]] = [
    (512, 8, 2, 2, 1, "fp32"),
    (512, 16, 4, 4, 1, "fp32"),
    (512, 64, 8, 8, 1, "fp32"),
    (512, 64, 8, 8, 1, "bf16"),
    (512, 16, 4, 2, 2, "fp32"),
    (256, 32, 4, 4, 2, "fp32"),
    (256, 8, 2, 1, 2, "fp32"),
    (256, 64, 6, 16, 1, "fp32"),
    (256, 64, 8, 32, 1, "fp32"),
    (256, 32, 4, 8, 2, "fp32"),
]
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Group:
    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def size(self) -> int:
        return self.ranks


class Exchange:
    """deep_ep.Buffer of rank 0: Buffer's methods as megatron/core/transformer/moe/fused_a2a.py calls them."""

    def __init__(self, group: Group, nvl_bytes: int, rdma_bytes: int) -> None:
        self.group, self.num_nvl_bytes, self.num_rdma_bytes = group, nvl_bytes, rdma_bytes

    @staticmethod
    def set_num_sms(_count: int) -> None:
        pass

    @staticmethod
    def config(_ranks: int) -> Any:
        return SimpleNamespace(get_nvl_buffer_size_hint=lambda *_: 0, get_rdma_buffer_size_hint=lambda *_: 0)

    get_dispatch_config = get_combine_config = config

    def get_dispatch_layout(self, indices: torch.Tensor, experts: int, **_: Any) -> Any:
        ranks, nodes = self.group.size(), self.group.size() // NODE
        at_rank = torch.empty(indices.shape[0], ranks, dtype=torch.bool)
        counts = torch.empty(ranks, dtype=torch.int32)
        of_nodes = torch.empty(nodes, dtype=torch.int32) if nodes > 1 else None
        return counts, of_nodes, torch.empty(experts, dtype=torch.int32), at_rank, None

    def dispatch(self, x: torch.Tensor, handle: Any = None, topk_idx: Any = None, topk_weights: Any = None, **given: Any) -> Any:
        if handle is not None:
            return self.again(x, handle)
        local = given["num_tokens_per_expert"].shape[0] // self.group.size()
        hits = (topk_idx < local) & (topk_idx >= 0)  # rank 0's experts come first
        own = hits.any(1)
        ranks, top = self.group.size(), topk_idx.shape[1]
        received = int(own.sum()) * ranks
        made = self.handle(x, given["is_token_in_rank"], received, topk_idx, local)
        rows = torch.empty(received, x.shape[1], dtype=x.dtype)
        indices = torch.empty(received, top, dtype=torch.int64)
        weights = torch.empty(received, top, dtype=torch.float32)
        indices.copy_(topk_idx.masked_fill(~hits, -1)[own].repeat(ranks, 1))
        counts = [int((topk_idx == e).sum()) * ranks for e in range(local)]
        return rows, indices, weights, counts, made, SimpleNamespace(current_stream_wait=lambda: None)

    def handle(self, x: torch.Tensor, at_rank: torch.Tensor, received: int, indices: torch.Tensor, local: int) -> Any:
        ranks, tokens = self.group.size(), x.shape[0]

        def whole(*shape: int) -> torch.Tensor:
            return torch.empty(*shape, dtype=torch.int32)

        if ranks <= NODE:  # Buffer::intranode_dispatch
            square, channels = whole(ranks, ranks), whole(ranks, CHANNELS)
            return square, channels, whole(ranks, CHANNELS), whole(received), at_rank, whole(tokens, ranks)
        nodes = ranks // NODE  # Buffer::internode_dispatch
        remote = int(((indices < local * NODE) & (indices >= 0)).any(1).sum()) * nodes
        first = (at_rank, whole(nodes, CHANNELS), whole(ranks, CHANNELS), whole(nodes, CHANNELS), whole(nodes))
        meta = torch.empty(received, 8, dtype=torch.uint8)
        return (*first, whole(ranks, CHANNELS), whole(ranks), meta, whole(tokens, nodes), whole(remote, NODE))

    def again(self, x: torch.Tensor, handle: Any) -> Any:
        """With a handle: the backward pass of combine()."""
        ranks = self.group.size()
        received = handle[3].shape[0] if ranks <= NODE else handle[7].shape[0]
        rows = torch.empty(received, x.shape[1], dtype=x.dtype)
        if ranks <= NODE:  # made whether they are asked for or not
            made = [torch.empty(*handle[i].shape, dtype=torch.int32) for i in (3, 2, 5)]
            del made
        return rows, None, None, None, None, SimpleNamespace(current_stream_wait=lambda: None)

    def combine(self, x: torch.Tensor, handle: Any, topk_weights: Any = None, **_: Any) -> Any:
        tokens = handle[5].shape[0] if self.group.size() <= NODE else handle[0].shape[0]
        weights = None if topk_weights is None else torch.empty(tokens, topk_weights.shape[1], dtype=torch.float32)
        out = torch.empty(tokens, x.shape[1], dtype=x.dtype)
        return out, weights, SimpleNamespace(current_stream_wait=lambda: None)


def stand_in() -> None:
    deep_ep, utils = ModuleType("deep_ep"), ModuleType("deep_ep.utils")
    deep_ep.Buffer = Exchange  # type: ignore[attr-defined]
    utils.EventHandle = lambda: None  # type: ignore[attr-defined]
    utils.EventOverlap = lambda event: SimpleNamespace(event=event)  # type: ignore[attr-defined]
    sys.modules |= {"deep_ep": deep_ep, "deep_ep.utils": utils}


class Experts(torch.autograd.Function):
    """Rows in, rows out; saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        ctx.shape, ctx.format = probabilities.shape, probabilities.dtype
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.empty_like(gradient), torch.empty(ctx.shape, dtype=ctx.format)


def routed(tokens: int, experts: int, top: int, ranks: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and map; every token's experts are drawn evenly, until the first rank has as many rows as the others."""
    map_ = torch.ones(tokens, experts, dtype=torch.bool)
    while int(map_[:, : experts // ranks].sum()) * ranks != tokens * top:
        chosen = torch.rand(tokens, experts).topk(top).indices
        map_ = torch.zeros(tokens, experts, dtype=torch.bool).scatter_(1, chosen, True)
    probabilities = (map_ * (0.5 + torch.rand(tokens, experts))).to(FORMATS[dtype])
    return probabilities.requires_grad_(), map_


def execute(tokens: int, experts: int, top: int, ranks: int, splits: int, dtype: str) -> Row:
    from megatron.core.transformer.moe import fused_a2a, token_dispatcher

    group, local = Group(ranks * splits), experts // ranks
    fused_a2a._buffer = None
    config = SimpleNamespace(
        moe_permute_fusion=False,
        moe_router_dtype=dtype,
        moe_expert_capacity_factor=None,
        moe_deepep_num_sms=2 * CHANNELS,
        moe_router_padding_for_quantization=False,
    )
    one = object.__new__(token_dispatcher.MoEFlexTokenDispatcher)
    one.config, one.tp_size, one.ep_size, one.num_local_experts = config, splits, ranks, local
    one._comm_manager = token_dispatcher._DeepepManager(group, local, splits * top, splits * experts, config)
    x = torch.zeros(tokens, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    probabilities, map_ = routed(tokens, experts, top, ranks, dtype)
    storages = Storages()
    for t in (x, map_, probabilities):
        storages.own(t)
    saving = SavedBeside((x, map_, probabilities))

    gc.collect()
    gc.disable()
    with storages, torch.autograd.graph.saved_tensors_hooks(saving, lambda t: t):

        def forward(hidden: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:  # the frames of MoELayer
            hidden, probs = one.dispatch_preprocess(hidden, map_, probs)
            dispatched, probs = one.token_dispatch(hidden, probs)
            storages.leave_out(one._comm_manager.tokens_per_expert)
            handle.update(t.untyped_storage().nbytes() for t in one._comm_manager.handle)

            def local(hidden: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
                rows, _count, weights = one.dispatch_postprocess(hidden, probs)
                computed = Experts.apply(rows, weights)
                return one.combine_preprocess(computed)

            output = local(dispatched, probs)
            output = one.token_combine(output)
            return one.combine_postprocess(output)

        handle: Counter[int] = Counter()
        out = forward(x, probabilities)
        highest = storages.highest
        saved = Counter(saving.seen.values())
        manager = one._comm_manager
        received = manager.dispatched_routing_map.shape[0]
        remote = max(handle) // (4 * NODE) if ranks * splits > NODE else 0
        gradient = torch.empty_like(out)
        storages.highest = storages.live
        out.backward(gradient)
        back = storages.highest
        del out, gradient
        x.grad = probabilities.grad = None
    kept = storages.live
    gc.enable()
    shape = {"tokens": tokens, "experts": experts, "top": top, "ranks": ranks, "splits": splits, "router": dtype}
    counts = {"hidden": HIDDEN, "received": received, "remote": remote}
    lists = {"saved": sorted(saved.items()), "handle": sorted(handle.items())}
    return {**shape, **counts, **lists, "kept": kept, "highest": [highest, back]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_flex.jsonl")
    given = parser.parse_args()
    stand_in()
    torch.manual_seed(0)
    torch.compiler.set_stance("force_eager")
    # index_select_backward_symint adds in place where no mode looks on (aten/src/ATen/native/TensorAdvancedIndexing.cpp)
    IN_PLACE[torch.ops.aten.index_add.default] = torch.ops.aten.index_add_.default
    lines = [json.dumps(execute(*run), separators=(",", ":")) for run in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
