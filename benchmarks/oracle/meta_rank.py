"""One rank of a server on the meta device, whichever engine it is: a card that is not there, groups of which only sizes are asked,
and what a model's tensors add up to.

Import it before the engine: it replaces what asks the driver.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Row = dict[str, Any]
GIB = 2**30
META = torch.device("meta")
NAMES = {80: "NVIDIA A100-SXM4-80GB", 90: "NVIDIA H100 80GB HBM3", 100: "NVIDIA B200"}
TOTAL = int(79.19 * GIB)


class Capability:
    """Of the card: ten times the major number and the minor one."""

    now = 90


class Properties:
    multi_processor_count, total_memory, major, minor, warp_size = 132, TOTAL, 9, 0, 32
    name, L2_cache_size = NAMES[90], 50 * 2**20


class Stream:
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


def pretend_cuda() -> None:
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda *a: None
    torch.cuda.device_count = lambda: 8
    torch.cuda.get_device_capability = lambda *a: divmod(Capability.now, 10)
    torch.cuda.get_device_name = lambda *a: NAMES[Capability.now]
    torch.cuda.get_device_properties = lambda *a: Properties
    torch.cuda.mem_get_info = lambda *a: (TOTAL, TOTAL)
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *a: None
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.current_stream = lambda *a: Stream()
    torch.accelerator.current_device_index = lambda: 0


class Communicator:
    """A process group of torch.distributed, as far as it is asked."""

    def __init__(self, size: int, rank: int) -> None:
        self.members, self.own = size, rank

    def size(self) -> int:
        return self.members

    def rank(self) -> int:
        return self.own


class Group:
    """A group of an engine of which only sizes and ranks are asked."""

    def __init__(self, size: int, rank: int) -> None:
        self.world_size, self.rank_in_group, self.rank, self.local_rank = size, rank, rank, rank
        self.ranks, self.first_rank, self.last_rank = list(range(size)), 0, size - 1
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device_group = self.cpu_group = Communicator(size, rank)
        self.device_communicator = self.mq_broadcaster = None
        self.unique_name, self.device, self.use_custom_op_call = "group", META, True

    def size(self) -> int:
        return self.world_size


class OnMeta(TorchFunctionMode):
    """CUDA becomes meta; what would be read back from the GPU is 1."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")) or isinstance(kwargs.get("device"), int):
            kwargs["device"] = META
        args = tuple(META if str(a).startswith("cuda") and isinstance(a, str | torch.device) else a for a in args)
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            if name in ("cuda", "cpu") or (name == "to" and "cpu" in [str(a) for a in args[1:]]):
                return args[0]
            if name == "allclose":
                return True
            if name in ("item", "tolist", "__bool__"):
                one = 1.0 if args[0].dtype.is_floating_point else 1
                listed = [one] * args[0].numel() if args[0].dim() else one
                return {"item": 1, "tolist": listed, "__bool__": True}[name]
        return func(*args, **kwargs)


def part_of(name: str) -> str:
    """Which of the row's figures a parameter or buffer belongs to."""
    if "cos_sin_cache" in name or "rotary" in name:
        return "tables"
    towers = ("visual.", "vision", "audio", "multi_modal", "mm_projector", "patch_merger", "mlp1.")
    if any(t in name for t in towers) and "language_model" not in name:
        return "tower"
    if name.endswith(("_k_scale", "_v_scale", "_q_scale", "_prob_scale")):
        return "scalars"
    tables = ("embed_tokens", "embeddings.", "wte.", "word_embeddings.", "tok_embeddings", "embed_in.", ".embedding.")
    if "layers." not in name and any(t in name for t in tables):
        return "embedding"
    if (
        name.startswith("lm_head")
        or ".lm_head" in name
        or "embed_out" in name
        or name.endswith("output_layer.weight")
        or name == "output.weight"
    ):
        return "head"
    return "layers"


def storages(model: torch.nn.Module) -> dict[int, tuple[str, int]]:
    out: dict[int, tuple[str, int]] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        storage = tensor.untyped_storage()
        out.setdefault(storage._cdata, (name, storage.nbytes()))
    return out


def others(known: dict[int, tuple[str, int]]) -> int:
    """Bytes of tensors that the model holds and did not register; scalars are left out."""
    found: dict[int, int] = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing.is_meta and thing.numel() > 1:
            found[thing.untyped_storage()._cdata] = thing.untyped_storage().nbytes()
    return sum(size for key, size in found.items() if key not in known)


def forget() -> None:
    """What lives by now belongs to no model that comes."""
    gc.collect()
    gc.freeze()


def weights_of(model: torch.nn.Module) -> Row:
    """Bytes of a model and of all that was made with it since forget()."""
    gc.collect()
    known = storages(model)
    sizes = dict.fromkeys(("embedding", "head", "tower", "tables", "layers", "scalars"), 0)
    for name, size in known.values():
        sizes[part_of(name)] += size
    sizes["layers"] += others(known)
    sizes.pop("scalars")
    return sizes
