"""A step of one pipeline stage by Megatron-core's own schedule functions, on real chunks of the model (megatron_te.py).

The stage's neighbours are stood in for: what would be received is made where the communicator would make it
(execute_megatron_schedule.py). The loss is pretrain_gpt.py's. Phases are those of the simulator: a pass lasts from its beginning
(forward_step, backward_step) until the next one begins, so what the schedule receives behind a pass counts with it.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

import torch
from execute import Row
from execute_megatron_local import Resized


class Passes:
    """The highest level of each kind of pass."""

    def __init__(self, storages: Resized) -> None:
        self.storages, self.kind, self.base = storages, "", storages.live
        self.highest = {"forward": 0, "backward": 0}
        storages.highest = storages.live

    def begins(self, kind: str) -> None:
        if self.kind:
            self.highest[self.kind] = max(self.highest[self.kind], self.storages.highest - self.base)
        self.kind, self.storages.highest = kind, self.storages.live


def loss_of(weights: torch.Tensor, output: torch.Tensor) -> Any:
    """loss_func of pretrain_gpt.py, 0.16.1, without its checks."""
    loss = torch.sum(output.view(-1).float() * weights.view(-1).float())
    return loss, weights.sum().clone().detach().to(torch.int), {}


class StageStep:
    def __init__(self, run: Row, chunks: list[Any], storages: Resized, micro_batches: int) -> None:
        from execute_megatron_schedule import Neighbours
        from megatron.core import parallel_state
        from megatron.core.pipeline_parallel import schedules
        from megatron.core.process_groups_config import ProcessGroupCollection

        groups = ProcessGroupCollection()
        groups.tp = parallel_state.get_tensor_model_parallel_group()
        groups.cp = parallel_state.get_context_parallel_group()
        groups.pp = parallel_state.get_pipeline_model_parallel_group()
        groups.embd = groups.pos_embd = groups.pp
        groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True)
        config = chunks[0].config
        split = run["tensor_model_parallel_size"] if run.get("sequence_parallel") else 1
        shape = run["seq_length"] // split, run["micro_batch_size"], run["hidden_size"]

        class Sized(Neighbours):
            def received(self, _kind: str, comes: bool) -> Any:
                tensor = torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) if comes else None
                return [tensor] if self.lists else tensor

        self.run, self.chunks, self.storages = run, chunks, storages
        self.given: Row = {
            "forward_step_func": self.forward,
            "num_microbatches": micro_batches,
            "seq_length": run["seq_length"],
            "micro_batch_size": run["micro_batch_size"],
            "p2p_communicator": Sized(groups.pp, config),
            "pg_collection": groups,
        }
        interleaved = len(chunks) > 1
        self.schedule = (
            schedules.forward_backward_pipelining_with_interleaving
            if interleaved
            else schedules.forward_backward_pipelining_without_interleaving
        )
        self.given |= {"model": chunks, "data_iterator": [None] * len(chunks)} if interleaved else {"model": chunks[0]}
        self.given.setdefault("data_iterator", None)

    def forward(self, _iterator: Any, model: Any) -> Any:
        shape = self.run["micro_batch_size"], self.run["seq_length"]
        if not model.pre_process and not model.post_process:
            return model(None, None, None), None
        tokens, labels, positions = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
        weights = torch.ones(shape, dtype=torch.float32)
        mask = torch.ones(shape[0], 1, shape[1], shape[1], dtype=torch.bool)
        return model(tokens, positions, mask, labels=labels), functools.partial(loss_of, weights)

    def __call__(self) -> Row:
        from megatron.core.pipeline_parallel import schedules

        passes = Passes(self.storages)
        originals = schedules.forward_step, schedules.backward_step

        def telling(kind: str, function: Any) -> Any:
            def called(*args: Any, **named: Any) -> Any:
                passes.begins(kind)
                return function(*args, **named)

            return called

        schedules.forward_step, schedules.backward_step = telling("forward", originals[0]), telling("backward", originals[1])
        try:
            self.schedule(**self.given)
        finally:
            schedules.forward_step, schedules.backward_step = originals
        passes.begins("")
        gc.collect()
        return {**passes.highest, "left": self.storages.live - passes.base}
