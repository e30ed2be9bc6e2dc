"""vLLM's own model classes on the meta device: one rank at a time, without a GPU, without weights and without other ranks.

The installed vLLM is imported as it is, its compiled operators included. Replaced are: what asks the driver (the platform says what
a card of the asked compute capability would say), the process groups (of which only sizes are asked), and devices (a tensor asked
for on CUDA is made on "meta"): meta_rank.py. libcuda.so.1 must be found: where there is no driver, a library with the symbols that
vLLM's and Triton's files import, each returning 0, will do (LD_LIBRARY_PATH).
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", TORCHDYNAMO_DISABLE="1")
warnings.simplefilter("ignore")

import torch  # noqa: E402
import vllm.platforms as platforms  # noqa: E402
from meta_rank import META, NAMES, TOTAL, Capability, Group, OnMeta, Row, forget, pretend_cuda, weights_of  # noqa: E402
from vllm.platforms.cuda import NvmlCudaPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402


class Card(NvmlCudaPlatform):
    """What the driver would say of a card of the asked capability."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(*divmod(Capability.now, 10))

    @classmethod
    def has_device_capability(cls, capability: Any, device_id: int = 0) -> bool:
        asked = capability if isinstance(capability, int) else capability[0] * 10 + capability[1]
        return Capability.now >= asked

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return NAMES[Capability.now]

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


platforms._current_platform = Card()
pretend_cuda()

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
from vllm.v1.spec_decode.eagle import SpecDecodeBaseProposer  # noqa: E402

registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())
loader.record_metadata_for_reloading = lambda model: None  # keeps meta tensors, which are no memory on a GPU
VERSION = vllm.__version__


with META, OnMeta():  # allocates 128 MiB, once in a process: models/engines/vllm.json, latent_workspace_bytes
    importlib.import_module("vllm.v1.attention.backends.mla.flashinfer_mla")


