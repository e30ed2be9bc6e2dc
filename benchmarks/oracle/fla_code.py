"""flash-linear-attention and causal-conv1d from their sources, with kernels that launch nothing.

What their autograd functions allocate does not depend on the kernels. Their packages' own __init__ files import every layer that there
is; packages are folders here, and what transformers and Megatron-core import from them is put into them.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton_stub
from execute_fused_heads import stand_in

SHARED_MEMORY = {"none": 102400, "ada": 101376, "ampere": 166912, "hopper": 232448}


def followed_sizes(cu_seqlens: torch.Tensor, cu_seqlens_cpu: Any) -> list[int]:
    """Lengths of sequences, of which tensors without data know the ends on the host alone."""
    ends = cu_seqlens_cpu.tolist()
    return [end - begin for begin, end in zip(ends[:-1], ends[1:], strict=True)]


def chunk_indices(cu_seqlens: torch.Tensor, chunk_size: int, cu_seqlens_cpu: Any = None) -> torch.Tensor:
    chunks = sum(-(-length // chunk_size) for length in followed_sizes(cu_seqlens, cu_seqlens_cpu))
    return torch.empty(chunks, 2, dtype=cu_seqlens.dtype, device=cu_seqlens.device)


def position_ids(cu_seqlens: torch.Tensor, cu_seqlens_cpu: Any = None) -> torch.Tensor:
    return torch.empty(sum(followed_sizes(cu_seqlens, cu_seqlens_cpu)), dtype=cu_seqlens.dtype, device=cu_seqlens.device)


def install_fla(sources: Path, multiprocessors: int = 1) -> None:
    """`import fla` takes the checkout `sources`. As on a GPU with the shared memory of Hopper's."""
    for word in ("exp2", "exp", "log", "log2", "math", "float32", "rsqrt"):
        setattr(triton_stub.Kernel, word, triton_stub.Kernel)
    triton_stub.Kernel.arg_names = []  # type: ignore[attr-defined]
    sys.meta_path.insert(0, triton_stub.Finder())
    for name in ("fla", "fla.ops", "fla.modules", "fla.layers", "fla.models"):
        stand_in(name).__path__ = [str(sources / Path(*name.split(".")))]
    utils: Any = importlib.import_module("fla.utils")
    utils.custom_device_ctx = lambda _: contextlib.nullcontext()
    norm: Any = importlib.import_module("fla.modules.fused_norm_gate")
    index: Any = importlib.import_module("fla.ops.utils.index")
    importlib.import_module("fla.ops.gated_delta_rule")
    of_utils: Any = importlib.import_module("fla.ops.utils")
    changes = {
        "check_shared_mem": lambda arch="none", *_, **__: SHARED_MEMORY[arch] <= SHARED_MEMORY["hopper"],
        "get_multiprocessor_count": lambda *_, **__: multiprocessors,
        "prepare_chunk_indices": utils.tensor_cache(chunk_indices),
        "prepare_position_ids": utils.tensor_cache(position_ids),
    }
    for module in [one for name, one in sys.modules.items() if name.startswith("fla.")]:
        for name, change in changes.items():
            if hasattr(module, name):
                setattr(module, name, change)
    comm: Any = importlib.import_module("fla.ops.cp.comm")
    comm.dist = types.SimpleNamespace(
        all_gather_into_tensor=lambda *_, **__: None, get_rank=dist.get_rank, get_world_size=dist.get_world_size
    )
    of_utils.prepare_sequence_ids = index.prepare_sequence_ids
    sys.modules["fla.modules"].FusedRMSNormGated = norm.FusedRMSNormGated  # type: ignore[attr-defined]


def install_conv(sources: Path) -> None:
    """`import causal_conv1d` takes the checkout `sources`."""
    nothing = lambda *_, **__: None  # noqa: E731
    stand_in("causal_conv1d_cuda", causal_conv1d_fwd=nothing, causal_conv1d_bwd=nothing, causal_conv1d_update=nothing)
    sys.path.insert(0, str(sources))
    importlib.import_module("causal_conv1d")


def choose(module: Any, kernels: str) -> None:
    """What layers that transformers' `module` makes from here on take: torch, fla or fla_conv."""
    taken = {"FusedRMSNormGated": None, "chunk_gated_delta_rule": None, "fused_recurrent_gated_delta_rule": None}
    taken |= {"causal_conv1d_fn": None, "causal_conv1d_update": None}
    if kernels != "torch":
        rule: Any = sys.modules["fla.ops.gated_delta_rule"]
        taken |= {name: getattr(rule, name) for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")}
        taken["FusedRMSNormGated"] = sys.modules["fla.modules"].FusedRMSNormGated
    if kernels == "fla_conv":
        conv: Any = sys.modules["causal_conv1d"]
        taken |= {name: getattr(conv, name) for name in ("causal_conv1d_fn", "causal_conv1d_update")}
    for name, function in taken.items():
        setattr(module, name, function)


def release(sources: Path) -> str:
    package = "fla" if (sources / "fla").is_dir() else "causal_conv1d"
    text = (sources / package / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'__version__ = "([^"]+)"', text)[1]  # type: ignore[index]
