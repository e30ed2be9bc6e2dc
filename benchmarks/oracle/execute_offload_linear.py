"""Makes tests/data/executed_offload_linear.jsonl: verl's offload of activations of Qwen3-Next and Qwen3.5 (text alone).

    python benchmarks/oracle/execute_offload_linear.py VERL --fla DIR --conv DIR [--only WORD] [--output FILE]

As execute_verl_linear.py, with verl/utils/activation_offload.py as in execute_offload.py and execute_offload_units.py. With transformers'
own loop and without checkpoints verl itself fails, which is checked.
"""

from __future__ import annotations

import argparse
import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_autocast
import execute_fsdp1
import execute_offload
import execute_offload_units
import execute_verl_linear
import fla_code
import flash_stub
import sharded
import torch
import torch.distributed as dist
import transformers
from execute import ROOT, Row, Storages
from execute_offload import host
from execute_verl_linear import case_of, job_with_kernels, split_context
from execute_verl_vision import Code, inputs_of, loss_of, stand_ins, text_model_of, units_of
from execute_vision import FORMATS
from row_lines import write_rows
from vision_code import select_by_mask

MODELS: dict[str, Row] = {name: execute_verl_linear.MODELS[name] for name in ("qwen3_next", "qwen3_next, equal heads")}
for name in ("qwen3_5", "qwen3_5, equal heads", "qwen3_5_moe"):
    text = execute_verl_linear.MODELS[name]["text_config"]
    MODELS[f"{name}, text alone"] = {"vocab_size": 1024, **text, "tie_word_embeddings": False}

CASES: list[Row] = [
    {"lengths": (512,), "checkpointing": True},
    {"lengths": (200, 200, 112), "checkpointing": True},
    {"lengths": (512,), "checkpointing": True, "autocast": True},
    {"lengths": (512,), "checkpointing": True, "storage": "bf16", "reduce": "bf16", "ranks": 8},
    {"lengths": (1024,), "checkpointing": True, "wrap_head": True, "autocast": True},
    {"lengths": (512,)},
    {"lengths": (1024,), "autocast": True},
]
ULYSSES: list[Row] = [
    {"ulysses": 2, "lengths": (512,), "checkpointing": True, "wrap_head": True},
    {"ulysses": 4, "lengths": (300, 300, 300, 124, 512, 512), "checkpointing": True, "ranks": 8, "autocast": True},
]


def cases_of(name: str) -> list[Row]:
    return [*CASES, *ULYSSES] if name == "qwen3_next" else CASES


def under_fsdp2(code: Code, offload: Any, config: Row, case: Row) -> tuple[Row, int]:
    def made() -> tuple[Any, list[Any]]:
        with torch.device("meta"):
            model = text_model_of(config, "flash", FORMATS[case["storage"]])
        code.apply(model, case["ulysses"])
        head = [model.lm_head] if case.get("wrap_head") else []
        return model, [model.model.embed_tokens, *units_of(model), *head]

    enabled: list[Any] = []
    gc.collect()
    host.live = 0

    def step(model: Any, given: Row) -> torch.Tensor:
        if not enabled:
            offload.enable_activation_offloading(model, "fsdp2", case["checkpointing"])
            enabled.append(model)
        host.highest = host.live
        with torch.autocast("cpu", torch.bfloat16, enabled=case["autocast"]):
            return loss_of(model, given, False)

    peaks = sharded.two_steps(made, lambda: inputs_of(case, "cpu"), case, FORMATS, step)
    return {phase: peaks[phase] for phase in ("forward", "backward")}, host.highest


def itself_fails(code: Code, offload: Any, config: Row, case: Row) -> bool:
    """verl's handler knows copies by addresses: a slice of the loop's first turn gets the whole tensor's."""
    try:
        under_fsdp2(code, offload, config, case)
    except RuntimeError as error:
        sharded.ResizedParts.now = None
        dist.destroy_process_group()
        return "is invalid for input of size" in str(error)
    return False


def rows_of(code: Code, offload: Any, only: str) -> Iterator[Row]:
    for name, config in MODELS.items():
        family = config["model_type"].removesuffix("_text")
        module: Any = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        for kernels in ("fla_conv", "fla", "torch"):
            for changes in cases_of(name):
                words = "/".join(f"{key}={value}" for key, value in changes.items())
                row = f"verl {code.release}/fsdp2/{name}/{kernels}/{words}"
                if only not in row:
                    continue
                case = case_of(config, changes, "cpu")
                code.tell_tokens(case["tokens"])
                linear: Any = importlib.import_module("verl.models.transformers.qwen3_5")
                linear._build_fla_cp_context = split_context(case, "cpu")
                fla_code.choose(module, kernels)
                if kernels == "torch" and not case["checkpointing"]:
                    assert itself_fails(code, offload, config, case), row
                    code.leave()
                    continue
                peaks, highest = under_fsdp2(code, offload, config, case)
                code.leave()
                job = job_with_kernels(code, "fsdp2", config, case, kernels)
                job["trainer"] |= {"offload_activations": "verl", "reentrant": True}
                if case.get("wrap_head"):
                    job["trainer"]["wrap_head"] = True
                yield {"id": row, "config": name, "job": job, "peaks": peaks, "host": highest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path)
    parser.add_argument("--fla", type=Path, required=True)
    parser.add_argument("--conv", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_offload_linear.jsonl")
    options = parser.parse_args()
    execute_fsdp1.stand_in()
    flash_stub.stand_in()
    sharded.follow_resizing()
    select_by_mask(Storages)
    select_by_mask(sharded.LivesOfParts)
    stand_ins()
    cuda_autocast.stand_in()
    fla_code.install_fla(options.fla)
    fla_code.install_conv(options.conv)
    torch.cuda.current_device = lambda: torch.device("meta")  # where the gated norm makes its weight
    offload = execute_offload.verl_code(options.verl)
    offload.torch = execute_offload_units.NoFakes("torch")
    execute_offload.Copy.back = execute_offload_units.back  # type: ignore[method-assign]
    lines: list[Row] = [{"config": name, "fields": config} for name, config in MODELS.items()]
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    versions += f", flash-linear-attention {fla_code.release(options.fla)}, causal-conv1d {fla_code.release(options.conv)}"
    code = Code(options.verl)
    for row in rows_of(code, offload, options.only):
        print(row["id"], row["peaks"], row["host"], flush=True)
        lines.append(row | {"source": f"{versions}, verl {code.release} executed on tensors without data"})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
