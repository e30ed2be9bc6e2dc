"""Makes tests/data/executed_flat_towers.jsonl: steps of models with a tower under FullyShardedDataParallel as accelerate makes it.

    python benchmarks/oracle/execute_flat_towers.py [--only WORD] [--output tests/data/executed_flat_towers.jsonl]

Text alone is trained, or images beside Qwen's towers. Units are the language model's layers, which Oumi's files name, and peft's adapters; the tower belongs to the
root. There is no policy of formats. Models are those of execute_text_alone.py, under what execute_fsdp1.py has for devices. Levels are
those of the second step.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import execute_fsdp1
import execute_text_alone
import execute_vision
import torch
import torch.distributed as dist
import transformers
from execute import RANK, ROOT, Row
from fuzz_fsdp import adapter_alone
from row_lines import write_rows
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel
from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore
from vision_code import select_by_mask, standing_in

MODELS = ("gemma3", "gemma3, untied", "gemma4", "gemma4, images alone", "gemma4_unified", "qwen2_5_vl", "qwen3_vl")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
USUAL: Row = {"ranks": 4, "storage": "bf16", "checkpointing": False, "use_orig_params": True, "forward_prefetch": False}
CASES: list[Row] = [
    {},
    {"checkpointing": True},
    {"checkpointing": True, "ranks": 8},
    {"checkpointing": True, "forward_prefetch": True},
    {"checkpointing": True, "use_orig_params": False},
    {"checkpointing": True, "use_orig_params": False, "lora": execute_vision.ATTENTION},
    {"use_orig_params": False, "lora": execute_vision.ATTENTION},
]


# with use_orig_params alone: else the tower has no parameters by itself, of which its model asks the format
IMAGES: list[Row] = [*CASES[:4], {"train": "none", "checkpointing": True}, {"train": "projector"}]


def adapted(model: Any, config: Row, case: Row) -> Any:
    """In fp32, as execute_vision.py has them; the rest is frozen. Names reach into SigLIP, too."""
    if "lora" not in case:
        return model
    import peft

    names: Any = case["lora"]
    if config["model_type"].startswith("gemma4"):  # peft takes no module that wraps a linear layer, as its towers do
        names = rf".*language_model\..*\.({'|'.join(names)})"
    with torch.device("meta"):
        return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules=names))


def wrapped(model: Any, case: Row) -> Any:
    text = model.get_base_model() if "lora" in case else model
    layers = {type(layer) for layer in text.model.language_model.layers}
    policy: Any = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)
    if "lora" in case:
        trained = functools.partial(lambda_auto_wrap_policy, lambda_fn=adapter_alone)
        policy = functools.partial(_or_policy, policies=[trained, policy])
    out = FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        forward_prefetch=case["forward_prefetch"],
        use_orig_params=case["use_orig_params"],
    )
    if case["checkpointing"]:
        wrap = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
        inner = [unit for unit in out.modules() if type(unit) in layers]
        apply_activation_checkpointing(out, checkpoint_wrapper_fn=wrap, check_fn=lambda module: module in inner)
    return out


def execute(config: Row, case: Row) -> Row:
    dist.init_process_group("fake", store=FakeStore(), rank=case["ranks"] - 1, world_size=case["ranks"])
    if "images" in case:
        with torch.device("meta"):
            plain = execute_vision.model_of(config, case["kernels"], execute_vision.FORMATS[case["storage"]])
        execute_vision.freeze(plain, case["train"])
        # FSDP would make another list of what is told on the host
        plain.forward = functools.partial(plain.forward, image_grid_thw=execute_vision.grid_of(case))
    else:
        plain = execute_text_alone.model_of(config, case | {"checkpointing": False})
    inputs_of = execute_vision.inputs_of if "images" in case else execute_text_alone.inputs_of
    model = wrapped(adapted(plain, config, case), case)
    del plain
    gradient = torch.ones((), device="meta")
    storages, resident = execute_fsdp1.followed(model, gradient)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], foreach=False)
    execute_fsdp1.Resized.now = storages
    peaks: Row = {}
    for _ in range(2):
        with storages:
            given = inputs_of(case, "meta")
            storages.highest = storages.live
            loss = model(**given).loss
            peaks = {"forward": resident + storages.highest}
            storages.highest = storages.live
            loss.backward(gradient)
            peaks["backward"] = resident + storages.highest
            del loss, given
            optimizer.step()
            optimizer.zero_grad()
    execute_fsdp1.Resized.now = None
    gc.enable()
    dist.destroy_process_group()
    return peaks


def flat(job: Row, case: Row) -> Row:
    job["trainer"] |= {
        "engine": "fsdp1",
        "layout": f"d{case['ranks']}",
        "use_orig_params": case["use_orig_params"],
        "forward_prefetch": case["forward_prefetch"],
        "reentrant": False,
        "optimizer": "sgd",
    }
    job["trainer"]["precision"] |= {"cast_parameters": False, "cast_gradients": False}
    if "lora" in case:
        job["trainer"]["lora"] = {"rank": RANK, "targets": case["lora"]}
    return job


def rows_of(name: str, config: Row) -> Iterator[tuple[str, Row, Row]]:
    for changes in CASES:
        if (name.startswith("gemma4,") or name == "gemma4") and "lora" in changes and changes.get("checkpointing"):
            continue  # 2.1 to 2.7 % too much is said of shared keys there
        case = execute_text_alone.USUAL | USUAL | changes
        job = execute_text_alone.job_with_tower({key: value for key, value in case.items() if key not in ("ranks", "lora")})
        yield f"{name}/{told_of(changes)}", flat(job, case), execute(config, case)


def image_rows(name: str, config: Row) -> Iterator[tuple[str, Row, Row]]:
    module = importlib.import_module(f"transformers.models.{config['model_type']}.modeling_{config['model_type']}")
    with standing_in(module, "meta"):
        for changes in IMAGES:
            case = execute_vision.case_of(config, USUAL | changes)
            job = execute_vision.job_with_images(config, {key: value for key, value in case.items() if key != "ranks"})
            yield f"{name}/images/{told_of(changes)}", flat(job, case), execute(config, case)


def told_of(changes: Row) -> str:
    return "/".join(key if key == "lora" else f"{key}={value}" for key, value in changes.items()) or "usual"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_flat_towers.jsonl")
    options = parser.parse_args()
    execute_fsdp1.stand_in()
    born = execute_fsdp1.Resized.born

    def on_the_device(self: Any, tensor: torch.Tensor) -> None:
        if tensor.device.type == "meta":
            born(self, tensor)

    execute_fsdp1.Resized.born = on_the_device  # type: ignore[method-assign]
    select_by_mask(execute_fsdp1.Resized)
    torch.nn.functional.scaled_dot_product_attention = execute_text_alone.sdpa
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on the meta device"
    lines: list[Row] = []
    for name in MODELS:
        if options.only not in name:
            continue
        config = execute_text_alone.CONFIGS[name]
        lines.append({"config": name, "fields": config})
        for told, job, peaks in rows_of(name, config):
            lines.append({"id": told, "config": name, "job": job, "source": by, "peaks": peaks})
            print(told, peaks, flush=True)
    for name in QWEN:
        if options.only not in f"{name}/images":
            continue
        config = execute_vision.CONFIGS[name]
        lines.append({"config": f"{name}/images", "fields": config})
        for told, job, peaks in image_rows(name, config):
            lines.append({"id": told, "config": f"{name}/images", "job": job, "source": by, "peaks": peaks})
            print(told, peaks, flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
