"""FSDP1 and FSDP2 for fuzz.py: what is drawn of their settings, and the second step under them."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import sys
from typing import Any

import execute_fsdp1
import fuzz_heads
import fuzz_optimizers
import sharded
import torch
import torch.distributed as dist
from execute import Row
from execute_fsdp1 import PREFETCH, Resized
from execute_parallel import UNSHARED
from fuzz_models import flag, some
from sharded import ResizedParts, on_fake_tensors
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["clean_up", "draw", "execute", "on_fake_tensors", "settings_of", "stand_in"]
PLAIN_ITEM = torch.Tensor.item
KEEPING = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Parts(ResizedParts):
    """A view holds the tensor that it was made of, whoever else does: the engine never adds to it in place (as computed on the CPU)."""

    unshared = UNSHARED - {(4, 3, 3)}


class OnTheDevice(Resized):
    """Of fake tensors of two devices what lies on the GPU, which the CPU stands for; the host is the meta device."""

    def own(self, tensor: torch.Tensor) -> int:
        return 0 if tensor.is_meta else super().own(tensor)

    def born(self, tensor: torch.Tensor) -> None:
        if not tensor.is_meta:
            super().born(tensor)


class HostElsewhere:
    """torch as FSDP1's modules see it: what they call the CPU is the meta device."""

    class device:
        def __new__(cls, *given: Any) -> Any:
            return torch.device("meta") if given == ("cpu",) else torch.device(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextlib.contextmanager
def host_elsewhere() -> Any:
    modules: list[Any] = [
        sys.modules[f"torch.distributed.fsdp.{name}"] for name in ("_flat_param", "_init_utils", "_runtime_utils")
    ]
    for module in modules:
        module.torch = HostElsewhere()
    try:
        yield
    finally:
        for module in modules:
            module.torch = torch


def follow_devices() -> None:
    """What PyTorch does between CPU and GPU: the data of a tensor are replaced by those of another device."""
    plain: Any = torch._C.TensorBase.data
    make = torch.Tensor._make_subclass

    def put(tensor: Any, data: Any) -> None:
        plain.__set__(tensor, data)
        if isinstance(data, FakeTensor):
            tensor.fake_device = data.fake_device

    def made(*args: Any, device_for_backend_keys: Any = None, **kwargs: Any) -> Any:
        if device_for_backend_keys is None:
            return make(*args, **kwargs)
        keys = torch.device("cpu") if device_for_backend_keys.type == "meta" else device_for_backend_keys
        return make(*args, device_for_backend_keys=keys, **kwargs)

    FakeTensor.data = property(plain.__get__, put)  # type: ignore[assignment,misc]
    torch.Tensor._make_subclass = staticmethod(made)  # type: ignore[method-assign,assignment]


def with_numbers(function: Any) -> Any:
    """A mesh of ranks has numbers, whatever is fake around it."""

    def replaced(*args: Any) -> Any:
        faked, torch.Tensor.item = torch.Tensor.item, PLAIN_ITEM  # type: ignore[method-assign]
        try:
            with unset_fake_temporarily():
                return function(*args)
        finally:
            torch.Tensor.item = faked  # type: ignore[method-assign]

    return replaced


def stand_in() -> None:
    execute_fsdp1.stand_in()
    execute_fsdp1.Device.current_device = lambda _self: torch.device("cpu")  # type: ignore[attr-defined]
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
    follow_devices()
    sharded.follow_resizing()
    module = sys.modules["torch.distributed.fsdp._fully_shard._fully_shard"]
    module._get_post_forward_mesh_info = with_numbers(module._get_post_forward_mesh_info)  # type: ignore[attr-defined]


def clean_up() -> None:
    """Behind a step that failed."""
    Resized.now = ResizedParts.now = None
    if dist.is_initialized():
        dist.destroy_process_group()


def draw(rng: random.Random, case: Row, engine: str) -> Row:
    out: Row = {
        "dtype": some(rng, "fp32", "fp32", "bf16"),
        "compute": some(rng, "bf16", "bf16", "fp16"),
        "reduce": some(rng, "fp32", "bf16"),
        "ranks": some(rng, 2, 3, 4, 8),
        "deferred": flag(rng) and case["micro_batches"] > 1,
        "forward_prefetch": rng.random() < 0.2,
        "lora": None,
        "every": 1,
    }
    if out["dtype"] == "bf16":
        out["compute"] = "bf16"
    if out["reduce"] == "bf16":
        out["reduce"] = out["compute"]
    if engine == "fsdp1":
        out |= {
            "strategy": some(rng, "FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
            "backward_prefetch": some(rng, "pre", "pre", "post", "none"),
            "use_orig_params": flag(rng),
        }
        if case["optimizer"].startswith("adam") and out["use_orig_params"]:
            out["use_orig_params"] = False
    else:
        out |= {"reshard": flag(rng), "root_reshard": flag(rng), "wrap_embedding": flag(rng), "wrap_head": flag(rng)}
    return out


def draw_replicas(rng: random.Random, case: Row) -> Row:
    """HSDP: as many groups of ranks that each hold all parameters."""
    if case["engine"] == "single" or case.get("strategy") == "NO_SHARD" or rng.random() < 0.8:
        return {}
    out: Row = {"groups": some(rng, 2, 3)}
    return out | ({"strategy": some(rng, "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")} if case["engine"] == "fsdp1" else {})


def draw_more(rng: random.Random, case: Row) -> Row:
    """What is drawn behind everything else: more ranks, slices that stay, autocast, adapters."""
    if case["engine"] not in ("fsdp1", "fsdp2"):
        return {}
    out: Row = {"ranks": some(rng, 2, 3, 4, 6, 8, 16, 24, 64)}
    if case["engine"] == "fsdp2" and case["reshard"] and rng.random() < 0.2 and out["ranks"] % 2 == 0 and out["ranks"] > 2:
        out["kept_over"] = some(rng, 2, out["ranks"] // 2)
        out["root_reshard"] = True
    if rng.random() < 0.25 and case["compute"] == "bf16":
        out["autocast"] = True
    if rng.random() < 0.25:
        lora: Row = {"rank": some(rng, 2, 5, 8), "dropout": some(rng, 0.0, 0.1), "verl": flag(rng)}
        lora |= {"targets": some(rng, "all-linear", "q_proj v_proj"), "format": some(rng, "fp32", "storage")}
        out["lora"] = lora
        if case["engine"] == "fsdp1":
            out |= {"forward_prefetch": False, "use_orig_params": False}
    elif case["engine"] == "fsdp1" and not case["optimizer"].endswith("_loop"):
        out["use_orig_params"] = flag(rng)
    return out


def draw_last(rng: random.Random, case: Row) -> Row:
    """Behind that: policies that name no format, that leave a layer's arguments alone or cast what the model returns; parameters
    on the host under FSDP1."""
    if case["engine"] not in ("fsdp1", "fsdp2"):
        return {}
    out: Row = {}
    if rng.random() < 0.35:
        stored = "bf16" if case["of_experts"] else some(rng, "bf16", "bf16", "fp32", "fp16")
        out |= {"policy": "none", "dtype": stored, "compute": stored, "reduce": some(rng, stored, stored, "fp32", "bf16")}
        out["autocast"] = stored in ("fp32", "bf16") and rng.random() < 0.4
        if case["lora"] is None and flag(rng):
            out["lora"] = {"rank": some(rng, 2, 5, 8), "dropout": some(rng, 0.0, 0.1), "verl": flag(rng), "format": "fp32"}
            out["lora"]["targets"] = some(rng, "all-linear", "q_proj v_proj")
            out |= {"forward_prefetch": False, "use_orig_params": False} if case["engine"] == "fsdp1" else {}
        if stored == "fp32" and not out["autocast"] and case["attention"] == "flash_attention_2":
            out |= {"attention": "sdpa", "tokens": max(32, case["tokens"] // 32 * 32)}
    elif case["engine"] == "fsdp2" and rng.random() < 0.2:
        out["cast_inputs"] = False
    if case["engine"] == "fsdp2" and rng.random() < 0.15:
        out["output"] = some(rng, "fp32", "bf16")
    if case["engine"] == "fsdp1" and rng.random() < 0.25:
        out |= {"offload": True, "autocast": False, "deferred": case["micro_batches"] > 1}
        if out.get("compute", case["compute"]) == "fp32" and case["attention"] == "flash_attention_2":
            out |= {"attention": "sdpa", "tokens": max(32, case["tokens"] // 32 * 32)}
    return out


def draw_heads(rng: random.Random, case: Row) -> Row:
    """The heads of one device, and adapters by the model's own names."""
    if case["engine"] not in ("fsdp1", "fsdp2"):
        return {}
    out: Row = {}
    if rng.random() < 0.35:
        out["head"] = some(rng, *(head for head in fuzz_heads.HEADS if head != "value"))
        if out["head"] not in ("logprob_fp32", "logprob_bf16"):
            out["keep_outputs"] = False
        if out["head"] not in ("logprob_fp32", "logprob_bf16", "logprob_lse"):
            out["kept"] = 0
    if case["lora"] and flag(rng):
        words = some(rng, "own", "own", "q_proj k_proj v_proj o_proj", "gate_proj up_proj down_proj")
        out["lora"] = case["lora"] | {"targets": words, "seed": rng.randrange(10**6)}
    return out


def settings_of(case: Row) -> Row:
    groups = case.get("groups", 1)
    formats = formats_of(case)
    precision: Row = {"storage": case["dtype"], "compute": case["compute"], "reduce": case["reduce"]}
    precision |= {key: False for key, name in POLICY.items() if name not in formats}
    if "cast_inputs" in case:
        precision["cast_inputs"] = False
    if "output" in case:
        precision["output"] = case["output"]
    out: Row = {
        "layout": f"d{case['ranks'] * groups}",
        "precision": precision,
        "gradient_sync_every_micro_batch": not case["deferred"],
        "forward_prefetch": case["forward_prefetch"],
    }
    if case["engine"] == "fsdp1":
        return out | {
            "replicas": case["ranks"] if case["strategy"] == "NO_SHARD" else groups,
            "reshard_after_forward": case["strategy"] not in KEEPING,
            "backward_prefetch": case["backward_prefetch"],
            "use_orig_params": case["use_orig_params"],
            **({"cpu_offload_policy": True} if case.get("offload") else {}),
        }
    out |= {"replicas": groups, "reshard_after_forward": case["reshard"], "root_reshard": case["root_reshard"]}
    if case.get("kept_over"):
        out["reshard_ranks"] = case["kept_over"]
    return out | {"wrap_embedding": case["wrap_embedding"], "wrap_head": case["wrap_head"]}


def layers_of(model: Any) -> list[Any]:
    return list(next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList)))


POLICY = {"cast_parameters": "param_dtype", "cast_gradients": "reduce_dtype"}  # of a job: FSDP's


def formats_of(case: Row) -> Row:
    """What is as stored is left out: FSDP2 casts a layer's arguments to a format that is named."""
    out: Row = {}
    if case["compute"] != case["dtype"] or (case["lora"] and case.get("policy") != "none"):
        out["param_dtype"] = FORMATS[case["compute"]]
    if case["reduce"] != case["compute"]:
        out["reduce_dtype"] = FORMATS[case["reduce"]]
    if "cast_inputs" in case:
        out["cast_forward_inputs"] = False
    if "output" in case:
        out["output_dtype"] = FORMATS[case["output"]]
    return out


def mesh_of(case: Row) -> Any:
    if "groups" not in case:
        return init_device_mesh("cpu", (case["ranks"],))
    return init_device_mesh("cpu", (case["groups"], case["ranks"]), mesh_dim_names=("replicate", "shard"))


def adapter_alone(module: Any) -> bool:
    """peft's fsdp_auto_wrap_policy (peft/utils/other.py, 0.21)."""
    weight = getattr(module, "weight", None)
    return not list(module.named_children()) and weight is not None and weight.requires_grad


def flat(model: Any, case: Row, mesh: Any) -> Any:
    layers, formats = {type(layer) for layer in layers_of(model)}, formats_of(case)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)
    if case["lora"] and not case["lora"].get("joint"):
        trained = functools.partial(lambda_auto_wrap_policy, lambda_fn=adapter_alone)
        policy = functools.partial(_or_policy, policies=[trained, policy])
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        sharding_strategy=getattr(ShardingStrategy, case["strategy"]),
        mixed_precision=MixedPrecision(**formats) if formats else None,
        cpu_offload=CPUOffload(offload_params=True) if case.get("offload") else None,
        backward_prefetch=PREFETCH[case["backward_prefetch"]],
        forward_prefetch=case["forward_prefetch"],
        use_orig_params=case["use_orig_params"],
        device_mesh=mesh if "groups" in case else None,
    )


def split(model: Any, case: Row, mesh: Any) -> Any:
    """fully_shard of layers, of what is wrapped beside them, and of the model."""
    policy = MixedPrecisionPolicy(**formats_of(case))
    layers = layers_of(model)
    again = case.get("kept_over") or case["reshard"]
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    tied = tied or (case["lora"] and model.config.tie_word_embeddings)  # also where one of them has a trained copy
    if case["wrap_embedding"] and not tied:
        fully_shard(model.get_input_embeddings(), mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    if case["wrap_head"] and not tied:
        fully_shard(model.get_output_embeddings(), mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=case.get("kept_over") or case["root_reshard"])
    if case["forward_prefetch"]:
        for layer, following in zip(layers, layers[1:], strict=False):
            layer.set_modules_to_forward_prefetch([following])
    return model


def micro_batch(model: Any, case: Row, batch: tuple[Row, torch.Tensor], loss_of: Any, lives: Any, peaks: Row) -> None:
    """Forward and backward pass of one micro-batch: raises what `peaks` knows of either."""
    lives.highest = lives.live
    with torch.autocast("cpu", torch.bfloat16) if case.get("autocast") else contextlib.nullcontext():
        loss, _kept = loss_of(model, case, *batch)
    peaks["forward"] = max(peaks["forward"], lives.highest)
    if case.get("forward_only"):
        return
    lives.highest = lives.live
    loss.backward()
    peaks["backward"] = max(peaks["backward"], lives.highest)


def step(model: Any, case: Row, lives: Any, optimizer: Any, device: str, loss_of: Any, inputs_of: Any) -> Row:
    peaks = {"forward": 0, "backward": 0, "optimizer": 0}
    for number in range(case["micro_batches"]):
        given = inputs_of(case, device)
        labels = torch.empty_like(given["input_ids"])
        last = number == case["micro_batches"] - 1
        context: Any = contextlib.nullcontext()
        if case["deferred"] and case["engine"] == "fsdp1" and not last:
            context = model.no_sync()
        if case["engine"] == "fsdp2" and case["deferred"]:
            model.set_requires_gradient_sync(last)
        with context:
            micro_batch(model, case, (given, labels), loss_of, lives, peaks)
    if case.get("forward_only"):
        return peaks
    lives.highest = lives.live
    if case["clip"] and case["engine"] == "fsdp2":
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0, foreach=True)
    elif case["clip"]:
        model.clip_grad_norm_(1.0)
    optimizer.step()
    peaks["optimizer"] = lives.highest
    fuzz_optimizers.leave_steps_to_the_host(optimizer, lives, bool(case.get("offload")))
    optimizer.zero_grad()
    return peaks


def take_views(model: Any, case: Row, device: str, loss_of: Any, inputs_of: Any) -> None:
    """Until FSDP1 gathers a unit for the first time, its parameters are views in the format of the storage, to which peft casts an
    adapter's input: the first step's recomputation would find others."""
    given = inputs_of(case, device)
    with torch.no_grad():
        loss_of(model, case, given, torch.empty_like(given["input_ids"]))


def execute(config: Row, case: Row, make_model: Any, loss_of: Any, optimizer_of: Any, inputs_of: Any) -> Row:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"] * case.get("groups", 1))
    flattened = case["engine"] == "fsdp1"
    model = make_model(config, case)
    peaks: Row = {}
    faked = not flattened or bool(case.get("autocast") or case.get("offload"))  # the meta device has no autocast
    device = "cpu" if faked else "meta"
    fake: Any = FakeTensorMode(allow_non_fake_inputs=True) if faked else contextlib.nullcontext()
    lives: Any = (OnTheDevice if case.get("offload") else Resized)() if flattened else Parts()
    mesh = mesh_of(case)
    if not flattened:
        lives.pause_propagation()
    with fake, host_elsewhere() if case.get("offload") else contextlib.nullcontext():
        if faked:
            on_fake_tensors(model)
        model = flat(model, case, mesh) if flattened else split(model, case, mesh)
        optimizer = optimizer_of(case["optimizer"], [p for p in model.parameters() if p.requires_grad])
        gc.collect()
        gc.disable()
        tensors = [*model.parameters(), *model.buffers()]
        tensors = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
        own = [t for t in tensors if t.untyped_storage().nbytes() > 0]
        resident = sum(lives.own(t) for t in own)
        held = [t.untyped_storage() for t in own] if faked and not flattened else []
        del own, tensors
        (Resized if flattened else ResizedParts).now = lives
        with lives, torch.set_grad_enabled(not case.get("forward_only")):
            if flattened and case["lora"] and case["recompute"] == "nonreentrant":
                take_views(model, case, device, loss_of, inputs_of)
            first = step(model, case, lives, optimizer, device, loss_of, inputs_of)
            peaks = step(model, case, lives, optimizer, device, loss_of, inputs_of)
            if case.get("forward_only") and not flattened:  # what nothing computes backward may stay gathered
                peaks = {phase: max(level, first[phase]) for phase, level in peaks.items()}
        Resized.now = ResizedParts.now = None
        gc.enable()
    del held
    dist.destroy_process_group()
    return {phase: resident + level for phase, level in peaks.items() if level > 0}
