"""What the names of Megatron-core's pipeline schedules hold: its own functions run on stages that save nothing but one tensor.

    python benchmarks/oracle/execute_megatron_schedule.py > tests/data/executed_megatron_schedule.jsonl

Needs torch and megatron-core 0.16.1 (without its dependencies), no GPU and no second process: the stage's neighbours are stood in for
by tensors that are made where the communicator would receive them. Every tensor between two stages has one size, so a row counts
them: those that live as a pass begins, of the second of two steps. "F": a forward pass that is about to hand its input to the
model; "B": a backward pass, the gradient that came in not counted.
"""

from __future__ import annotations

import collections
import json
import types
import weakref
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules, utils
from megatron.core.process_groups_config import ProcessGroupCollection

NUMBERS = 64
live: collections.Counter[str] = collections.Counter()
passes: list[list[Any]] = []


def known(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    live[kind] += 1
    weakref.finalize(tensor.untyped_storage(), lambda: live.update({kind: -1}))
    return tensor


class Group:
    """A process group of which only the numbers are asked for."""

    def __init__(self, size: int, rank: int) -> None:
        self.numbers = size, rank

    def size(self) -> int:
        return self.numbers[0]

    def rank(self) -> int:
        return self.numbers[1]


class Request:
    def wait(self) -> None:
        pass


class Neighbours:
    """p2p_communicator.P2PCommunicator: what is received is made here, what is sent goes nowhere."""

    def __init__(self, group: Group, config: Any) -> None:
        self.pp_group, self.config = group, config
        self.virtual_pipeline_model_parallel_size = config.virtual_pipeline_model_parallel_size
        self.lists = self.virtual_pipeline_model_parallel_size is None

    def received(self, kind: str, comes: bool) -> Any:
        tensor = known(torch.empty(NUMBERS, requires_grad=True), kind) if comes else None
        return [tensor] if self.lists else tensor

    def recv_forward(self, _shape: Any, first: bool) -> Any:
        return self.received("input", not first)

    def recv_backward(self, _shape: Any, is_last_stage: bool) -> Any:
        return self.received("output_gradient", not is_last_stage)

    def send_forward(self, *_: Any) -> None:
        pass

    def send_backward(self, *_: Any) -> None:
        pass

    def send_forward_recv_backward(self, _output: Any, shape: Any, last: bool) -> Any:
        return self.recv_backward(shape, last)

    def send_backward_recv_forward(self, _gradient: Any, shape: Any, first: bool) -> Any:
        return self.recv_forward(shape, first)

    def send_forward_recv_forward(
        self, output_tensor: Any, recv_prev: bool, tensor_shape: Any, overlap_p2p_comm: bool = False
    ) -> Any:
        tensor = self.received("input", recv_prev)
        names = {"send_next": output_tensor is not None, "recv_prev": recv_prev}
        return (tensor, {name: Request() for name, there in names.items() if there}) if overlap_p2p_comm else tensor

    def send_backward_recv_backward(
        self, input_tensor_grad: Any, recv_next: bool, tensor_shape: Any, overlap_p2p_comm: bool = False
    ) -> Any:
        tensor = self.received("output_gradient", recv_next)
        names = {"send_prev": input_tensor_grad is not None, "recv_next": recv_next}
        return (tensor, {name: Request() for name, there in names.items() if there}) if overlap_p2p_comm else tensor


class Layers(torch.autograd.Function):
    """Saves nothing of its input, as a stage's first norm does not of the schedule's names: what lives is what somebody names."""

    @staticmethod
    def forward(ctx: Any, taken: Any, _weight: torch.Tensor, last: bool) -> torch.Tensor:
        ctx.receives = taken is not None
        return torch.empty(1) if last else known(torch.empty(NUMBERS), "output")

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return (known(torch.empty(NUMBERS), "input_gradient") if ctx.receives else None), None, None


class Chunk(torch.nn.Module):
    def __init__(self, config: Any, last: bool) -> None:
        super().__init__()
        self.config, self.last, self.taken = config, last, None
        self.weight = torch.nn.Parameter(torch.ones(1))

    def set_input_tensor(self, tensors: list[Any]) -> None:
        passes.append(["F", sum(live.values())])
        self.taken = tensors[0]

    def forward(self) -> torch.Tensor:
        result: torch.Tensor = Layers.apply(self.taken, self.weight, self.last)
        return result


def forward_step(_iterator: Any, model: Chunk) -> Any:
    return model(), lambda output: (output * 1, {})


def stand_in() -> None:
    """What asks for process groups, a GPU or a wrapped model."""
    utils.get_pg_rank, utils.get_pg_size = Group.rank, Group.size
    schedules.get_model_type = lambda _model: None
    schedules.get_attr_wrapped_model = getattr
    schedules.get_model_config = lambda model: model.config
    schedules.set_current_microbatch = lambda *_: None
    schedules.nvtx_range_push = schedules.nvtx_range_pop = lambda *_, **__: None
    zeros, backward = torch.zeros, schedules.backward_step
    torch.zeros = lambda *a, device=None, **k: zeros(*a, **k)

    def begins(taken: Any, output: Any, gradient: Any, *rest: Any) -> Any:
        given = gradient[0] if isinstance(gradient, list) else gradient
        passes.append(["B", sum(live.values()) - (given is not None)])
        return backward(taken, output, gradient, *rest)

    schedules.backward_step = begins


def executed(stages: int, stage: int, chunks: int, micro_batches: int, group: int) -> list[list[Any]]:
    config = types.SimpleNamespace(
        **dict.fromkeys(("timers", "no_sync_func", "grad_sync_func", "param_sync_func", "finalize_model_grads_func")),
        **dict.fromkeys(("num_microbatches_with_partial_activation_checkpoints", "grad_scale_func", "num_moe_experts")),
        **dict.fromkeys(("mtp_num_layers", "variable_seq_lengths", "sequence_parallel", "calculate_per_token_loss")),
        **dict.fromkeys(("overlap_p2p_comm_warmup_flush", "overlap_moe_expert_parallel_comm", "enable_autocast")),
        **dict.fromkeys(("fine_grained_activation_offloading", "hybrid_context_parallel")),
        overlap_p2p_comm=chunks > 1,
        batch_p2p_comm=chunks == 1,
        hidden_size=1,
        microbatch_group_size_per_vp_stage=group,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        deallocate_pipeline_outputs=True,
    )
    groups = ProcessGroupCollection()
    for name in ("tp", "cp", "embd", "pos_embd", "dp_cp"):
        setattr(groups, name, Group(1, 0))
    groups.pp = Group(stages, stage)
    model = [Chunk(config, stage == stages - 1 and c == chunks - 1) for c in range(chunks)]
    live.clear()
    for _ in range(2):
        passes.clear()
        given: dict[str, Any] = {
            "forward_step_func": forward_step,
            "num_microbatches": micro_batches,
            "seq_length": 1,
            "micro_batch_size": 1,
            "p2p_communicator": Neighbours(groups.pp, config),
            "pg_collection": groups,
        }
        if chunks > 1:
            schedules.forward_backward_pipelining_with_interleaving(model=model, data_iterator=[None] * chunks, **given)
        else:
            schedules.forward_backward_pipelining_without_interleaving(model=model, data_iterator=None, **given)
    return list(passes)


def main() -> None:
    stand_in()
    for stages in (2, 3, 4, 8):
        for chunks in (1, 2, 3):
            for group in {stages, stages + 1, 2 * stages} if chunks > 1 else {stages}:
                for micro_batches in (1, 2, 3, stages, stages + 1, 2 * stages, 3 * stages, 4 * stages):
                    rest = micro_batches % group
                    if chunks > 1 and (micro_batches < group or 0 < rest < stages):
                        continue  # Megatron refuses it
                    for stage in sorted({0, 1, stages - 2, stages - 1}):
                        row = {"stages": stages, "stage": stage, "chunks": chunks, "group": group, "micro_batches": micro_batches}
                        held = executed(**row)
                        print(json.dumps({**row, "passes": "".join(p for p, _ in held), "held": [n for _, n in held]}))


if __name__ == "__main__":
    main()
