"""flash-attention 2 without its package: what its Python functions allocate and save, and nothing else of it.

flash_attn/flash_attn_interface.py, 2.8: FlashAttnFunc and FlashAttnVarlenFunc save queries, keys, values, the output, the log-sum-exp and
the state of the generator; gradients are as large as what they belong to. The kernels' result lies as the queries do; here it is contiguous,
and what a layer copies otherwise belongs to `kernel_internals`.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers.modeling_flash_attention_utils as utils
import transformers.modeling_utils as modeling_utils
from transformers import PreTrainedModel


class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        heads_first = (*q.shape[:-3], q.shape[-2], q.shape[-3])
        sums = torch.empty(heads_first, dtype=torch.float32, device=q.device)
        state = torch.empty(2, dtype=torch.int64, device=q.device)
        ctx.save_for_backward(q, k, v, out, sums, state)
        return out

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> torch.Tensor:
    return Flash.apply(q, k, v)


class NoArguments(tuple[Any, ...]):
    """Two functions that choose the kernel's arguments; one, up to transformers 5.10."""

    def __call__(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


def stand_in() -> None:
    """transformers takes these functions for the package's. Nothing is packed."""

    def functions(*_: Any, **__: Any) -> Any:
        return (run, run, None, None, None), NoArguments((lambda **__: {}, lambda **__: {}))

    utils.lazy_import_flash_attention = functions
    modeling_utils.lazy_import_flash_attention = functions
    modeling_utils.is_kernels_available = lambda *_: False
    utils._is_packed_sequence = lambda *_, **__: False
    PreTrainedModel._flash_attn_can_dispatch = lambda *_, **__: True
