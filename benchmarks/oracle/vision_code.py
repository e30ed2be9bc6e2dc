"""What stands in for PyTorch's kernels and for sizes of images where vision towers are executed without a device.

What reads the images' sizes runs on real CPU tensors, whose index tensors are copied to the device when they are used, as on a GPU.
"""

from __future__ import annotations

import math
import unittest.mock
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from execute import Row
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


class Features:
    """How many rows a mask of images selects, which PyTorch would count on the device."""

    rows = 0


def select_by_mask(mode: Any) -> None:
    """x[mask] and x[mask] = rows, which fake tensors cannot run. In backward sums into zeros are in place, as without a mode."""
    plain = mode.__torch_dispatch__

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in INDEXED or args[1][0].dtype != torch.bool:
            return plain(self, func, types, args, kwargs)
        if func is aten.index.Tensor:
            out = args[0].new_empty(Features.rows, args[0].shape[-1])
        else:
            accumulates = len(args) > 3 and args[3]
            out = args[0] if accumulates or func is aten.index_put_.default else torch.empty_like(args[0])
        self.born(out)
        return out

    mode.__torch_dispatch__ = dispatch


class OnTheHost(list[Any]):
    """Numbers of the images that the model reads on the host; under a mode of fake tensors a tensor would have none."""

    def tolist(self) -> list[Any]:
        return list(self)

    def prod(self, _axis: int) -> OnTheHost:
        return OnTheHost(math.prod(row) for row in self)

    def __getitem__(self, part: Any) -> Any:
        return OnTheHost(super().__getitem__(part)) if isinstance(part, slice) else super().__getitem__(part)

    def __sub__(self, other: OnTheHost) -> OnTheHost:
        return OnTheHost(a - b for a, b in zip(self, other, strict=True))

    def __floordiv__(self, number: int) -> OnTheHost:
        return OnTheHost(n // number for n in self)

    def max(self) -> int:
        return int(max(self))


def by_the_host(function: Any, finish: Any) -> Any:
    """Runs outside of every mode, on the values. A tensor is the image that verl makes where there is none: its values are not there."""

    def run(grid: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            sizes = [[1, 4, 4]] if isinstance(grid, torch.Tensor) else grid.tolist()
            return finish(function(torch.tensor(sizes), *args, **kwargs))

    return run


@contextmanager
def standing_in(module: Any, device: str) -> Iterator[None]:
    """What is computed from the images' sizes on the device arrives there; three rows of positions, whose values nothing reads."""

    def three_rows(_model: Any, input_ids: torch.Tensor, **_: Any) -> Any:
        return torch.zeros(3, *input_ids.shape, dtype=torch.int64, device=input_ids.device), None

    shape_of = by_the_host(module.get_vision_position_ids, lambda rows: (rows.shape, rows.dtype))

    def positions(*args: Any, **kwargs: Any) -> torch.Tensor:
        shape, dtype = shape_of(*args, **kwargs)
        return torch.empty(shape, dtype=dtype, device=device)

    def host(ends: torch.Tensor) -> OnTheHost:
        return OnTheHost(ends.tolist())

    changes: Row = {"get_vision_position_ids": positions, "torch_compilable_check": lambda *_, **__: None}
    if hasattr(module, "get_max_seqlen"):
        changes["get_vision_attention_seqlens"] = by_the_host(module.get_vision_attention_seqlens, lambda x: (host(x[0]), x[1]))
        changes["get_max_seqlen"] = lambda *_, **__: 1
    else:  # up to transformers 5.10
        changes["get_vision_cu_seqlens"] = by_the_host(module.get_vision_cu_seqlens, host)
    for name in ("get_vision_interpolation_indices_and_weights", "get_vision_bilinear_indices_and_weights"):
        if not hasattr(module, name):
            continue
        taps = by_the_host(getattr(module, name), lambda made: [(one.shape, one.dtype) for one in made])
        changes[name] = lambda *args, taps=taps, **kwargs: tuple(
            torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in taps(*args, **kwargs)
        )
    if hasattr(module, "get_vision_window_index"):
        changes["get_vision_window_index"] = by_the_host(module.get_vision_window_index, lambda x: (x[0], host(x[1])))
    with ExitStack() as stack:
        for name, change in changes.items():
            stack.enter_context(unittest.mock.patch.object(module, name, change))
        for name in dir(module):
            if hasattr(getattr(module, name), "get_rope_index"):
                stack.enter_context(unittest.mock.patch.object(getattr(module, name), "get_rope_index", three_rows))
        yield
