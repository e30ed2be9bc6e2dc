"""DistributedDataParallel for fuzz.py: what is drawn of its settings, and the fifth step under it, computed on the CPU."""

from __future__ import annotations

import contextlib
import gc
import random
from typing import Any

import fuzz_optimizers
import torch
import torch.distributed as dist
from execute import Row, Storages
from fuzz_fsdp import micro_batch
from fuzz_models import EXPERTS, STATES, flag, some

OPTIONS = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph")
LEFT_OUT = {*EXPERTS, *STATES, "gpt_oss", "qwen3_next"}  # which tokens an expert gets is data here


def draw(rng: random.Random, case: Row) -> Row:
    """In fp32 with eager attention: the CPU has no softmax from 16 bits to fp32."""
    out: Row = {name: flag(rng) for name in OPTIONS}
    if out["static_graph"] or case["recompute"] == "reentrant":
        out["find_unused_parameters"] = False
    if case["recompute"] != "none":  # a checkpoint needs one of them, or its parameters are ready twice
        out["static_graph"] = out["static_graph"] or case["recompute"] == "reentrant"
    out |= {"attention": "eager", "dtype": "fp32", "padding": False, "lora": None, "clip": False}
    out |= {"tokens": some(rng, 9, 16, 33), "sequences": rng.randint(1, 2), "keep_gradients": rng.random() < 0.2}
    out["deferred"] = flag(rng) and case["micro_batches"] > 1 and not out["static_graph"]
    return out


def settings_of(case: Row) -> Row:
    out = {name: case[name] for name in (*OPTIONS, "keep_gradients")}
    return out | {"layout": "d2", "gradient_sync_every_micro_batch": not case["deferred"]}


def filled(model: Any) -> Any:
    """Off the meta device, ties kept; what the numbers are does not matter, but buffers are positions' frequencies."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                if tensor is not None and id(tensor) not in made:
                    there = (
                        torch.full_like(tensor, 0.01, device="cpu")
                        if tensor.is_floating_point()
                        else torch.zeros_like(tensor, device="cpu")
                    )
                    made[id(tensor)] = torch.nn.Parameter(there, tensor.requires_grad) if kind is module._parameters else there
                if tensor is not None:
                    kind[name] = made[id(tensor)]
    return model


def execute(config: Row, case: Row, make_model: Any, loss_of: Any, optimizer_of: Any) -> Row:
    """Highest levels of the fifth step: with a static graph that keeps gradients the fourth is the first like all others."""
    if config["model_type"] in LEFT_OUT:
        raise ValueError("not computed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # buckets do not depend on the number of ranks
    model = filled(make_model(config, case))
    gc.collect()
    gc.disable()
    lives = Storages()
    resident = sum(lives.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    peaks: Row = {}
    with lives:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **{name: case[name] for name in OPTIONS})
        optimizer = optimizer_of(case["optimizer"], [p for p in model.parameters() if p.requires_grad])
        for _ in range(5):
            peaks = step(wrapped, case, lives, optimizer, loss_of)
    gc.enable()
    dist.destroy_process_group()
    return {phase: resident + level for phase, level in peaks.items()}


def step(wrapped: Any, case: Row, lives: Storages, optimizer: Any, loss_of: Any) -> Row:
    peaks = {"forward": 0, "backward": 0, "optimizer": 0}
    for number in range(case["micro_batches"]):
        given = {"input_ids": torch.zeros(case["sequences"], case["tokens"], dtype=torch.int64)}
        labels = torch.zeros_like(given["input_ids"])
        deferred = case["deferred"] and number < case["micro_batches"] - 1
        with wrapped.no_sync() if deferred else contextlib.nullcontext():
            micro_batch(wrapped, case, (given, labels), loss_of, lives, peaks)
    lives.highest = lives.live
    optimizer.step()
    peaks["optimizer"] = lives.highest
    fuzz_optimizers.leave_steps_to_the_host(optimizer, lives)
    optimizer.zero_grad(set_to_none=not case["keep_gradients"])
    return peaks