def scales_for_deep_gemm(sf: Any, mn: int, k: int, recipe: Any, num_groups: int = 1, **known: Any) -> Any:
    """What DeepGEMM makes of a matrix's scales (csrc/apis/layout.hpp): on Hopper what they are; on Blackwell one byte for a row and
    128 columns, four of them in an int32, rows rounded up to 16 bytes."""
    if Capability.now < 100:
        return sf
    packed = -(-k // recipe[2] // 4)
    return torch.empty((num_groups, packed, -(-mn // 4) * 4), dtype=torch.int32, device=META).transpose(1, 2)


try:
    import vllm.model_executor.layers.quantization.utils.fp8_utils as fp8_utils

    fp8_utils.transform_sf_into_required_layout = scales_for_deep_gemm
except ImportError:
    pass


def groups(tensor: int, pipeline: int, stage: int) -> None:
    parallel._TP, parallel._EP, parallel._EPLB = Group(tensor, 0), Group(tensor, 0), Group(tensor, 0)
    parallel._PP, parallel._DP, parallel._WORLD = Group(pipeline, stage), Group(1, 0), Group(tensor * pipeline, 0)
    parallel._DCP, parallel._PCP = Group(1, 0), Group(1, 0)


def configuration(case: Row, folder: Path) -> Any:
    (folder / "config.json").write_text(json.dumps(case["config"]))
    options = dict(case.get("engine_options", {}))
    if draft := case.get("draft"):
        (folder / "draft").mkdir()
        (folder / "draft/config.json").write_text(json.dumps(draft["config"]))
        of = {"model": str(folder / "draft"), "method": draft["method"], "num_speculative_tokens": draft["tokens"]}
        options["speculative_config"] = of
    if ahead := case.get("mtp"):
        options["speculative_config"] = {"method": "mtp", "num_speculative_tokens": ahead}
    world = case["tensor"] * case.get("pipeline", 1)
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=case["max_model_len"],
        tensor_parallel_size=case["tensor"],
        pipeline_parallel_size=case.get("pipeline", 1),
        distributed_executor_backend="external_launcher" if world > 1 else None,
        **options,
    ).create_engine_config()


def finish(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """What the loader does behind the last weight."""
    for module in model.modules():
        if isinstance(method := getattr(module, "quant_method", None), QuantizeMethodBase):
            method.process_weights_after_loading(module)
    for module in model.modules():
        if isinstance(module, Attention | MLAAttention):
            module.process_weights_after_loading(dtype)


class Proposer:
    """vLLM's own methods decide on the tables that a draft shares; its checkpoint has no embedding of the model's width, and no head
    but EAGLE-3's. Tables of other sizes are never equal, which tensors on the meta device cannot be asked."""

    use_local_argmax_reduction = False
    _maybe_share_embeddings = SpecDecodeBaseProposer._maybe_share_embeddings
    _maybe_share_lm_head = SpecDecodeBaseProposer._maybe_share_lm_head

    def __init__(self, model: torch.nn.Module, config: Any = None) -> None:
        self.model, self.vllm_config = model, config
        self.model.has_own_embed_tokens = self.model.has_own_lm_head = False


def with_draft(model: torch.nn.Module, config: Any, draft: Row) -> torch.nn.Module:
    head = loader.initialize_model(vllm_config=config, model_config=config.speculative_config.draft_model_config)
    finish(head, config.model_config.dtype)
    proposer = Proposer(head)
    table = getattr(model.model, "embed_tokens", None) or model.model.embedding
    if head.model.embed_tokens.weight.shape == table.weight.shape:
        proposer._maybe_share_embeddings(model)
    if draft["method"] == "eagle":
        proposer._maybe_share_lm_head(model)
    return torch.nn.ModuleDict({"model": model, "draft": head})


def with_blocks(model: torch.nn.Module, config: Any) -> torch.nn.Module:
    """The checkpoint's own MTP blocks, with the tables that vLLM's proposer gives them."""
    blocks = loader.initialize_model(vllm_config=config, model_config=config.speculative_config.draft_model_config)
    finish(blocks, config.model_config.dtype)
    proposer = Proposer(blocks, config)
    del blocks.has_own_embed_tokens, blocks.has_own_lm_head
    proposer._maybe_share_embeddings(model)
    proposer._maybe_share_lm_head(model)
    return torch.nn.ModuleDict({"model": model, "draft": blocks})


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
    packed = found.kv_cache_tensors[0] if getattr(found.kv_cache_tensors[0], "block_stride", 0) else None
    sizes = [group.kv_cache_spec.block_size for group in found.kv_cache_groups]
    page_tokens = sizes[0] if packed else min(sizes)  # in front: layers that keep all tokens
    tokens = found.num_blocks // len(found.kv_cache_groups) * page_tokens
    if capacity := getattr(kv_cache_utils, "get_kv_cache_capacity", None):  # 0.23.1 and later
        tokens = int(capacity(config, found)[0])
    return {
        "budget": budget,
        "max_model_len": config.model_config.max_model_len,
        "batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "pages": found.num_blocks,
        "page_tokens": page_tokens,
        "tokens": tokens,
        "allocated": packed.size if packed else sum(tensor.size for tensor in found.kv_cache_tensors),
        "full_requests": int(kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, found)),
    }


def execute(case: Row, budget: int) -> Row:
    """case: config, tensor, pipeline, stage, max_model_len, engine_options, capability, draft (method, config, tokens)."""
    Capability.now = case.get("capability", 90)
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(case, Path(folder))
    groups(case["tensor"], case.get("pipeline", 1), case.get("stage", 0))
    rotary_embedding._ROPE_DICT.clear()
    forget()
    dtype = config.model_config.dtype
    with set_default_torch_dtype(dtype), META, OnMeta(), torch.no_grad(), set_current_vllm_config(config):
        model = loader.initialize_model(vllm_config=config)
        finish(model, dtype)
        if draft := case.get("draft"):
            model = with_draft(model, config, draft)
        elif case.get("mtp"):
            model = with_blocks(model, config)
    row: Row = {"bytes": weights_of(model), "batched_tokens": config.scheduler_config.max_num_batched_tokens}
    if case.get("pipeline", 1) == 1 and (found := cache(config, budget)):
        row["cache"] = found
    return row
