"""What CUDA's autocast does and the CPU's does not, for steps under the latter (aten/src/ATen/autocast_mode.h, PyTorch 2.13).

Behind stand_in() functions of the list AT_FORALL_FP32 get their 16-bit tensors cast to fp32, those of AT_FORALL_FP32_SET_OPT_DTYPE are
asked for an fp32 result, and torch.einsum gets its operands in 16 bits, as it is cast as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

WIDE = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan"),
    *("pow", "__pow__", "square", "softplus", "layer_norm", "rms_norm", "group_norm", "cosine_similarity", "nll_loss"),
    *("kl_div", "l1_loss", "smooth_l1_loss", "mse_loss", "binary_cross_entropy_with_logits", "logsumexp"),
)
WIDE_RESULT = ("prod", "cumprod", "cumsum", "sum")  # softmax and log_softmax are the callers' own
HALF = (torch.bfloat16, torch.float16)


def widened(given: Any) -> Any:
    return given.float() if isinstance(given, torch.Tensor) and given.dtype in HALF else given


def narrowed(given: Any) -> Any:
    wide = isinstance(given, torch.Tensor) and given.dtype == torch.float32
    return given.to(torch.get_autocast_dtype("cpu")) if wide else given


def asks_for_wide(args: Any, kwargs: Any) -> tuple[Any, Any]:
    half = args[0].dtype in HALF and kwargs.get("dtype") is None
    return args, kwargs | {"dtype": torch.float32} if half else kwargs


def under_autocast(function: Callable[..., Any], change: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            args, kwargs = change(args, kwargs)
        return function(*args, **kwargs)

    return replaced


def stand_in() -> None:
    changes = [(name, lambda args, kwargs: tree_map(widened, (args, kwargs))) for name in WIDE]
    changes += [(name, asks_for_wide) for name in WIDE_RESULT]
    changes += [("einsum", lambda args, kwargs: (tree_map(narrowed, args), kwargs))]
    for name, change in changes:
        for owner in (torch, torch.Tensor, F):
            if hasattr(owner, name):
                setattr(owner, name, under_autocast(getattr(owner, name), change))
