"""One training step under FSDP2 as rank 0 of PyTorch's fake process group: fake CPU tensors, fully_shard's own code.

Storages are followed as in execute.py, those that FSDP2 empties and fills again too. The second step is what counts: gathered
buffers that one step leaves to the next are there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from execute import Row
from execute_parallel import LivesOfParts
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import fake_collectives  # noqa: F401  # registers the collectives of fake tensors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore


class ResizedParts(LivesOfParts):
    """What FSDP2 empties and fills again (_fsdp_param.py: alloc_storage, free_storage)."""

    now: ResizedParts | None = None


def follow_resizing() -> None:
    plain = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        out = plain(storage, size)
        if ResizedParts.now is not None:
            ResizedParts.now.resized(storage, storage.nbytes())
        return out

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]


def on_fake_tensors(model: torch.nn.Module) -> None:
    """Parameters and buffers of the meta device become fake CPU ones, ties kept."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    fake = torch.empty_like(tensor, device="cpu")
                    made[id(tensor)] = torch.nn.Parameter(fake, tensor.requires_grad) if kind is module._parameters else fake
                kind[name] = made[id(tensor)]  # type: ignore[assignment]


def loss_of_model(model: Any, given: Row) -> Any:
    return model(**given).loss


def two_steps(
    build: Callable[[], tuple[Any, list[Any]]],
    inputs: Callable[[], Row],
    case: Row,
    formats: dict[str, torch.dtype],
    loss_of: Callable[[Any, Row], Any] = loss_of_model,
) -> Row:
    """Highest levels of the second step. `build`: the model on the meta device, and what becomes a unit, innermost first."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    mesh = init_device_mesh("cpu", (case["ranks"],))
    policy = MixedPrecisionPolicy(param_dtype=formats[case["compute"]], reduce_dtype=formats[case["reduce"]])
    model, units = build()
    fake, lives = FakeTensorMode(allow_non_fake_inputs=True), ResizedParts()
    lives.pause_propagation()
    peaks: Row = {}
    with fake:
        on_fake_tensors(model)
        for unit in units:
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=case["root_reshard"])
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, foreach=True)
        gc.collect()
        gc.disable()
        tensors = [*model.parameters(), *model.buffers()]
        resident = sum(lives.own(t.to_local() if isinstance(t, DTensor) else t) for t in tensors)
        held = [(t.to_local() if isinstance(t, DTensor) else t).untyped_storage() for t in tensors]
        del tensors
        ResizedParts.now = lives
        with lives:
            for _ in range(2):
                given = inputs()
                lives.highest = lives.live
                loss = loss_of(model, given)
                peaks["forward"] = resident + lives.highest
                lives.highest = lives.live
                loss.backward()
                peaks["backward"] = resident + lives.highest
                optimizer.zero_grad()
                del loss, given
        ResizedParts.now = None
        peaks["left"] = lives.live
        gc.enable()
    del held
    dist.destroy_process_group()
    return peaks
