"""Makes tests/data/executed_megatron_fsdp.jsonl: training steps under Megatron-FSDP, executed by its own code on fake tensors.

    PYTHONPATH=MEGATRON_CORE python benchmarks/oracle/execute_megatron_fsdp.py [--output tests/data/executed_megatron_fsdp.jsonl]

Needs torch and megatron-core 0.16.1 (its source is enough) with einops; no GPU. MegatronFSDP itself runs: parameter groups, buckets, the
pipelines that gather and reduce, its hooks. It stands around a GPT whose modules make and save what Transformer Engine's do
(megatron_stand_in.py). Collectives do nothing, streams and events are always done. A dispatch mode follows the life of every storage
(execute.py), those that are emptied and filled again too (sharded.py). Optimizer: two states in fp32 for each part that has a gradient,
as FusedAdam has them. A step is Megatron's: zero_grad_buffer, micro-batches with no_sync for all but the last, finish_grad_sync, the
optimizer, copy_main_weights_to_model_weights, start_param_sync. Levels are those of the second step.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from execute import ROOT, Row
from megatron_stand_in import Float16Module, Gpt, TransformerLayer
from row_lines import write_rows
from sharded import ResizedParts, follow_resizing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MODELS: dict[str, Row] = {
    "small": {
        "num_hidden_layers": 6,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 4096,
    },
    "tied": {
        "num_hidden_layers": 5,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    # embedding and output layer are buckets of their own
    "8B, 12 layers": {
        "num_hidden_layers": 12,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
    },
    "70B, 5 layers": {
        "num_hidden_layers": 5,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
    },
}
TOKENS = {"small": 256, "tied": 2048, "8B, 12 layers": 4096, "70B, 5 layers": 2048}
USUAL: Row = {
    "strategy": "optim_grads_params",
    "ranks": 4,
    "reduce": "fp32",
    "micro_batches": 1,
    "recomputed": 0,
    "unit_size": 0,
    "overlap": True,
    "double_buffer": False,
    "instances": 1,
}
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
CASES: dict[str, list[Row]] = {
    "small": [
        *[{"strategy": s} for s in STRATEGIES],
        *[{"strategy": s, "reduce": "bf16", "micro_batches": 2} for s in STRATEGIES],
        *[{"strategy": s, "micro_batches": 3} for s in STRATEGIES],
        *[{"strategy": s, "ranks": 7} for s in STRATEGIES],
        *[{"strategy": s, "ranks": 1} for s in STRATEGIES],
        # no_shard without overlap_param_gather stops in start_param_sync: there are no buffers of weights to gather
        *[{"strategy": s, "overlap": False, "micro_batches": 2} for s in STRATEGIES[1:]],
        *[{"unit_size": n} for n in (2, 4_000_000, 8_000_000, 14_000_000)],
        *[{"unit_size": n, "recomputed": 6, "micro_batches": 2} for n in (0, 2, 8_000_000)],
        {"unit_size": 8_000_000, "recomputed": 3},
        {"unit_size": 8_000_000, "micro_batches": 2, "reduce": "bf16"},
        {"strategy": "optim_grads", "unit_size": 2},
        *[{"strategy": s, "ranks": 8, "instances": 2, "micro_batches": 2} for s in STRATEGIES],
        {"double_buffer": True},
        {"double_buffer": True, "micro_batches": 2, "reduce": "bf16"},
        {"double_buffer": True, "recomputed": 6, "micro_batches": 2},
    ],
    "tied": [*[{"strategy": s, "micro_batches": 2} for s in STRATEGIES], {"unit_size": 2, "recomputed": 5}],
    "8B, 12 layers": [
        *[{"strategy": s, "ranks": 8} for s in STRATEGIES],
        {"ranks": 64},
        {"ranks": 8, "reduce": "bf16"},
        {"ranks": 8, "micro_batches": 2},
        {"ranks": 8, "recomputed": 12, "micro_batches": 2},
        {"ranks": 8, "unit_size": 2},
        {"ranks": 8, "recomputed": 12, "unit_size": 2},
        {"ranks": 8, "double_buffer": True},
        {"ranks": 8, "strategy": "optim_grads", "recomputed": 12},
    ],
    "70B, 5 layers": [{"ranks": 8}, {"ranks": 8, "recomputed": 5}],
}


class Done:
    """A stream, an event or the handle of a collective whose work is over."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: Done()


