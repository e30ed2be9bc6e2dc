"""SGLang's own ModelRunner on the meta device: one rank at a time, without a GPU, without weights and without other ranks.

The installed SGLang is imported as it is. Replaced are: sgl_kernel and deep_gemm (empty modules: kernels are called in no
constructor), what asks the driver, the process groups (of which only sizes are asked), devices (a tensor asked for on CUDA is made
on "meta"), and of the runner: loading (the classes' own constructors and what is done behind the last weight), kernels and graphs.
What is left is SGLang's: the arguments' own defaults, the model, the sizing of the pools from a budget, the pools. Of Hopper
alone. libcuda.so.1 must be found: see vllm_code.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", SGLANG_IS_FLASHINFER_AVAILABLE="0")
warnings.simplefilter("ignore")

import torch  # noqa: E402
from meta_rank import GIB, META, Group, OnMeta, Properties, Row, forget, pretend_cuda, weights_of  # noqa: E402


class Nothing:
    """A kernel: it can be named, decorated with and called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *args: Any, **kwargs: Any) -> None: ...


class Scalars:
    """sgl_kernel.scalar_type.scalar_types: a number's bits stand in its name (uint4b8)."""

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(size_bits=int(re.findall(r"\d+", name)[0]))


class Kernels(types.ModuleType):
    __version__, __file__, __path__ = "99.0", "kernels", []  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        special = {"scalar_types": Scalars(), "get_num_sms": lambda: Properties.multi_processor_count}
        return special.get(name, Nothing())


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """vLLM is not found: SGLang would take operators of an installed one."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.split(".")[0]
        if top == "vllm":
            raise ModuleNotFoundError(name)
        if top in ("sgl_kernel", "deep_gemm", "outlines"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Kernels(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def without_operators(register: Any) -> Any:
    """register_fake, of operators that exist."""

    def registered(op: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(op, str) and op.startswith("sgl_kernel::"):
            return lambda function: function
        return register(op, *args, **kwargs)

    return registered


sys.meta_path.insert(0, Finder())
torch.library.register_fake = without_operators(torch.library.register_fake)
pretend_cuda()
torch.get_device_module = lambda *a: torch.cuda

import sglang  # noqa: E402
import sglang.srt.distributed.parallel_state as parallel  # noqa: E402
import sglang.srt.layers.dp_attention as dp_attention  # noqa: E402
import sglang.srt.layers.rotary_embedding.factory as rotary  # noqa: E402
import sglang.srt.model_executor.model_runner as runner  # noqa: E402
import sglang.srt.model_executor.model_runner_kv_cache_mixin as pools  # noqa: E402
import sglang.srt.model_loader.loader as loader  # noqa: E402
import sglang.srt.server_args as server_args  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.layers.quantization.base_config import QuantizeMethodBase  # noqa: E402
from sglang.srt.model_loader.utils import set_default_torch_dtype  # noqa: E402
from transformers import AutoConfig, PretrainedConfig  # noqa: E402

VERSION = sglang.__version__
server_args.get_device_memory_capacity = lambda *a, **k: 81559  # nvidia-smi's MiB of an H100
runner.compute_initial_expert_location_metadata = lambda **k: None


def groups(case: Row) -> None:
    tensor, expert, data = case["tensor"], case.get("expert", 1), case.get("attention_data", 1)
    pipeline = case.get("pipeline", 1)
    parallel._TP, parallel._PP = Group(tensor, 0), Group(pipeline, case.get("stage", 0))
    parallel._WORLD = Group(tensor * pipeline, 0)
    parallel._ATTN_TP, parallel._ATTN_CP = Group(tensor // data, 0), Group(1, 0)
    parallel._MOE_EP, parallel._MOE_TP, parallel._MOE_DP = Group(expert, 0), Group(tensor // expert, 0), Group(1, 0)


def wide_tables(model: torch.nn.Module) -> int:
    held = [getattr(m, name, None) for m in model.modules() for name in ("cos_cached_total", "sin_cached_total")]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held if t is not None}.values())


class Rank(runner.ModelRunner):
    """The real one without what runs kernels. With a static fraction of 1 the budget of the pools is what is free."""

    budget = 0
    weights: Row

    def init_torch_distributed(self) -> float:
        dp_attention.initialize_dp_attention(server_args=self.server_args, model_config=self.model_config)
        self.tp_group, self.pp_group, self.attention_tp_group = parallel._TP, parallel._PP, parallel._ATTN_TP
        return self.budget / GIB

    def load_model(self) -> None:
        config, load = self.model_config, runner.LoadConfig(load_format="dummy")
        quantization = loader._get_quantization_config(config, load)
        with set_default_torch_dtype(config.dtype):
            self.model = loader._initialize_model(config, load, quantization)
            for module in self.model.modules():
                if isinstance(method := getattr(module, "quant_method", None), QuantizeMethodBase):
                    method.process_weights_after_loading(module)
            if hasattr(self.model, "post_load_weights"):
                self.model.post_load_weights()
            elif type(self.model).__name__ == "KimiLinearForCausalLM":
                self.model.load_weights(())  # divides kv_b behind the last weight
        self.weights = weights_of(self.model)
        wide = wide_tables(self.model)  # of a rotation that did not register them
        self.weights["tables"] += wide
        self.weights["layers"] -= wide
        self.dtype = self.kv_cache_dtype = config.dtype
        self.sliding_window_size = config.attention_chunk_size or config.sliding_window_size
        if hasattr(self.model, "get_attention_sliding_window_size"):
            self.sliding_window_size = self.model.get_attention_sliding_window_size()

    def _resolve_token_capacity(self, profiled_tokens: int) -> int:
        return int(profiled_tokens // self.page_size * self.page_size)  # of this stage by itself

    def nothing(self) -> None: ...

    init_cublas = init_attention_backend = kernel_warmup = init_device_graphs = nothing
    init_piecewise_cuda_graphs = init_routed_experts_capturer = nothing


pools.get_available_gpu_memory = runner.get_available_gpu_memory = lambda *a, **k: Rank.budget / GIB


def tensors_in(thing: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Of a pool: what its attributes hold, but for tables of addresses and of places."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from tensors_in(one, seen)
    elif type(thing).__module__.startswith("sglang"):
        for name, one in vars(thing).items():
            if not any(t in name for t in ("ptrs", "strides", "mapping", "free")):
                yield from tensors_in(one, seen)


def bytes_in(thing: Any, seen: set[int]) -> int:
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors_in(thing, seen) if t.is_meta}
    return sum(storages.values())


def cache(rank: Rank) -> Row:
    seen: set[int] = set()
    requests = rank.req_to_token_pool
    out: Row = {"budget": Rank.budget, "max_model_len": rank.model_config.context_len, "tokens": rank.max_total_num_tokens}
    out["page_tokens"] = rank.page_size
    if hasattr(requests, "mamba_pool"):
        out |= {"state": bytes_in(requests.mamba_pool, seen), "state_slots": rank.server_args.max_mamba_cache_size}
    if rank.is_hybrid_swa:
        out["window_tokens"] = rank.swa_max_total_num_tokens
    out["kv"] = bytes_in(rank.token_to_kv_pool, seen)
    out["table"] = bytes_in(requests, seen)
    out["requests"] = rank.max_running_requests
    return out


COMMON = {
    "pad_token_id": None,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    **dict.fromkeys(("embedding_dropout", "output_dropout"), 0.0),
    **dict.fromkeys(("use_bias", "use_qkv_bias"), False),
}


def known_to_transformers(config: Row) -> None:
    """Configurations that a checkpoint's own code describes."""
    kind = config["model_type"]
    if kind == "deepseek_v32":  # SGLang makes it a DeepSeek V3 by itself
        return
    try:
        AutoConfig.for_model(kind)
    except ValueError:
        AutoConfig.register(kind, type(kind, (PretrainedConfig,), {"model_type": kind, **COMMON}))


