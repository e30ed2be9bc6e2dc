"""Makes tests/data/executed_trainer_vision.jsonl: steps of vision-language models by transformers' Trainer and TRL's SFTTrainer.

    python benchmarks/oracle/execute_trainer_vision.py TRL... [--only WORD] [--output tests/data/executed_trainer_vision.jsonl]

Every TRL is a folder as execute_trainer.py takes it, whose Trainer.training_step this runs. Models, images and what stands in for
kernels are those of execute_vision.py, execute_towers.py and execute_llava.py: transformers' own code on the meta device. Batches
have ids, labels, a mask of ones and images, as Oumi's collators make them. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import execute_llava
import execute_towers
import execute_vision
import flash_stub
import sharded
import torch
import torch.nn.functional
import transformers
import transformers.masking_utils
from execute import ROOT, Row, Storages
from execute_preference import Lives, patch
from execute_trainer import head_of, trainer_of
from fuzz import sdpa
from row_lines import write_rows
from vision_code import select_by_mask, standing_in

QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
OTHERS = {"internvl": execute_towers.CONFIGS, "llava": execute_llava.CONFIGS}
CASES: list[Row] = [
    {"checkpointing": True, "train": "none"},
    {"checkpointing": True},
    {"checkpointing": True, "reentrant": True},
    {"train": "projector"},
    {"checkpointing": True, "train": "projector"},
    {"images": 2, "sequences": 2, "grid": (20, 26), "train": "none"},
    {"lora": execute_vision.ATTENTION, "checkpointing": True},
    {"lora": execute_vision.MOST, "checkpointing": True},
    {"lora": execute_vision.MOST, "checkpointing": True, "kernels": "flash"},
    {"lora": execute_vision.ATTENTION},
]


class LivesOnTheDevice(Lives):
    def born(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "meta":
            super().born(tensor)


def configs() -> Row:
    return {name: execute_vision.CONFIGS[name] for name in QWEN} | {name: OTHERS[name][name] for name in OTHERS}


def made(name: str, config: Row, case: Row) -> tuple[Any, Row]:
    """A model and its batch."""
    if name not in QWEN:
        model = execute_towers.model_of(config, case)
        return execute_vision.adapted(model, case), execute_towers.inputs_of(config, case, "meta")
    with torch.device("meta"):
        model = execute_vision.model_of(config, case["kernels"], execute_vision.FORMATS[case["storage"]])
    execute_vision.freeze(model, case["train"])
    if case["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": case["reentrant"]})
    batch = execute_vision.inputs_of(case, "meta") | {"image_grid_thw": execute_vision.grid_of(case)}
    return execute_vision.adapted(model, case), batch


def execute(folder: Path | None, name: str, config: Row, case: Row) -> Row:
    model, shapes = made(name, config, case)
    trainer = trainer_of(folder, model)
    gc.collect()
    gc.disable()
    storages = LivesOnTheDevice()
    owned = [*model.parameters(), *model.buffers()]
    resident = sum(storages.own(tensor) for tensor in owned)
    held = [tensor.untyped_storage() for tensor in owned]
    peaks: Row = {}

    def backward(loss: torch.Tensor, **_: Any) -> None:
        peaks["forward"] = resident + storages.highest
        storages.highest = storages.live
        loss.backward()
        peaks["backward"] = resident + storages.highest

    trainer.accelerator.backward = backward
    with storages:
        batch = {key: torch.empty_like(x) if isinstance(x, torch.Tensor) else x for key, x in shapes.items()}
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        trainer.training_step(model, batch, num_items_in_batch=torch.empty((), dtype=torch.int64, device="meta"))
    gc.enable()
    del held
    return peaks


def rows_of(name: str, config: Row, folders: dict[str, Path | None], only: str, by: str) -> Iterator[Row]:
    module = importlib.import_module(f"transformers.models.{config['model_type']}.modeling_{config['model_type']}")
    with standing_in(module, "meta") if name in QWEN else nullcontext():
        if name not in QWEN:
            module.torch_compilable_check = lambda *_, **__: None  # counts the images' tokens
        for number, changes in enumerate(CASES):
            if name == "qwen3_vl_moe" and changes.get("lora") == execute_vision.MOST:
                continue  # which reaches experts
            case = {**changes, "train": "none"} if "lora" in changes else dict(changes)
            case = execute_vision.case_of(config, case) if name in QWEN else execute_vision.USUAL | {"tokens": 1024} | case
            words = execute_vision.words_of(changes) if "lora" in changes else changes
            told = "/".join(f"{key}={value}" for key, value in words.items()) or "usual"
            for trainer, folder in folders.items():
                if folder is not None and number % 2 and len(folders) > 2:
                    continue
                title = f"{name}/{trainer}/{told}"
                if only not in title:
                    continue
                job = (execute_vision if name in QWEN else execute_towers).job_with_images(config, case)
                job["trainer"]["head"] = head_of(trainer)
                job["trainer"]["transformers"] = transformers.__version__
                job["framework"] = "torch"
                yield {"id": title, "config": name, "job": job, "source": by, "peaks": execute(folder, name, config, case)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path, nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_trainer_vision.jsonl")
    options = parser.parse_args()
    plain = torch.Tensor.__getitem__
    patch()
    selected = torch.Tensor.__getitem__

    def by_mask(self: torch.Tensor, index: Any) -> torch.Tensor:
        return (selected if self.device.type == "meta" else plain)(self, index)  # windows of images are found on the host

    torch.Tensor.__getitem__ = by_mask  # type: ignore[method-assign]
    torch.nn.functional.scaled_dot_product_attention = sdpa
    flash_stub.stand_in()
    for mode in (Storages, Lives, sharded.LivesOfParts):
        select_by_mask(mode)
    folders: dict[str, Path | None] = {"trainer": None, **{f"sft-{path.name}": path for path in options.trl}}
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}: Trainer.training_step without a device"
    lines: list[Row] = [{"config": name, "fields": config} for name, config in configs().items()]
    for name, config in configs().items():
        lines += rows_of(name, config, folders, options.only, by)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
