"""PyTorch's own ring attention (torch.distributed.tensor.experimental, 2.13) on fake tensors and a fake process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as context
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def ring_sdpa(ranks: int, rank: int) -> Iterator[None]:
    """What context_parallel puts in place of SDPA; on a GPU flash-attention is its kernel."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))

    def attend(q: Any, k: Any, v: Any, **_options: Any) -> Any:
        parts = [DTensor.from_local(x, mesh, (Shard(2),), run_check=False) for x in (q, k, v)]
        return torch.ops.aten._scaled_dot_product_flash_attention(*parts, 0.0, True, False)[0].to_local()

    before, F.scaled_dot_product_attention = F.scaled_dot_product_attention, attend
    context._enable_cp_dtensor_dispatcher()
    yield
    context._disable_cp_dtensor_dispatcher()
    F.scaled_dot_product_attention = before
    torch.distributed.destroy_process_group()
