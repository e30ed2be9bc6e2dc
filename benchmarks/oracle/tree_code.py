"""AReaL's tree training under Archon: its wrapper of attention and its log-probs, around PyTorch's own dense functions.

TreeAttentionWrapper calls flex_attention without torch.compile. What runs then are sdpa_dense and sdpa_dense_backward of
torch/_higher_order_ops/flex_attention.py: they are executed as they are, inside of operators of their own that selective checkpoints
can keep, as they keep flex_attention. For execute_archon.py.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._higher_order_ops.flex_attention
from torch.nn.attention.flex_attention import _identity
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily
from torch.utils.checkpoint import _CachedTorchDispatchMode, _CachingTorchDispatchMode

aten = torch.ops.aten
DENSE_CODE = sys.modules["torch._higher_order_ops.flex_attention"]
TREE = "areal.models.tree_attn"

torch.library.define("tree::flex", "(Tensor q, Tensor k, Tensor v, Tensor mask, float scale) -> (Tensor, Tensor, Tensor)")


def block_mask(mask: torch.Tensor) -> tuple[Any, ...]:
    """The dense functions read its last part alone."""
    return (lambda _b, _h, q, k: mask[q, k],)


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    with torch.no_grad():
        return DENSE_CODE.sdpa_dense(q, k, v, _identity, block_mask(mask), scale, {})  # type: ignore[attr-defined]


def backward(q: Any, k: Any, v: Any, out: Any, lse: Any, gradient: Any, mask: torch.Tensor, scale: float) -> Any:
    with torch.no_grad():
        return DENSE_CODE.sdpa_dense_backward(  # type: ignore[attr-defined]
            q, k, v, out, lse, gradient, None, _identity, None, block_mask(mask), scale, {}, (), ()
        )[:3]


def whole(x: torch.Tensor, dim: int) -> torch.Tensor:
    """_safe_softmax has no kernel of its own: aten/src/ATen/native/SoftMax.cpp."""
    out = aten._softmax(x, dim, False)
    unseen = aten.eq(x, float("-inf"))
    rows = aten.all.dim(unseen, dim, True)
    del unseen
    return aten.where(rows, aten.scalar_tensor(0.0), out)  # type: ignore[no-any-return]


READY: list[Any] = []
"""What `tree::flex` returns: it is made in front of it, for vmap does not run inside of a dispatch mode."""
OPERATORS: dict[Any, Callable[..., Any]] = {
    torch.ops.tree.flex.default: lambda *_: READY.pop(),
    aten._safe_softmax.default: whole,
}


def kept(*given: Any) -> Any:
    """Under a selective checkpoint the results are those of an operator that it keeps."""
    above = _get_current_dispatch_mode()
    if isinstance(above, _CachingTorchDispatchMode):
        with _pop_mode_temporarily():
            READY.append(forward(*given))
    elif not isinstance(above, _CachedTorchDispatchMode):
        return forward(*given)
    return torch.ops.tree.flex(*given)


class Flex(torch.autograd.Function):
    """FlexAttentionAutogradOp."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
        ctx.set_materialize_grads(False)
        out, lse, largest = kept(q, k, v, mask, scale)
        ctx.mark_non_differentiable(largest)
        ctx.save_for_backward(q, k, v, out, lse, largest, mask)
        ctx.scale = scale
        return out, lse, largest

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, out, lse, _largest, mask = ctx.saved_tensors
        return *backward(q, k, v, out, lse, gradients[0], mask, ctx.scale), None, None


def flex_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: Any, scale: float, enable_gqa: bool) -> Any:
    assert enable_gqa == (q.shape[1] != k.shape[1])
    dense = block_mask.mask_mod.__closure__[0].cell_contents
    return Flex.apply(q, k, v, dense, scale)[0]


def tree_modules(module: Callable[..., Any]) -> None:
    """Around AReaL's packages: what they import besides, and the operator that selective checkpoints keep."""
    sys.modules["areal.utils.logging"] = logging
    module("areal.utils.perf_tracer", trace_perf=lambda _name: lambda function: function)
    module(f"{TREE}.tree", build_block_mask_from_trie=None, build_triton_attn_data_from_trie=None)
    importlib.import_module(f"{TREE}.module_archon").flex_attention = flex_attention
    torch._higher_order_ops.flex_attention = torch.ops.tree.flex.default


class Branch:
    """A tree of one branch: a TrieNode of areal/models/tree_attn/tree.py with one sequence."""

    all_sequence_ids = (0,)

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def get_sequence_tree_indices(self, _sequence: int) -> list[tuple[int, int]]:
        return [(0, self.tokens - 1)]


def tree_mask(tokens: int) -> Any:
    """TreeAttentionMeta.from_trie, of a tree whose mask is filled elsewhere."""
    device = torch.device("cpu")
    dense = torch.zeros((tokens, tokens), dtype=torch.bool)
    blocks = importlib.import_module(f"{TREE}.module_fsdp").create_block_mask_from_dense(dense, tokens, device)
    return importlib.import_module(f"{TREE}.module_archon").TreeAttentionMeta(block_mask=blocks)
