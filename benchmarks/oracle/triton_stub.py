"""A Triton that launches nothing: the Python functions around Liger's kernels run, their kernels do not.

What such a function allocates does not depend on its kernels. Tensors without data answer as if every token counted: item() is 1,
a comparison with another tensor is true.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

import torch


class Kernel:
    """A kernel, a decorated function, a constant of the language: whatever is asked of it, nothing happens."""

    def __init__(self, value: Any = None, *_: Any, **__: Any) -> None:
        self.value = value

    def __getitem__(self, _grid: Any) -> Any:
        return lambda *_, **__: None

    def __call__(self, *_: Any, **__: Any) -> Kernel:
        return Kernel()


class Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name.split(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Module:
        module = Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: Any) -> None:
        if module.__name__ != "triton":
            return
        module.__version__ = "3.4.0"
        module.cdiv = lambda a, b: -(-a // b)
        module.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
        module.jit = lambda *_, **__: Kernel()
        module.autotune = module.heuristics = lambda *_, **__: lambda function: function


def without_data() -> None:
    item, equal = torch.Tensor.item, torch.equal
    torch.Tensor.item = lambda self: 1 if self.device.type == "meta" else item(self)  # type: ignore[method-assign]
    torch.Tensor.__bool__ = lambda self: self.device.type == "meta" or bool(item(self))  # type: ignore[method-assign]
    torch.equal = lambda a, b: a.device.type == "meta" or equal(a, b)  # type: ignore[assignment]


def install(sources: Path) -> None:
    """Makes `import liger_kernel` take the source tree `sources` (a checkout's src) on top of the stub."""
    sys.meta_path.insert(0, Finder())
    sys.path.insert(0, str(sources))
    without_data()
