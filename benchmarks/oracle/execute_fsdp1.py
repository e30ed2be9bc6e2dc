"""Makes tests/data/executed_fsdp1.jsonl: training steps under FullyShardedDataParallel, executed by PyTorch on the meta device.

    python benchmarks/oracle/execute_fsdp1.py [--output tests/data/executed_fsdp1.jsonl]

Needs torch and transformers, no GPU and no second process: FSDP's own code runs (flat parameters, views, hooks, the order of
prefetches), collectives do nothing, and streams and events are stand-ins that are always done. A dispatch mode follows the life of
every storage (execute.py); what FSDP frees and makes again by resizing storages is followed too. Levels are those of the second
step.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from execute import ROOT, SMALL, Row, Storages, as_on_cuda
from row_lines import write_rows
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import _flat_param as flat_param
from torch.distributed.fsdp import _init_utils as init_utils
from torch.distributed.fsdp import _runtime_utils as runtime_utils
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore

TOKENS = 32
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}
MODELS: dict[str, Row] = {
    # the root is the largest unit; the layers are
    "llama, large vocabulary": {"model_type": "llama", **SMALL, "num_hidden_layers": 5},
    "llama, tied": {"model_type": "llama", **SMALL, "num_hidden_layers": 5, "vocab_size": 512, "tie_word_embeddings": True},
}
USUAL: Row = {
    "ranks": 4,
    "strategy": "FULL_SHARD",
    "storage": "fp32",
    "reduce": "fp32",
    "backward_prefetch": "pre",
    "forward_prefetch": False,
    "use_orig_params": False,
    "recompute": "none",
    "micro_batches": 1,
    "no_sync": False,
}
CASES: list[Row] = [
    {},
    {"ranks": 7},
    {"ranks": 7, "use_orig_params": True},
    {"ranks": 7, "use_orig_params": True, "storage": "bf16", "reduce": "bf16"},
    {"ranks": 1, "strategy": "NO_SHARD"},
    {"recompute": "nonreentrant"},
    {"recompute": "reentrant"},
    *[
        {"recompute": "around units", **more}
        for more in ({}, {"use_orig_params": True}, {"backward_prefetch": "post"}, {"backward_prefetch": "none"})
    ],
    *[{"recompute": "around units", "micro_batches": n, "no_sync": deferred} for n, deferred in ((2, False), (3, True))],
    *[{"backward_prefetch": when, "forward_prefetch": ahead} for when in ("post", "none") for ahead in (False, True)],
    *[{"forward_prefetch": True, "recompute": how} for how in ("none", "nonreentrant", "reentrant")],
    *[{"strategy": "SHARD_GRAD_OP", "forward_prefetch": ahead} for ahead in (False, True)],
    *[{"strategy": "NO_SHARD", "forward_prefetch": ahead} for ahead in (False, True)],
    *[
        {"strategy": strategy, "storage": storage, "reduce": reduce}
        for strategy in ("FULL_SHARD", "NO_SHARD")
        for storage, reduce in (("fp32", "bf16"), ("bf16", "bf16"), ("bf16", "fp32"))
    ],
    *[
        {"strategy": strategy, "micro_batches": n, "no_sync": deferred}
        for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
        for n, deferred in ((2, False), (3, True))
    ],
    *[{"micro_batches": n, "no_sync": deferred, "use_orig_params": True} for n, deferred in ((2, False), (3, True))],
    *[{"micro_batches": n, "no_sync": deferred, "forward_prefetch": True} for n, deferred in ((2, False), (3, True))],
    *[
        {"strategy": strategy, "micro_batches": 2, "storage": storage, "reduce": "bf16"}
        for strategy in ("FULL_SHARD", "NO_SHARD")
        for storage in ("fp32", "bf16")
    ],
    *[{"use_orig_params": True, "strategy": strategy} for strategy in ("SHARD_GRAD_OP", "NO_SHARD")],
]


class Done:
    """A stream or an event whose work is over."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


class Device:
    """What FSDP asks of torch.cuda."""

    Stream = Event = Done

    def is_available(self) -> bool:
        return True

    def current_stream(self, *_: Any) -> Done:
        return Done()

    @contextlib.contextmanager
    def stream(self, _: Done) -> Iterator[None]:
        yield


class Resized(Storages):
    """Storages that FSDP empties and fills again."""

    now: Resized | None = None


def followed(model: Any, gradient: torch.Tensor) -> tuple[Resized, int]:
    """Storages from here on, and what lies there already: shards, buffers. `gradient` of the loss is not counted."""
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    storages = Resized()
    # an empty storage is replaced by another at every step: it is not followed
    own = [tensor for tensor in [*model.parameters(), *model.buffers()] if tensor.untyped_storage().nbytes() > 0]
    resident = sum(storages.own(tensor) for tensor in own)
    storages.own(gradient)
    return storages, resident


