"""vLLM's own model classes on the meta device: one rank at a time, without a GPU, without weights and without other ranks.

The installed vLLM is imported as it is, its compiled operators included. Replaced are: what asks the driver (the platform says what
a card of the asked compute capability would say), the process groups (of which only sizes are asked), and devices (a tensor asked
for on CUDA is made on "meta"). libcuda.so.1 must be found: where there is no driver, a library with the symbols that vLLM's and
Triton's files import, each returning 0, will do (LD_LIBRARY_PATH).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
warnings.simplefilter("ignore")

import torch  # noqa: E402
import vllm.platforms as platforms  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from vllm.platforms.cuda import NvmlCudaPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402

Row = dict[str, Any]
GIB = 2**30
META = torch.device("meta")
NAMES = {80: "NVIDIA A100-SXM4-80GB", 90: "NVIDIA H100 80GB HBM3", 100: "NVIDIA B200"}
TOTAL = int(79.19 * GIB)


class Card(NvmlCudaPlatform):
    """What the driver would say of a card of `capability`."""

    capability = 90

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(*divmod(cls.capability, 10))

    @classmethod
    def has_device_capability(cls, capability: Any, device_id: int = 0) -> bool:
        asked = capability if isinstance(capability, int) else capability[0] * 10 + capability[1]
        return cls.capability >= asked

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return NAMES[cls.capability]

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return TOTAL

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 132

    @classmethod
    def is_fully_connected(cls, *ids: Any) -> bool:
        return True

    @classmethod
    def device_count(cls) -> int:
        return 8

    @classmethod
    def log_warnings(cls) -> None:
        return


class Properties:
    multi_processor_count, total_memory, major, minor, warp_size = 132, TOTAL, 9, 0, 32
    name, L2_cache_size = NAMES[90], 50 * 2**20


class Stream:
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


platforms._current_platform = Card()
torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.device_count = lambda: 8
torch.cuda.get_device_capability = lambda *a: divmod(Card.capability, 10)
torch.cuda.get_device_name = lambda *a: Card.get_device_name()
torch.cuda.get_device_properties = lambda *a: Properties
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *a: None
torch.cuda.Stream = torch.cuda.Event = Stream
torch.cuda.current_stream = lambda *a: Stream()

import vllm  # noqa: E402
import vllm.distributed.parallel_state as parallel  # noqa: E402
import vllm.model_executor.model_loader.utils as loader  # noqa: E402
import vllm.model_executor.models.registry as registry  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.layers import rotary_embedding  # noqa: E402
from vllm.model_executor.layers.attention import Attention, MLAAttention  # noqa: E402
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase  # noqa: E402
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase  # noqa: E402
from vllm.utils.torch_utils import set_default_torch_dtype  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402

registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())
loader.record_metadata_for_reloading = lambda model: None  # keeps meta tensors, which are no memory on a GPU
VERSION = vllm.__version__


class Group:
    """A process group of which only sizes and ranks are asked."""

    def __init__(self, size: int, rank: int) -> None:
        self.world_size, self.rank_in_group, self.rank, self.local_rank = size, rank, rank, rank
        self.ranks, self.first_rank, self.last_rank = list(range(size)), 0, size - 1
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device_group = self.cpu_group = self
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
            if name == "cuda":
                return args[0]
            if name in ("item", "tolist", "__bool__"):
                return {"item": 1, "tolist": [1] * args[0].numel(), "__bool__": True}[name]
        return func(*args, **kwargs)


with META, OnMeta():  # allocates 128 MiB, once in a process: models/engines/vllm.json, latent_workspace_bytes
    importlib.import_module("vllm.v1.attention.backends.mla.flashinfer_mla")


def groups(tensor: int, pipeline: int, stage: int) -> None:
    parallel._TP, parallel._EP, parallel._EPLB = Group(tensor, 0), Group(tensor, 0), Group(tensor, 0)
    parallel._PP, parallel._DP, parallel._WORLD = Group(pipeline, stage), Group(1, 0), Group(tensor * pipeline, 0)
    parallel._DCP, parallel._PCP = Group(1, 0), Group(1, 0)


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
    if name.startswith("lm_head") or ".lm_head" in name or "embed_out" in name or name.endswith("output_layer.weight"):
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


def configuration(case: Row, folder: Path) -> Any:
    (folder / "config.json").write_text(json.dumps(case["config"]))
    world = case["tensor"] * case.get("pipeline", 1)
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=case["max_model_len"],
        tensor_parallel_size=case["tensor"],
        pipeline_parallel_size=case.get("pipeline", 1),
        distributed_executor_backend="external_launcher" if world > 1 else None,
        **case.get("engine_options", {}),
    ).create_engine_config()


def finish(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """What the loader does behind the last weight."""
    for module in model.modules():
        if isinstance(method := getattr(module, "quant_method", None), QuantizeMethodBase):
            method.process_weights_after_loading(module)
    for module in model.modules():
        if isinstance(module, Attention | MLAAttention):
            module.process_weights_after_loading(dtype)


def cache(config: Any, budget: int) -> Row | None:
    Card.update_block_size_for_backend(config)
    specs = {}
    for name, module in config.compilation_config.static_forward_context.items():
        if not isinstance(module, AttentionLayerBase) or getattr(module, "kv_sharing_target_layer_name", None):
            continue
        if spec := module.get_kv_cache_spec(config):
            specs[name] = spec
    if not specs:
        return None
    found = kv_cache_utils.get_kv_cache_configs(config, [specs], [budget])[0]
    page_tokens = min(group.kv_cache_spec.block_size for group in found.kv_cache_groups)
    return {
        "budget": budget,
        "max_model_len": config.model_config.max_model_len,
        "batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "pages": found.num_blocks,
        "page_tokens": page_tokens,
        "tokens": found.num_blocks // len(found.kv_cache_groups) * page_tokens,
        "allocated": sum(tensor.size for tensor in found.kv_cache_tensors),
        "full_requests": int(kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, found)),
    }


def execute(case: Row, budget: int) -> Row:
    """case: config, tensor, pipeline, stage, max_model_len, engine_options, capability."""
    Card.capability = case.get("capability", 90)
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(case, Path(folder))
    groups(case["tensor"], case.get("pipeline", 1), case.get("stage", 0))
    rotary_embedding._ROPE_DICT.clear()
    gc.collect()
    gc.freeze()
    dtype = config.model_config.dtype
    with set_default_torch_dtype(dtype), META, OnMeta(), torch.no_grad(), set_current_vllm_config(config):
        model = loader.initialize_model(vllm_config=config)
        finish(model, dtype)
    gc.collect()
    known = storages(model)
    sizes = dict.fromkeys(("embedding", "head", "tower", "tables", "layers", "scalars"), 0)
    for name, size in known.values():
        sizes[part_of(name)] += size
    sizes["layers"] += others(known)
    sizes.pop("scalars")
    row: Row = {"bytes": sizes, "batched_tokens": config.scheduler_config.max_num_batched_tokens}
    if case.get("pipeline", 1) == 1 and (found := cache(config, budget)):
        row["cache"] = found
    return row
