"""OffloadActivations of TRL and torchtune from their own files, on tensors without memory: for execute_stash_offload.py.

What they ask of a device is replaced: streams and events do nothing, copies on the host are stand-ins that hold shapes and count
bytes, addresses are numbers of storages, and the device that they look for is the one that the tensors say. What is kept, for how
long, and what comes back when is decided by their code.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

Row = dict[str, Any]


class Host:
    """Copies on the host: their bytes, now and at most."""

    def __init__(self) -> None:
        self.live = self.highest = 0

    def take(self, bytes_: int, thing: Any) -> None:
        self.live += bytes_
        self.highest = max(self.highest, self.live)
        weakref.finalize(thing, self.drop, bytes_)

    def drop(self, bytes_: int) -> None:
        self.live -= bytes_


host = Host()


class Copy:
    """A tensor in pinned memory."""

    def __init__(self, shape: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        host.take(torch.Size(shape).numel() * dtype.itemsize, self)

    def copy_(self, tensor: torch.Tensor, non_blocking: bool) -> None:
        assert non_blocking and tensor.dtype == self.dtype

    def to(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


class Stream:
    """Also the event that it records, and the context of what runs on it."""

    def wait_event(self, *_: Any) -> None: ...

    wait_stream = synchronize = wait_event

    def record_event(self) -> Stream:
        return self

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...


class Torch:
    """PyTorch with a device `kind` that copies to a host."""

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind)
        stream = Stream()
        self.Stream = Stream
        self.cuda = SimpleNamespace(
            current_stream=lambda: stream, default_stream=lambda: stream, Stream=Stream, stream=lambda s: s
        )
        self.accelerator = SimpleNamespace(
            is_available=lambda: True, current_stream=lambda: stream, current_accelerator=lambda: self.device
        )

    def get_device_module(self, _kind: str) -> Any:
        return self.cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty_like(self, tensor: torch.Tensor, pin_memory: bool, device: str) -> Copy:
        assert pin_memory and device == "cpu"
        return Copy(tensor.shape, tensor.dtype, self.device)

    def empty(self, size: int, dtype: torch.dtype, pin_memory: bool, device: str) -> Copy:
        assert pin_memory and device == "cpu"
        return Copy((size,), dtype, self.device)


def load(path: Path, kind: str, source: str) -> Any:
    spec = importlib.util.spec_from_loader(path.stem, loader=None)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    exec(compile(source, str(path), "exec"), module.__dict__)
    module.torch = Torch(kind)
    module.logger = logging.getLogger(path.stem)
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]
    return module


def address(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype


def trl_code(trl: Path, kind: str) -> Any:
    path = trl / "models" / "activation_offloading.py"
    source = path.read_text(encoding="utf-8").replace(
        ".untyped_storage().data_ptr() in self", ".untyped_storage()._cdata in self"
    )
    module = load(path, kind, source)
    module._get_unique_tensor_key = address

    def update(self: Any, model: Any) -> None:
        self.param_storages = {p.untyped_storage()._cdata for p in model.parameters()}

    module.OffloadActivations.update_model_params = update
    return module


def torchtune_code(clone: Path, release: str, kind: str) -> Any:
    path = "torchtune/training/_activation_offloading.py"
    told = subprocess.run(["git", "-C", clone, "show", f"{release}:{path}"], check=True, capture_output=True, text=True)
    return load(Path(path), kind, told.stdout)
