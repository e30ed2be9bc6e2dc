"""What the scripts that execute steps of verl on Megatron-core share: one rank of PyTorch's fake process group, step by step."""

from __future__ import annotations

import gc
import sys
from typing import Any

import megatron_te
import torch
import torch.distributed as dist
import transformers
from execute import Row
from execute_megatron_local import Resized
from torch.testing._internal.distributed.fake_pg import FakeStore


class Config(transformers.PretrainedConfig):
    """What verl's converter and mbridge's MiMo ask: `in` too."""

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__


class Step:
    def __init__(self, run: Row, model: Any, storages: Resized, loss: Any) -> None:
        self.run, self.model, self.storages, self.loss = run, model, storages, loss

    def __call__(self) -> Row:
        storages = self.storages
        base = storages.live
        storages.highest = storages.live
        gradients = self.run.get("gradients", True)
        with torch.set_grad_enabled(gradients):
            loss = self.loss(self.run, self.model)
        forward = storages.highest - base
        if not gradients:
            del loss
            gc.collect()
            return {"peaks": {"forward": forward}, "left": storages.live - base}
        storages.highest = storages.live
        loss.backward()
        backward = storages.highest - base
        del loss
        gc.collect()
        return {"peaks": {"forward": forward, "backward": backward}, "left": storages.live - base}


def execute(run: Row, make: Any, loss: Any) -> Row:
    """Steps of the model that `make` gives and the loss that `loss` computes; of a last stage parameters alone."""
    from megatron.core import parallel_state

    stages = 1 if run.get("first", True) else 2
    expert = run.get("expert", run["tensor"] if run.get("experts") else 1)
    context = run.get("context", 1)
    ranks = max(run["tensor"] * context, expert)
    dist.init_process_group("fake", store=FakeStore(), rank=(stages - 1) * ranks, world_size=stages * ranks)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=run["tensor"],
        pipeline_model_parallel_size=stages,
        context_parallel_size=context,
        expert_model_parallel_size=expert,
        expert_tensor_parallel_size=1 if expert > 1 else None,
        create_gloo_process_groups=False,
    )
    parallel_state.get_global_memory_buffer().buffer.clear()
    try:
        model = make(run)
        if stages > 1:
            return {"run": run, "parameters": sum(p.numel() for p in model.parameters()), "peaks": {}}
        storages = Resized()
        for tensor in [*model.parameters(), *model.buffers()]:
            storages.own(tensor)
        gc.collect()
        megatron_te.Clock.now = storages
        with storages:
            step = Step(run, model, storages, loss)
            step()  # what it makes and leaves is there from now on
            second, third = step(), step()
        assert second["left"] == 0 and second == third, (run, second, third)
        return {"run": run, "parameters": sum(p.numel() for p in model.parameters()), "peaks": second["peaks"]}
    finally:
        megatron_te.Clock.now = None
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        sys.modules["transformer_engine.pytorch.module.base"]._dummy_wgrads.clear()
        gc.collect()
