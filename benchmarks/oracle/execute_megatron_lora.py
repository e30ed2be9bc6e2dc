"""Makes tests/data/executed_megatron_lora.jsonl: what Megatron-Bridge's adapters save and hold, executed.

    python benchmarks/oracle/execute_megatron_lora.py --core MEGATRON_CORE --bridge MEGATRON_BRIDGE [--output tests/data/...]

Needs torch, megatron-core 0.16.1 and src/megatron/bridge of Megatron-Bridge 600d069b8 (their source is enough); no GPU. Bridge's own
ParallelLinearAdapter on megatron-core's ColumnParallelLinear and RowParallelLinear runs on the CPU as one rank of PyTorch's fake
process group, whose collectives allocate nothing. Weight gradients go as soon as they are there, as with Megatron's flat buffers;
they are not added up inside of the product, which needs an extension for CUDA. The sum with the layer's own result is a line of
LoRALinear.forward, written here. A line: the sizes, `saved` as [bytes, count] of storages that autograd keeps, without what came in
and weights, and `highest` levels above what lived before, forward and backward.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import Row, SavedBeside, Storages
from torch.testing._internal.distributed.fake_pg import FakeStore

ROOT = Path(__file__).resolve().parents[2]
TOKENS, HIDDEN, COLUMNS, RANK = 512, 256, 768, 8
# ranks of tensor parallelism, sequence parallelism, layer, whether the input is gathered again
RUNS: list[tuple[int, bool, str, bool]] = [
    (2, True, "linear_qkv", False),
    (2, True, "linear_fc1", True),
    (4, True, "linear_qkv", True),
    (2, True, "linear_proj", False),
    (4, True, "linear_fc2", False),
    (2, False, "linear_fc1", False),
    (2, False, "linear_proj", False),
    # the pair that all experts of a rank share, on their rows
    (1, False, "experts.linear_fc1", False),
    (1, False, "experts.linear_fc2", False),
]


class Source(torch.autograd.Function):
    """What came before: it takes the gradient and keeps nothing of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


def adapter_of(ranks: int, sequence: bool, layer: str, regathers: bool) -> Any:
    from megatron.bridge.peft.utils import ParallelLinearAdapter
    from megatron.core import ModelParallelConfig

    config = ModelParallelConfig(
        tensor_model_parallel_size=ranks,
        sequence_parallel=sequence,
        params_dtype=torch.bfloat16,
        bf16=True,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )
    row = layer.endswith(("linear_proj", "linear_fc2"))
    one = ParallelLinearAdapter(
        COLUMNS if row else HIDDEN,
        HIDDEN if row else COLUMNS,
        RANK,
        f"decoder.layers.0.x.{layer}",
        activation="identity",
        input_is_parallel=row,
        model_parallel_config=config,
        alpha=2 * RANK,
        # the gathered output of the norm comes in, or its part
        disable_sequence_parallel_comm=not row and not regathers,
        sequence_parallel_input_regather=regathers,
        is_expert=layer.startswith("experts"),
    )
    for parameter in one.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return one


def execute(ranks: int, sequence: bool, layer: str, regathers: bool) -> Row:
    from megatron.core import parallel_state
    from megatron.core.parallel_state import get_global_memory_buffer

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks, create_gloo_process_groups=False)
    one = adapter_of(ranks, sequence, layer, regathers)
    row = layer.endswith(("linear_proj", "linear_fc2"))
    part = TOKENS // ranks if sequence else TOKENS
    batch = () if layer.startswith("experts") else (1,)  # experts have rows
    of_input, of_output = (COLUMNS // ranks, HIDDEN) if row else (HIDDEN, COLUMNS // ranks)
    x = torch.zeros(part if regathers else TOKENS, *batch, of_input, dtype=torch.bfloat16, requires_grad=True)
    own = torch.zeros(part if row else TOKENS, *batch, of_output, dtype=torch.bfloat16, requires_grad=True)
    storages = Storages()
    outside = [x, own, *one.parameters()]
    if regathers:
        outside.append(get_global_memory_buffer().get_tensor([TOKENS, 1, HIDDEN], torch.bfloat16, "mpu"))
    for t in outside:
        storages.own(t)
    saving = SavedBeside(outside)

    gc.collect()
    gc.disable()
    with storages, torch.autograd.graph.saved_tensors_hooks(saving, lambda t: t):

        def forward(normed: torch.Tensor) -> torch.Tensor:  # LoRALinear.forward
            beside = one(normed.contiguous())
            beside = beside.reshape(own.shape)
            return own + beside

        own, x = Source.apply(own), Source.apply(x)
        out = forward(x)
        highest = storages.highest
        saved = Counter(saving.seen.values())
        gradient = torch.zeros_like(out)
        storages.highest = storages.live
        out.backward(gradient)
        back = storages.highest
        del out, gradient
    gc.enable()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    sizes = {"ranks": ranks, "sequence_parallel": sequence, "layer": layer, "regathers": regathers}
    sizes |= {"tokens": TOKENS, "hidden": HIDDEN, "columns": COLUMNS, "rank": RANK}
    return {**sizes, "saved": sorted(saved.items()), "highest": [highest, back]}


def prepare(core: Path, bridge: Path) -> None:
    """Both are packages of one namespace; Bridge's own __init__ files ask for far more than its adapters do."""
    sys.path.insert(0, str(core))
    import megatron

    megatron.__path__ = [str(core / "megatron"), str(bridge / "src" / "megatron")]
    for name in ("megatron.bridge", "megatron.bridge.peft", "megatron.bridge.utils"):
        module = types.ModuleType(name)
        module.__path__ = [str(bridge / "src" / name.replace(".", "/"))]
        sys.modules[name] = module
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--core", type=Path, required=True)
    parser.add_argument("--bridge", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_lora.jsonl")
    given = parser.parse_args()
    prepare(given.core, given.bridge)
    lines = [json.dumps(execute(*run), separators=(",", ":")) for run in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