def execute(case: Row, budget: int) -> Row:
    """case: config, tensor, pipeline, stage, expert, attention_data, max_model_len, engine_options."""
    Rank.budget = budget
    known_to_transformers(case["config"])
    sizes = {"tp_size": case["tensor"], "pp_size": case.get("pipeline", 1), "ep_size": case.get("expert", 1)}
    if (data := case.get("attention_data", 1)) > 1:
        sizes |= {"dp_size": data, "enable_dp_attention": True}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(case["config"]))
        arguments = server_args.ServerArgs(
            model_path=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            context_length=case["max_model_len"],
            mem_fraction_static=1.0,
            device="cuda",
            **sizes,
            **case.get("engine_options", {}),
        )
        config = ModelConfig.from_server_args(arguments)
    groups(case)
    rotary._ROPE_DICT.clear()
    forget()
    ranks = {"tp_rank": 0, "moe_ep_rank": 0, "dp_rank": 0, "attn_cp_rank": 0, "moe_dp_rank": 0, "pp_rank": case.get("stage", 0)}
    with META, OnMeta(), torch.no_grad():
        server_args.set_global_server_args_for_scheduler(arguments)
        rank = Rank(
            model_config=config,
            mem_fraction_static=1.0,
            gpu_id=0,
            tp_size=sizes["tp_size"],
            moe_ep_size=sizes["ep_size"],
            pp_size=sizes["pp_size"],
            nccl_port=1,
            server_args=arguments,
            **ranks,
        )
    return {"bytes": rank.weights, "batched_tokens": arguments.chunked_prefill_size, "cache": cache(rank)}
