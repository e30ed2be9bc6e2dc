"""Makes tests/data/executed_relax_adapted_towers.jsonl: steps of Qwen3.5 and Qwen3-VL with adapters as Relax runs them, executed.

    python benchmarks/oracle/execute_relax_adapted_towers.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE --fla FLASH_LINEAR_ATTENTION --slime SLIME [--output tests/data/executed_relax_adapted_towers.jsonl]
        [--only N...]

Needs what execute_relax_vision.py needs, whose models and calls these are. Around the model stand Megatron-Bridge's adapters, made as Relax
makes them (redai-studio/Relax 02bf712a, relax/backends/megatron/model_provider.py: wrap_model_provider_with_lora): LoRA of these targets,
which create_peft gives there, then its call. Modules are found by their names, those of the tower and of its mergers too, unless `scope` is language: then
Relax hands over whole names of modules outside of the tower. `masked`: as with --lora-adapter-mode the gates' columns of what an adapter of
linear attention gives are set to zero in place, by a hook (relax/utils/megatron_peft_utils.py: install_gdn_gate_mask_hooks).

A line is as there; `trained` counts adapters beside dense layers, `trained_experts` those beside experts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_linear as linear
import execute_megatron_linear_context as context
import execute_megatron_vision as vision
import execute_relax_vision as relax
import torch
import triton_stub
from execute import ROOT, Row

ATTENTION = ["linear_qkv", "linear_proj"]
ALL = [*ATTENTION, "in_proj", "out_proj", "linear_fc1", "linear_fc2"]
LORA: Row = {"rank": 16, "targets": ALL, "scope": "all", "masked": False}
QWEN3: Row = {**relax.QWEN3, **LORA, "targets": [*ATTENTION, "linear_fc1", "linear_fc2"]}
QWEN35: Row = {**relax.QWEN35, **LORA}
MOE: Row = {**relax.MOE, **LORA}
LANGUAGE: Row = {"scope": "language"}
MASKED: Row = LANGUAGE | {"masked": True}
OF_ATTENTION: Row = {"targets": ATTENTION}
OF_DELTA: Row = {"targets": ["in_proj", "out_proj"]}
SPLIT, UNIFORM, STAGE, TWO, FUSED = relax.SPLIT, relax.UNIFORM, relax.STAGE, relax.TWO, relax.FUSED
IMAGE, PAIR, LARGE, LONG = relax.IMAGE, relax.PAIR, relax.LARGE, relax.LONG
TEXT: Row = {"images": []}
EVERYWHERE: list[Row] = [
    TEXT,
    SPLIT | TWO | UNIFORM | FUSED,
    SPLIT | PAIR | FUSED,
    LARGE | UNIFORM,
    LARGE | LANGUAGE,
    SPLIT | PAIR | UNIFORM | FUSED | LANGUAGE,
]
OF_LINEAR: list[Row] = [
    SPLIT | TWO | FUSED,
    LONG | UNIFORM | FUSED,
    SPLIT | STAGE | PAIR | UNIFORM | FUSED,
    OF_ATTENTION | TEXT,
    SPLIT | OF_ATTENTION | TWO | UNIFORM | FUSED,
    IMAGE,
    SPLIT | PAIR | UNIFORM | FUSED,
    LARGE | UNIFORM | LANGUAGE,
    MASKED | TEXT,
    SPLIT | MASKED | TWO | UNIFORM | FUSED,
    OF_DELTA | TEXT,
    relax.WIDE | SPLIT | {"sequences": 2} | UNIFORM | FUSED,
    relax.WIDE | OF_ATTENTION | {"sequences": 2} | UNIFORM | FUSED,
]
RUNS: list[Row] = [
    *(base | run for run in [*EVERYWHERE, *OF_LINEAR] for base in (QWEN35, MOE)),
    *(QWEN3 | run for run in EVERYWHERE),
    *(base | relax.WIDE | OF_ATTENTION | UNIFORM | FUSED for base in (QWEN35, MOE)),
]


def mask_gates(model: Any) -> None:
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet

    def without(columns: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            output[..., output.shape[-1] - columns :] = 0
            return output

        return hook

    for module in model.modules():
        if isinstance(module, GatedDeltaNet):
            module.in_proj.adapter.register_forward_hook(without(2 * module.num_v_heads_local_tp))


def targets_of(run: Row, model: Any) -> list[str]:
    if run["scope"] == "all":
        return list(run["targets"])
    return [name for name, _ in model.named_modules() if name.split(".")[-1] in run["targets"] and "vision_model" not in name]


def model_of(run: Row) -> Any:
    from megatron.bridge.peft.lora import LoRA

    model = relax.model_of(run)
    model = LoRA(target_modules=targets_of(run, model), dim=run["rank"], alpha=32, dropout=0.0)(model, training=True)
    if run["masked"]:
        mask_gates(model)
    trained = [p for p in model.bfloat16().parameters() if p.requires_grad]
    for parameter in trained:
        parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    run["trained"] = sum(p.numel() for p in trained if getattr(p, "allreduce", True))
    run["trained_experts"] = sum(p.numel() for p in trained if not getattr(p, "allreduce", True))
    return model


def prepare(given: argparse.Namespace) -> None:
    linear.Attention = relax.Attention  # type: ignore[misc]
    linear.prepare(given)
    torch.tensor = context.without_pins(torch.tensor)  # type: ignore[assignment]
    sys.path.insert(0, str(given.slime))
    vision.without_init("megatron.bridge.peft", given.bridge / "src")
    triton_stub.Kernel.get_int_dtype = triton_stub.Kernel  # type: ignore[attr-defined]
    for name in ("utils", "lora"):
        importlib.import_module(f"megatron.bridge.peft.{name}")
    from megatron.core.tensor_parallel import layers

    sys.modules["megatron.bridge.peft.utils"].version = lambda _: "2.17.1"  # type: ignore[attr-defined]
    layers.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge", "fla", "slime"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_relax_adapted_towers.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    prepare(given)
    if given.only:
        for number in given.only:
            print(json.dumps(vision.execute(dict(RUNS[number]), model_of, relax.Inputs)))
        return
    with given.output.open("w", encoding="utf-8") as out:
        for run in RUNS:
            line = vision.execute(dict(run), model_of, relax.Inputs)
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
