"""Makes tests/data/executed_megatron_shared.jsonl: what shared experts beside the exchange save, executed.

    PYTHONPATH=MEGATRON_CORE python benchmarks/oracle/execute_megatron_shared.py [--output tests/data/...]

Needs torch and megatron-core 0.16.1 (its source is enough); no GPU. Its own SharedExpertMLP with moe_shared_expert_overlap, its parts in
the order in which the alltoall dispatcher calls them, runs on the CPU as one rank of PyTorch's fake process group, whose collectives
allocate nothing, on megatron-core's own linear layers: with explicit communication they keep what Transformer Engine's keep, their
input. The activation is not compiled. A line: the sizes and `saved` as [bytes, count] of storages that autograd keeps, without what
came in and weights.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import Row
from torch.testing._internal.distributed.fake_pg import FakeStore

ROOT = Path(__file__).resolve().parents[2]
TOKENS, HIDDEN, WIDTH = 256, 128, 192
RUNS: list[tuple[int, bool]] = [(1, True), (2, True), (4, True), (2, False), (1, False)]  # ranks of tensor parallelism, fused


class Stream:
    def wait_stream(self, _other: Any) -> None: ...


def execute(ranks: int, fused: bool) -> Row:
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe import shared_experts
    from megatron.core.transformer.transformer_config import TransformerConfig

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks, create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        tensor_model_parallel_size=ranks,
        sequence_parallel=ranks > 1,
        params_dtype=torch.bfloat16,
        bf16=True,
        use_cpu_initialization=True,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        bias_activation_fusion=fused,
        num_moe_experts=4,
        moe_token_dispatcher_type="alltoall",
        moe_shared_expert_intermediate_size=WIDTH,
        moe_shared_expert_overlap=True,
        gradient_accumulation_fusion=False,
    )
    parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    one = shared_experts.SharedExpertMLP(config, parts, False, ProcessGroupCollection.use_mpu_process_groups())
    x = torch.zeros(TOKENS // ranks, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    given = {t.untyped_storage()._cdata for t in (x, *one.parameters())}
    seen: dict[int, int] = {}
    alive = []  # what was freed in between must not lend its address to another

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in given:
            seen[storage._cdata] = storage.nbytes()
            alive.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        one.pre_forward_comm(x)
        one.linear_fc1_forward_and_act()
        one.linear_fc2_forward()
        one.post_forward_comm()
        one.get_output()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    sizes = {"ranks": ranks, "fused": fused, "tokens": TOKENS, "hidden": HIDDEN, "width": WIDTH}
    return {**sizes, "saved": sorted(Counter(seen.values()).items())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_shared.jsonl")
    given = parser.parse_args()
    from megatron.core import jit
    from megatron.core.fusions import fused_bias_swiglu

    jit.disable_jit_fuser()
    for name in ("swiglu", "swiglu_back"):  # as they are without the decorator
        function = getattr(fused_bias_swiglu, name)
        setattr(fused_bias_swiglu, name, getattr(function, "_torchdynamo_orig_callable", function))
    torch.cuda.Stream = Stream  # type: ignore[assignment,misc]
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()  # type: ignore[assignment]
    torch.cuda.current_stream = Stream  # type: ignore[assignment]
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    lines = [json.dumps(execute(*run), separators=(",", ":")) for run in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