@contextlib.contextmanager
def nothing(*_: Any, **__: Any) -> Iterator[Done]:
    yield Done()


def stand_in() -> Any:
    """What needs a device, or other processes."""
    torch.cuda.Stream = torch.cuda.Event = Done  # type: ignore[assignment,misc]
    torch.cuda.stream = nothing  # type: ignore[assignment]
    torch.cuda.current_stream = Done  # type: ignore[assignment]
    torch.cuda.current_device = lambda: 0  # type: ignore[assignment]
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    for collective in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
        setattr(dist, collective, lambda *_, **__: Done())
    dist._make_nccl_premul_sum = lambda *_: dist.ReduceOp.SUM  # type: ignore[attr-defined]
    from megatron.core.distributed.fsdp.src import megatron_fsdp
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer

    param_and_grad_buffer._coalescing_manager = nothing
    param_and_grad_buffer.validate_uneven_dtensor = lambda *_: None  # asks all ranks
    param_and_grad_buffer.update_uneven_dtensor_chunk_metadata = lambda *_: None  # likewise
    param_and_grad_buffer.gc = Done()
    param_and_grad_buffer.get_global_memory_buffer = Buffers
    return megatron_fsdp


class Buffers:
    """GlobalMemoryBuffer of megatron/core/utils.py, whose tensors are on the current device."""

    of: ClassVar[dict[tuple[str, torch.dtype], torch.Tensor]] = {}

    def get_tensor(self, shape: list[int], dtype: torch.dtype, name: str, mem_alloc_context: Any = None) -> torch.Tensor:
        (size,) = shape
        if (name, dtype) not in self.of or self.of[name, dtype].numel() < size:
            self.of[name, dtype] = torch.empty(size, dtype=dtype)
        return self.of[name, dtype][:size].view(*shape)


def local(tensor: Any) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


class Adam:
    """Two fp32 states of every part that has a gradient, from the first step on; the step is made in place."""

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = parameters
        self.states: dict[int, list[torch.Tensor]] = {}

    def step(self) -> None:
        for number, p in enumerate(self.parameters):
            if p.grad is not None and number not in self.states:
                self.states[number] = [torch.empty_like(local(p), dtype=torch.float32) for _ in range(2)]


def make(wrapper: Any, index: Any, fields: Row, case: Row) -> Any:
    from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig

    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=case["reduce"] == "fp32",
        overlap_grad_reduce=case["overlap"],
        overlap_param_gather=case["overlap"],
        use_distributed_optimizer=True,
        num_distributed_optimizer_instances=case["instances"],
        use_megatron_fsdp=True,
        bucket_size=max(40_000_000, 1_000_000 * case["ranks"]) if case["overlap"] else None,
        data_parallel_sharding_strategy=case["strategy"],
        suggested_communication_unit_size=case["unit_size"] or None,
        fsdp_double_buffer=case["double_buffer"],
    )
    sharded = case["strategy"] == "optim_grads_params"
    return wrapper.MegatronFSDP(
        Float16Module(Gpt(fields, case["recomputed"])),
        index,
        config,
        fsdp_unit_modules=[TransformerLayer] if sharded else [],
        device=torch.device("cpu"),
    )


def micro_batch(model: Any, tokens: int, lives: ResizedParts, peaks: Row) -> None:
    ids, labels, positions = (torch.empty(1, tokens, dtype=torch.int64) for _ in range(3))
    mask = torch.empty(1, tokens, dtype=torch.float32)
    losses = model(ids)
    del ids, labels, positions, mask  # forward_step has returned
    loss = losses.view(-1)[0]
    peaks["forward"] = max(peaks["forward"], lives.highest)
    lives.highest = lives.live
    loss.backward()
    peaks["backward"] = max(peaks["backward"], lives.highest)
    lives.highest = lives.live