def stand_in() -> None:
    """What needs a device, or an address, which tensors of the meta device do not have."""

    def with_device(state: Any, *_: Any, **__: Any) -> Any:
        state._device_handle = Device()
        return state

    def reshard_what_is_left(state: Any) -> None:
        handle = state._handle
        if handle is None:
            return
        flat = handle.flat_param
        sharded = flat.untyped_storage()._cdata == flat._local_shard.untyped_storage()._cdata
        if not sharded or handle._skipped_use_sharded_views:
            runtime_utils._reshard(state, handle, runtime_utils._should_free_in_backward(state, handle))

    def resize(storage: Any, elements: int) -> None:
        untyped = storage._untyped_storage
        untyped.resize_(elements * storage._element_size())
        if Resized.now is not None:
            Resized.now.resized(untyped, untyped.nbytes())

    init_utils._init_device_handle = with_device
    torch.distributed.fsdp.fully_sharded_data_parallel._init_device_handle = with_device
    init_utils._need_to_materialize_module = lambda *_, **__: (False, False)
    init_utils._check_single_device_module = lambda *_, **__: None
    flat_param._FSDPDeviceHandle.from_device = classmethod(lambda *_: Device())
    flat_param._data_ptr_allocated = lambda tensor: tensor.untyped_storage().nbytes() > 0
    for module in (flat_param, runtime_utils):
        module._no_dispatch_record_stream = lambda *_: None
    runtime_utils._catch_all_reshard = reshard_what_is_left
    for collective in ("all_gather_single", "reduce_scatter_single", "all_reduce"):
        setattr(dist, collective, lambda *_, **__: None)
    torch.storage.TypedStorage._resize_ = resize
    as_on_cuda()


def make_model(config: Row, case: Row) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            settings, dtype=FORMATS[case["storage"]], attn_implementation="eager"
        )
    model.train()
    if case["recompute"] in ("reentrant", "nonreentrant"):
        reentrant = case["recompute"] == "reentrant"
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    layers = {type(next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))[0])}
    out = FullyShardedDataParallel(
        model,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers),
        sharding_strategy=getattr(ShardingStrategy, case["strategy"]),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=FORMATS[case["reduce"]]),
        backward_prefetch=PREFETCH[case["backward_prefetch"]],
        forward_prefetch=case["forward_prefetch"],
        use_orig_params=case["use_orig_params"],
    )
    if case["recompute"] == "around units":
        wrap = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT, preserve_rng_state=False)
        units = {id(unit) for unit in out.modules() if isinstance(unit, FullyShardedDataParallel) and unit is not out}
        apply_activation_checkpointing(out, checkpoint_wrapper_fn=wrap, check_fn=lambda module: id(module) in units)
    return out


def execute(config: Row, case: Row) -> Row:
    """The highest level of forward and backward in the second step, in bytes."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    model = make_model(config, case)
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    storages = Resized()
    # an empty storage is replaced by another at every step: it is not followed
    own = [tensor for tensor in [*model.parameters(), *model.buffers()] if tensor.untyped_storage().nbytes() > 0]
    resident = sum(storages.own(tensor) for tensor in own)
    del own
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    Resized.now = storages
    forward = backward = 0
    for _ in range(2):
        with storages:
            forward = backward = 0
            for number in range(case["micro_batches"]):
                ids = torch.empty(1, TOKENS, dtype=torch.int64, device="meta")
                labels = torch.empty_like(ids)
                storages.highest = storages.live
                deferred = case["no_sync"] and number < case["micro_batches"] - 1
                with model.no_sync() if deferred else contextlib.nullcontext():
                    loss = model(input_ids=ids, labels=labels).loss
                    forward = max(forward, storages.highest)
                    storages.highest = storages.live
                    loss.backward()
                backward = max(backward, storages.highest)
                loss = loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            del ids, labels, loss
    Resized.now = None
    gc.enable()
    dist.destroy_process_group()
    return {"forward": resident + forward, "backward": resident + backward}


def job_of(case: Row) -> Row:
    trainer: Row = {
        "engine": "fsdp1",
        "layout": f"d{case['ranks']}",
        "replicas": case["ranks"] if case["strategy"] == "NO_SHARD" else 1,
        "reshard_after_forward": case["strategy"] != "SHARD_GRAD_OP",
        "backward_prefetch": case["backward_prefetch"],
        "forward_prefetch": case["forward_prefetch"],
        "use_orig_params": case["use_orig_params"],
        "gradient_sync_every_micro_batch": not case["no_sync"],
        "kernels": "hf_eager",
        "precision": {"storage": case["storage"], "compute": "bf16", "reduce": case["reduce"]},
        "autocast": False,
        "recompute": "none" if case["recompute"] == "none" else "full",
        "reentrant": case["recompute"] in ("reentrant", "around units"),
        "checkpoint_units": case["recompute"] == "around units",
        "optimizer": "sgd",
        "head": "hf_loss",
        "sequences_per_micro_batch": 1,
        "sequence_tokens": TOKENS,
        "micro_batches": case["micro_batches"],
        "kernel_internals": False,
    }
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_fsdp1.jsonl")
    options = parser.parse_args()
    stand_in()
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    lines: list[Row] = []
    for name, config in MODELS.items():
        lines.append({"config": name, "fields": config})
        for changes in CASES:
            case = USUAL | changes
            words = "/".join(f"{key}={value}" for key, value in changes.items()) or "usual"
            row = {"id": f"{name}/{words}", "config": name, "job": job_of(case)}
            row |= {"source": f"{versions} executed on the meta device", "peaks": execute(config, case)}
            lines.append(row)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
