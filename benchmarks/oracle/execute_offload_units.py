"""Makes tests/data/executed_offload_units.jsonl: verl's offload of activations under FSDP2 with an output layer that is a unit.

    python benchmarks/oracle/execute_offload_units.py VERL [--output tests/data/executed_offload_units.jsonl]

From 0.7.1 on verl wraps embedding and output layer of models whose weights are not tied (verl/utils/fsdp_utils.py, apply_fsdp2), and
verl/utils/activation_offload.py takes every unit but an embedding for a layer: the output layer is the last group, and checkpointed
where the layers are. That file runs as in execute_offload.py, FSDP2's own code as in sharded.py. It leaves fake tensors alone, so that
it is told that there are none. First it runs with numbers, to see whether logits may be divided in place, as verl did up to 0.8.
"""

from __future__ import annotations

import argparse
import gc
import types
from pathlib import Path
from typing import Any

import cuda_autocast
import execute_fsdp1
import execute_offload
import execute_parallel
import sharded
import torch
import torch.distributed as dist
import transformers
import transformers.masking_utils
from execute import ROOT, Row
from execute_heads import FlashCrossEntropy
from execute_offload import CONFIGS, TOKENS, host
from row_lines import write_rows
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

FORMATS = execute_fsdp1.FORMATS
USUAL: Row = {"ranks": 4, "storage": "fp32", "compute": "bf16", "reduce": "fp32", "root_reshard": True, "checkpointed": False}
NAMES = ("llama, large vocabulary", "qwen3, 5 layers", "mixtral, 5 layers", "llama, 3 layers")
CASES: list[Row] = [
    {},
    {"checkpointed": True},
    {"checkpointed": True, "storage": "bf16", "reduce": "bf16"},
    {"checkpointed": True, "autocast": True},
    {"autocast": True},
    {"checkpointed": True, "ranks": 8},
]


class NoFakes(types.ModuleType):
    """torch for verl's file, which asks whether a tensor is a stray one of torch.compile's."""

    _subclasses = types.SimpleNamespace(
        fake_tensor=types.SimpleNamespace(FakeTensor=type("FakeTensor", (), {})),
        functional_tensor=types.SimpleNamespace(FunctionalTensor=type("FunctionalTensor", (), {})),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def back(copy: execute_offload.Copy) -> torch.Tensor:
    return torch.empty(copy.shape, dtype=copy.dtype, device="cpu")


def build(config: Row, dtype: torch.dtype, attention: str) -> tuple[Any, list[Any]]:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation="eager")
    model.config._attn_implementation = attention
    model.train()
    return model, [model.model.embed_tokens, *model.model.layers, model.lm_head]


def loss_of(model: Any, ids: torch.Tensor, in_place: bool) -> torch.Tensor:
    """verl/workers/engine/fsdp/transformer_impl.py: up to 0.8 logits are divided in place."""
    logits = model(input_ids=ids).logits.squeeze(0)
    if in_place:
        logits.div_(0.7)
    else:
        logits = logits / 0.7
    return FlashCrossEntropy.apply(logits, ids[0, : len(logits)], True).mean()


def execute(code: Any, config: Row, case: Row) -> tuple[Row, int]:
    def made() -> tuple[Any, list[Any]]:
        with torch.device("meta"):
            return build(config, FORMATS[case["storage"]], "executed")

    enabled: list[Any] = []
    gc.collect()
    host.live = 0

    def step(model: Any, given: Row) -> torch.Tensor:
        if not enabled:
            code.enable_activation_offloading(model, "fsdp2", case["checkpointed"])
            enabled.append(model)
        host.highest = host.live
        with torch.autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
            return loss_of(model, given["input_ids"], False)

    peaks = sharded.two_steps(made, lambda: {"input_ids": torch.empty(1, TOKENS, dtype=torch.int64)}, case, FORMATS, step)
    return {phase: peaks[phase] for phase in ("forward", "backward")}, host.highest


def job_of(case: Row) -> Row:
    trainer: Row = {
        "engine": "fsdp2",
        "layout": f"d{case['ranks']}",
        "kernels": "hf_flash",
        "precision": {kind: case[kind] for kind in ("storage", "compute", "reduce")},
        "autocast": case.get("autocast", False),
        "recompute": "full" if case["checkpointed"] else "none",
        "reentrant": True,
        "optimizer": "sgd",
        "head": "verl_flash_ce",
        "kernel_internals": False,
        "micro_batches": 1,
        "sequences_per_micro_batch": 1,
        "sequence_tokens": TOKENS,
        "offload_activations": "verl",
        "wrap_head": True,
    }
    return {"framework": "verl 0.9.0", "trainer": trainer, "apart": {"forward_only": False}}


def in_place_is_refused(code: Any) -> bool:
    """With numbers, outside of every mode."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    model, units = build(CONFIGS["llama, 3 layers"], torch.float32, "eager")
    for unit in [*units, model]:
        fully_shard(unit, mesh=mesh)
    code.enable_activation_offloading(model, "fsdp2", True)
    try:
        loss_of(model, torch.zeros(1, 8, dtype=torch.int64), True)
    except RuntimeError as error:
        print(f"logits divided in place: {str(error)[:200]}")
        return True
    finally:
        dist.destroy_process_group()
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_offload_units.jsonl")
    options = parser.parse_args()
    code = execute_offload.verl_code(options.verl)
    assert in_place_is_refused(code)
    execute_fsdp1.stand_in()
    sharded.follow_resizing()
    cuda_autocast.stand_in()
    torch.nn.functional.scaled_dot_product_attention = execute_parallel.flash_sdpa
    transformers.AttentionInterface.register("executed", execute_parallel.attend)
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["executed"] = lambda *_, **__: None
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    code.torch = NoFakes("torch")
    execute_offload.Copy.back = back  # type: ignore[method-assign]
    lines: list[Row] = [{"config": name, "fields": CONFIGS[name]} for name in NAMES]
    release = (options.verl / "verl/version/version").read_text(encoding="utf-8").strip().removesuffix(".dev")
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    for name in NAMES:
        for changes in CASES:
            case = USUAL | changes
            words = "/".join(f"{key}={value}" for key, value in changes.items()) or "usual"
            peaks, highest = execute(code, CONFIGS[name], case)
            row = {"id": f"{name}/fsdp2/{words}", "config": name, "job": job_of(case), "peaks": peaks, "host": highest}
            lines.append(row | {"source": f"{versions}, verl {release} executed on tensors without data"})
            print(row["id"], peaks, highest, flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