def step(model: Any, optimizer: Adam, case: Row, tokens: int, lives: ResizedParts) -> Row:
    peaks = {"forward": 0, "backward": 0, "optimizer": 0}
    model.zero_grad_buffer()
    lives.highest = lives.live
    context = model.no_sync if case["overlap"] else contextlib.nullcontext
    with context():
        for _ in range(case["micro_batches"] - 1):
            micro_batch(model, tokens, lives, peaks)
    micro_batch(model, tokens, lives, peaks)
    model.finish_grad_sync()
    optimizer.step()
    model.install_optimized_model_weights()
    model.start_param_sync()
    peaks["optimizer"] = lives.highest
    peaks["left"] = lives.live
    return peaks


def mesh_of(wrapper: Any, case: Row) -> Any:
    """mcore_fsdp_adapter.py: _init_dist_index."""
    inner = case["ranks"] // case["instances"]
    if case["instances"] == 1:
        mesh = init_device_mesh("cpu", (inner, 1), mesh_dim_names=("dp_cp", "tp"))
        return wrapper.FSDPDistributedIndex(mesh, dp_shard_dim="dp_cp", tp_dim="tp")
    mesh = init_device_mesh("cpu", (case["instances"], inner, 1), mesh_dim_names=("outer_fsdp_dp", "dp_cp", "tp"))
    return wrapper.FSDPDistributedIndex(
        mesh, dp_outer_dim="outer_fsdp_dp", dp_shard_dim="dp_cp", tp_dim="tp", hybrid_fsdp_group=dist.group.WORLD
    )


def execute(wrapper: Any, name: str, case: Row) -> Row:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    index = mesh_of(wrapper, case)
    fake, lives = FakeTensorMode(allow_non_fake_inputs=True), ResizedParts()
    lives.pause_propagation()
    with fake, lives:
        gc.collect()
        gc.disable()
        ResizedParts.now = lives
        model = make(wrapper, index, MODELS[name], case)
        gc.collect()
        load = lives.highest
        loaded = lives.live
        optimizer = Adam([p for _, p in model.param_and_grad_buffer.optimizer_named_parameters])
        peaks: Row = {}
        for _ in range(2):
            peaks = step(model, optimizer, case, TOKENS[name], lives)
        ResizedParts.now = None
        gc.enable()
    groups = [
        [g.main_grad_buffer.bucket_index.size, g.fsdp_unit_id is not None] for g in model.param_and_grad_buffer.parameter_groups
    ]
    Buffers.of.clear()
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()
    return {"peaks": {"load": load, **peaks}, "loaded": loaded, "buckets": groups}


def job_of(name: str, case: Row) -> Row:
    trainer: Row = {
        "engine": "megatron",
        "kernels": "transformer_engine",
        "layout": f"d{case['ranks']}",
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": case["reduce"]},
        "megatron_fsdp": case["strategy"],
        "optimizer_instances": case["instances"],
        "communication_unit_size": case["unit_size"] or "auto",
        "fsdp_double_buffer": case["double_buffer"],
        "overlap_grad_reduce": case["overlap"],
        "gradient_accumulation_fusion": False,
        "cross_entropy": "te",
        "sequences_per_micro_batch": 1,
        "sequence_tokens": TOKENS[name],
        "micro_batches": case["micro_batches"],
        "recompute": "none",
    }
    if case["recomputed"]:
        trainer |= {"recompute": "full", "recompute_method": "block", "recompute_layers": case["recomputed"]}
    return {"framework": "torch", "model": name, "trainer": trainer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_megatron_fsdp.jsonl")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    follow_resizing()
    wrapper = stand_in()
    lines: list[Row] = []
    for name, cases in CASES.items():
        config = {"model_type": "llama", "tie_word_embeddings": False, **MODELS[name], "torch_dtype": "bfloat16"}
        lines.append({"config": name, "fields": config | {"max_position_embeddings": TOKENS[name]}})
        for changes in cases:
            words = "/".join(f"{key}={value}" for key, value in changes.items())
            if options.only not in f"{name}/{words}":
                continue
            row = {"id": f"{name}/{words}", "config": name, "job": job_of(name, USUAL | changes)}
            row |= execute(wrapper, name, USUAL | changes)
            lines.append(row)
            print(row["id"], row["peaks"], flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
