"""Makes tests/data/executed_trainer.jsonl: steps of transformers' Trainer and of TRL's SFTTrainer, executed by PyTorch.

    python benchmarks/oracle/execute_trainer.py TRL... [--output tests/data/executed_trainer.jsonl]

Every TRL is a folder `trl` of a release below a folder of its name (v1.4.0/trl). Trainer.training_step runs as it is, around the
class's own compute_loss; no constructor runs, so that no data set, accelerate or output folder is needed. Tensors are fake CPU ones.
Batches have ids, labels and a mask of ones, as the collators make them. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from execute import ROOT, Row, job_of
from execute_preference import CONFIGS, FORMATS, RANK, Lives, adapted, make, patch
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from trl_code import accelerator, definitions, load

# name of the trainer, config, format, sequences, tokens of one, checkpointing, adapters
Case = tuple[str, str, str, int, int, bool, bool]
SIZES = ((1, 64), (1, 1024), (2, 1024), (4, 512), (6, 300))


def cases(trainers: list[str]) -> list[Case]:
    both = (False, True)
    return [
        *((name, "narrow", f, b, s, False, False) for name in trainers for f in FORMATS for b, s in SIZES),
        *((name, "llama", f, 4, 512, c, lora) for name in trainers for f in FORMATS for c in both for lora in both),
    ]


def super_named(nodes: list[ast.stmt]) -> list[ast.stmt]:
    """super() of a method that stands in another class than its own."""
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "super" and not call.args:
                call.args = [ast.Name("Made", ast.Load()), ast.Name("self", ast.Load())]
    return nodes


def trainer_of(folder: Path | None, model: Any) -> Any:
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "Trainer": transformers.Trainer}
    names["PeftType"] = SimpleNamespace(PREFIX_TUNING="prefix")
    made: Any = transformers.Trainer
    if folder is not None:
        load(definitions(folder / "trl/trainer/utils.py", {"entropy_from_logits"}), names)
        body = super_named(definitions(folder / "trl/trainer/sft_trainer.py", {"compute_loss"}, "SFTTrainer"))
        made = load([ast.ClassDef("Made", [ast.Name("Trainer", ast.Load())], [], body, [])], names)["Made"]
    out = object.__new__(made)
    alone = accelerator()
    alone.backward = lambda loss, **_: loss.backward()
    alone.distributed_type = transformers.trainer.DistributedType.NO
    arguments = SimpleNamespace(
        torch_empty_cache_steps=None, optim="adamw_torch", n_gpu=1, average_tokens_across_devices=False, past_index=-1
    )
    arguments.__dict__.update(use_liger_kernel=False, prediction_loss_only=True, loss_type="nll", device=torch.device("cpu"))
    out.__dict__.update(model=model, args=arguments, accelerator=alone, optimizer=SimpleNamespace(), label_smoother=None)
    out.__dict__.update(compute_loss_func=None, model_accepts_loss_kwargs=True, loss_is_scaled_for_ga=None, num_virtual_tokens=0)
    out.__dict__.update(_metrics={"train": defaultdict(list)}, _total_train_tokens=0, aux_loss_enabled=False)
    out.__dict__.update(current_gradient_accumulation_steps=1, maybe_activation_offload_context=contextlib.nullcontext())
    out._prepare_context_parallel_inputs = lambda _model, inputs: (contextlib.nullcontext, inputs)
    out._prepare_inputs = lambda inputs: inputs
    return out


def execute(folder: Path | None, case: Case) -> Row:
    _, config, form, sequences, tokens, checkpointing, lora = case
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = make("hf_loss", CONFIGS[config], form, checkpointing)
        policy = adapted(model, checkpointing) if lora else model
    made = trainer_of(folder, policy)
    gc.collect()
    gc.disable()
    storages = Lives()
    owned = [*policy.parameters(), *policy.buffers()]
    resident = sum(storages.own(tensor) for tensor in owned)
    held = [tensor.untyped_storage() for tensor in owned]
    peaks: Row = {}

    def backward(loss: torch.Tensor, **_: Any) -> None:
        peaks["forward"] = resident + storages.highest
        storages.highest = storages.live
        loss.backward()
        peaks["backward"] = resident + storages.highest

    made.accelerator.backward = backward
    with fake, storages:
        ids = torch.empty(sequences, tokens, dtype=torch.int64)
        batch = {"input_ids": ids, "labels": torch.empty_like(ids), "attention_mask": torch.ones_like(ids)}
        del ids
        made.training_step(policy, batch, num_items_in_batch=torch.empty((), dtype=torch.int64))
    gc.enable()
    del held
    return peaks


def head_of(trainer: str) -> str:
    if trainer == "trainer":
        return "hf_loss"
    release = tuple(int(part) for part in trainer.removeprefix("sft-v").split("."))
    return "trl_sft_1_3" if release >= (1, 3, 0) else "trl_sft"


def case_job(case: Case) -> Row:
    name, _, form, sequences, tokens, checkpointing, lora = case
    job = job_of(sequences, tokens, checkpointing)
    job["trainer"] |= {"head": head_of(name), **FORMATS[form]}
    job["framework"] = "torch"
    if lora:
        job["trainer"]["lora"] = {"rank": RANK, "targets": "all-linear"}
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path, nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_trainer.jsonl")
    options = parser.parse_args()
    patch()
    folders: dict[str, Path | None] = {"trainer": None, **{f"sft-{path.name}": path for path in options.trl}}
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    for case in cases(list(folders)):
        name, config, form, sequences, tokens, checkpointing, lora = case
        title = (
            f"{config}/{name}/{form}/b{sequences}s{tokens}"
            + ("/lora" if lora else "")
            + ("/checkpointed" if checkpointing else "")
        )
        if options.only not in title:
            continue
        source = f"{by}, {'Trainer' if name == 'trainer' else 'TRL ' + name.removeprefix('sft-v')} executed on fake tensors"
        lines.append(
            {"id": title, "config": config, "job": case_job(case), "source": source, "peaks": execute(folders[name], case)}
        )
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
