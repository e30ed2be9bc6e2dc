"""Makes tests/data/executed_vision.jsonl: training steps of models with a vision tower, executed by PyTorch.

    python benchmarks/oracle/execute_vision.py [--only WORD] [--output tests/data/executed_vision.jsonl]

One device: transformers' own code on the meta device, as execute.py. FSDP2: fully_shard around every decoder layer, every block of
the tower and the model (and the embedding, where it is not tied), on fake CPU tensors and PyTorch's fake process group, as rank 0.
SDPA is its flash operator. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import flash_stub
import sharded
import torch
import torch.distributed as dist
import torch.nn.functional
import transformers
from execute import RANK, ROOT, SMALL, Row, SavedByLayer, Storages, as_on_cuda, job_of
from execute_states import HYBRID
from vision_code import Features, OnTheHost, select_by_mask, standing_in

aten = torch.ops.aten
FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}
TOWER: Row = {
    "depth": 5,
    "hidden_size": 256,
    "num_heads": 4,
    "intermediate_size": 640,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
IDS: Row = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
SECTIONS: Row = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
BLOCK = 1  # of the tower, whose saved tensors are listed
TEXT: Row = {**SMALL, "vocab_size": 1024, "rope_parameters": SECTIONS}
DEEP_TOWER: Row = {
    "depth": 7,
    "hidden_size": 256,
    "num_heads": 4,
    "intermediate_size": 640,
    "patch_size": 16,
    "out_hidden_size": 512,
    "num_position_embeddings": 576,
    "deepstack_visual_indexes": [1, 3, 4],
}
DEEP_TEXT: Row = {**TEXT, "num_hidden_layers": 6, "head_dim": 64}
DEEP_EXPERTS: Row = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
HYBRID_TEXT: Row = {**HYBRID, "vocab_size": 1024, "rope_parameters": {**SECTIONS, "partial_rotary_factor": 1.0}}
CONFIGS: dict[str, Row] = {
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl",
        "text_config": {**TEXT, "model_type": "qwen2_5_vl_text"},
        "vision_config": {**TOWER, "out_hidden_size": 512, "fullatt_block_indexes": [2], "window_size": 112},
        **IDS,
    },
    "qwen2_vl": {
        "model_type": "qwen2_vl",
        "text_config": {**TEXT, "model_type": "qwen2_vl_text", "num_key_value_heads": 2},
        "vision_config": {"depth": 5, "embed_dim": 320, "hidden_size": 512, "num_heads": 4, "mlp_ratio": 3},
        **IDS,
    },
    "qwen3_vl": {
        "model_type": "qwen3_vl",
        "text_config": {**DEEP_TEXT, "model_type": "qwen3_vl_text"},
        "vision_config": DEEP_TOWER,
        **IDS,
    },
    "qwen3_vl_moe": {
        "model_type": "qwen3_vl_moe",
        "text_config": {**DEEP_TEXT, **DEEP_EXPERTS, "model_type": "qwen3_vl_moe_text"},
        "vision_config": {**DEEP_TOWER, "depth": 6, "deepstack_visual_indexes": [1, 3]},
        **IDS,
    },
    "qwen3_vl, tied": {
        "model_type": "qwen3_vl",
        "text_config": {**DEEP_TEXT, "num_hidden_layers": 4, "model_type": "qwen3_vl_text", "tie_word_embeddings": True},
        "vision_config": {**DEEP_TOWER, "deepstack_visual_indexes": [0, 1, 4]},
        "tie_word_embeddings": True,
        **IDS,
    },
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": {**HYBRID_TEXT, "model_type": "qwen3_5_text"},
        "vision_config": {**DEEP_TOWER, "deepstack_visual_indexes": []},
        **IDS,
    },
    "qwen2_5_vl, tied": {
        "model_type": "qwen2_5_vl",
        "text_config": {**TEXT, "model_type": "qwen2_5_vl_text"},
        "vision_config": {**TOWER, "out_hidden_size": 512, "fullatt_block_indexes": [1, 2], "window_size": 56},
        "tie_word_embeddings": True,
        **IDS,
    },
}


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> torch.Tensor:
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False)[0]


class OnTheDevice(Storages):
    def born(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "meta":
            super().born(tensor)


def model_of(config: Row, kernels: str, dtype: torch.dtype) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(fields)))
    settings.use_cache = settings.text_config.use_cache = False
    kernels = "flash_attention_2" if kernels == "flash" else kernels
    model = transformers.AutoModelForImageTextToText.from_config(settings, dtype=dtype, attn_implementation=kernels)
    model.train()
    return model


def freeze(model: Any, train: str) -> None:
    tower = model.model.visual
    for name, parameter in tower.named_parameters():
        trains = train == "all" or (train == "projector" and "merger" in name)
        parameter.requires_grad_(trains)


def adapted(model: Any, case: Row) -> Any:
    """With adapters in fp32 where the case has some; everything else is frozen then. peft casts nothing on the meta device."""
    if "lora" not in case:
        return model
    import peft

    with torch.device("meta"):
        settings = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules=case["lora"])
        return peft.get_peft_model(model, settings)


def adapters_of(case: Row) -> Row:
    if "lora" not in case:
        return {}
    return {"lora": {"rank": RANK, "targets": case["lora"]}}


def grid_of(case: Row) -> OnTheHost:
    return OnTheHost([[1, *case["grid"]]] * (case["images"] * case["sequences"]))


def inputs_of(case: Row, device: str) -> Row:
    h, w = case["grid"]
    images = case["images"] * case["sequences"]
    ids = torch.empty(case["sequences"], case["tokens"], dtype=torch.int64, device=device)
    pixels = torch.empty(images * h * w, 3 * 2 * case["patch"] ** 2, dtype=torch.float32, device=device)
    batch = {"input_ids": ids, "labels": torch.empty_like(ids), "mm_token_type_ids": torch.empty_like(ids)}
    return batch | {"pixel_values": pixels}


def one_step(model: Any, block: Any, inputs: Callable[[], Row], also: Row, tells_saved: bool) -> Row:
    """Highest levels of a step on one device, and where it is told what `block` saves."""
    gc.collect()
    gc.disable()
    storages = OnTheDevice()
    resident = sum(storages.own(t) for t in [*model.parameters(), *model.buffers()])
    saved = SavedByLayer(storages, block)
    with storages:
        given = inputs()
        with saved.hooks() if tells_saved else nullcontext():
            loss = model(**given, **also).loss
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    peaks = {"forward": resident + forward, "backward": resident + storages.highest}
    if not tells_saved:
        return {"peaks": peaks}
    return {"peaks": peaks, "block": BLOCK, "saved": saved.counted()}


def execute(config: Row, case: Row) -> Row:
    with torch.device("meta"):
        model = model_of(config, case["kernels"], FORMATS[case["storage"]])
    freeze(model, case["train"])
    if case["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": case["reentrant"]})
    block = model.model.visual.blocks[BLOCK]
    tells = not case["checkpointing"] and case["train"] == "all" and case["kernels"] != "flash"  # which flattens the batch
    also = {"image_grid_thw": grid_of(case)}
    return one_step(adapted(model, case), block, lambda: inputs_of(case, "meta"), also, tells)


def execute_sharded(config: Row, case: Row) -> Row:
    def build() -> tuple[Any, list[Any]]:
        with torch.device("meta"):
            model = model_of(config, case["kernels"], FORMATS[case["storage"]])
        freeze(model, case["train"])
        if case["checkpointing"]:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": case["reentrant"]})
        text = model.model.language_model
        tied = model.lm_head.weight is text.embed_tokens.weight
        units = [*model.model.visual.blocks, *text.layers, *([] if tied else [text.embed_tokens])]
        return adapted(model, case), units

    grid = grid_of(case)
    peaks = sharded.two_steps(build, lambda: inputs_of(case, "cpu") | {"image_grid_thw": grid}, case, FORMATS)
    if peaks.pop("left") != 0:
        raise SystemExit("a step left something behind")
    return {"peaks": peaks}


def execute_replicated(config: Row, case: Row) -> Row:
    model = model_of(config, case["kernels"], FORMATS[case["storage"]])
    freeze(model, case["train"])
    grid = grid_of(case)
    return replicated_steps(model, lambda: inputs_of(case, "cpu"), case, {"image_grid_thw": grid})


def replicated_steps(model: Any, inputs: Callable[[], Row], case: Row, also: Row) -> Row:
    """Highest levels of the third step of DistributedDataParallel, which has had its buckets cut anew: computed on the CPU."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # buckets do not depend on the number of ranks
    gc.collect()
    gc.disable()
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    peaks: Row = {}
    with storages:
        options = {"gradient_as_bucket_view": case.get("gradient_as_bucket_view", False)}
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **options)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=True)
        for _ in range(3):
            given = {name: torch.zeros_like(tensor) for name, tensor in inputs().items()}
            storages.highest = storages.live
            loss = wrapped(**given, **also).loss
            peaks["forward"] = storages.highest
            storages.highest = storages.live
            loss.backward()
            peaks["backward"] = storages.highest
            del given, loss
            storages.highest = storages.live
            optimizer.step()
            peaks["optimizer"] = storages.highest
            optimizer.zero_grad()
    gc.enable()
    dist.destroy_process_group()
    return {"peaks": {phase: resident + level for phase, level in peaks.items()}}


USUAL: Row = {
    "grid": (24, 36),
    "images": 1,
    "sequences": 1,
    "tokens": 512,
    "kernels": "sdpa",
    "storage": "bf16",
    "train": "all",
    "checkpointing": False,
    "reentrant": False,
}
ONE_DEVICE: list[Row] = [
    {},
    {"train": "projector"},
    {"train": "none"},
    {"kernels": "eager"},
    {"kernels": "eager", "train": "none"},
    {"kernels": "eager", "storage": "fp32"},
    {"checkpointing": True},
    {"checkpointing": True, "train": "projector"},
    {"checkpointing": True, "train": "none"},
    {"checkpointing": True, "kernels": "eager"},
    {"grid": (48, 64), "tokens": 1024},
    {"grid": (48, 64), "tokens": 1024, "checkpointing": True},
    {"grid": (48, 64), "tokens": 1024, "train": "none"},
    {"grid": (20, 26), "images": 2, "sequences": 2},
    {"grid": (20, 26), "images": 2, "sequences": 2, "checkpointing": True},
    {"grid": (20, 26), "images": 2, "sequences": 2, "train": "none", "kernels": "eager"},
    {"grid": (6, 4), "images": 3},
    {"checkpointing": True, "reentrant": True},
    {"checkpointing": True, "reentrant": True, "train": "projector", "kernels": "eager"},
    {"checkpointing": True, "reentrant": True, "train": "none", "grid": (20, 26), "images": 2, "sequences": 2},
]
FSDP2: Row = {"ranks": 4, "storage": "fp32", "compute": "bf16", "reduce": "fp32", "root_reshard": True}
SHARDED: list[Row] = [
    {},
    {"train": "projector"},
    {"train": "none"},
    {"checkpointing": True},
    {"checkpointing": True, "train": "none"},
    {"root_reshard": False, "train": "none", "kernels": "eager"},
    {"storage": "bf16", "reduce": "bf16"},
    {"storage": "bf16", "train": "none", "ranks": 8},
    {"grid": (48, 64), "tokens": 1024, "checkpointing": True, "ranks": 64},
    {"grid": (20, 26), "images": 2, "sequences": 2, "train": "projector", "checkpointing": True},
    {"grid": (48, 64), "tokens": 1024, "train": "none", "ranks": 1},
    {"checkpointing": True, "reentrant": True},
    {"checkpointing": True, "reentrant": True, "train": "none"},
]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MOST = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]  # of Qwen2.5-VL's tower too
LATE = ["o_proj", "up_proj"]  # behind the rotation: the first layer keeps no tables of positions
ADAPTED: list[Row] = [
    {"lora": LATE},
    {"lora": LATE, **FSDP2},
    {"lora": ATTENTION},
    {"lora": ATTENTION, "checkpointing": True},
    {"lora": ATTENTION, "checkpointing": True, "reentrant": True},
    {"lora": ATTENTION, "kernels": "eager", "grid": (20, 26), "images": 2, "sequences": 2},
    {"lora": MOST},
    {"lora": MOST, "checkpointing": True},
    {"lora": "all-linear"},
    {"lora": "all-linear", "checkpointing": True},
    {"lora": "all-linear", "checkpointing": True, "reentrant": True, "kernels": "eager"},
    {"lora": "all-linear", "grid": (20, 26), "images": 2, "sequences": 2},
    {"lora": ATTENTION, **FSDP2},
    {"lora": ATTENTION, **FSDP2, "checkpointing": True},
    {"lora": "all-linear", **FSDP2},
    {"lora": "all-linear", **FSDP2, "checkpointing": True, "ranks": 8},
]
WITH_ADAPTERS = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl, tied", "qwen3_5")
BESIDE_EXPERTS = ("qwen3_vl_moe",)  # peft adapts the experts themselves where targets reach them


def adapted_cases(name: str) -> list[Row]:
    if name in BESIDE_EXPERTS:
        return [case for case in ADAPTED if case["lora"] == ATTENTION]
    return ADAPTED if name in WITH_ADAPTERS else []


FLASH: list[Row] = [
    {"kernels": "flash"},
    {"kernels": "flash", "train": "none", "grid": (20, 26), "images": 2, "sequences": 2},
    {"kernels": "flash", "checkpointing": True},
    {"kernels": "flash", "checkpointing": True, "reentrant": True, "train": "projector"},
]
REPLICATED: list[Row] = [{}, {"train": "none"}, {"train": "projector", "gradient_as_bucket_view": True}]


def replicas_of(case: Row) -> Row:
    if not case.get("ddp"):
        return {}
    views = case.get("gradient_as_bucket_view", False)
    return {"engine": "ddp", "layout": "d2", "optimizer": "adamw", "gradient_as_bucket_view": views}


def job_with_images(config: Row, case: Row) -> Row:
    job = job_of(case["sequences"], case["tokens"], case["checkpointing"])
    patch = config["vision_config"].get("patch_size", 14)
    h, w = (patch * side for side in case["grid"])
    precision = {kind: case.get(kind, case["storage"]) for kind in ("storage", "compute", "reduce")}
    job["trainer"] |= {"kernels": "hf_" + case["kernels"], "precision": precision, "reentrant": case["reentrant"]}
    job["trainer"]["vision"] = {"images": case["images"], "height": h, "width": w, "train": case["train"]}
    job["trainer"] |= adapters_of(case)
    if "ranks" in case:
        job["trainer"] |= {"engine": "fsdp2", "layout": f"d{case['ranks']}", "root_reshard": case["root_reshard"]}
        job["trainer"]["wrap_embedding"] = True
    job["trainer"] |= replicas_of(case)
    return job


def case_of(config: Row, changes: Row) -> Row:
    case = USUAL | {"patch": config["vision_config"].get("patch_size", 14)} | changes
    Features.rows = case["images"] * case["sequences"] * math.prod(case["grid"]) // 4
    return case


ALL_CASES = ("qwen2_5_vl", "qwen3_vl")


def rows_of(name: str, config: Row, by: str) -> Iterator[Row]:
    module = importlib.import_module(f"transformers.models.{config['model_type']}.modeling_{config['model_type']}")
    with standing_in(module, "meta"):
        for changes in [*(ONE_DEVICE if name in ALL_CASES else ONE_DEVICE[::3]), *FLASH]:
            case = case_of(config, changes)
            yield row_of(name, config, case, changes, by) | execute(config, case)
        for changes in adapted_cases(name):
            if "ranks" not in changes:
                case = case_of(config, {**changes, "train": "none"})
                yield row_of(name, config, case, words_of(changes), by) | execute(config, case)
    with standing_in(module, "cpu"):
        for changes in SHARDED if name in ALL_CASES else SHARDED[::3]:
            case = case_of(config, FSDP2 | changes)
            yield row_of(name, config, case, {"fsdp2": case["ranks"], **changes}, by) | execute_sharded(config, case)
        for changes in adapted_cases(name):
            if "ranks" in changes:
                case = case_of(config, {**changes, "train": "none"})
                yield row_of(name, config, case, words_of(changes), by) | execute_sharded(config, case)
        for changes in REPLICATED if name in ALL_CASES else []:
            case = case_of(config, {"ddp": True, "storage": "fp32", "kernels": "eager", "tokens": 64, "grid": (8, 12)} | changes)
            yield row_of(name, config, case, {"ddp": True, **changes}, by) | execute_replicated(config, case)


def words_of(changes: Row) -> Row:
    """What is told of a case with adapters: what FSDP2's cases have in common is not."""
    told = {key: value for key, value in changes.items() if key == "ranks" or FSDP2.get(key) != value}
    targets = changes["lora"] if isinstance(changes["lora"], str) else f"{len(changes['lora'])} names"
    return {**told, "lora": targets}


def row_of(name: str, config: Row, case: Row, changes: Row, by: str) -> Row:
    words = "/".join(f"{key}={value}" for key, value in changes.items()) or "usual"
    return {"id": f"{name}/{words}", "config": name, "job": job_with_images(config, case), "source": by}


def write_rows(
    about: str | None,
    data: str,
    configs: dict[str, Row],
    rows: Callable[[str, Row, str], Iterator[Row]],
    sdpa: Callable[..., Any],
) -> None:
    """Reads the command, puts `sdpa` and what else a GPU would do in place, and writes the rows of every config to tests/data."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(configs))
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / data)
    options = parser.parse_args()
    as_on_cuda()
    torch.nn.functional.scaled_dot_product_attention = sdpa
    flash_stub.stand_in()
    sharded.follow_resizing()
    select_by_mask(Storages)
    select_by_mask(sharded.LivesOfParts)
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed without a device"
    count = 0
    with options.output.open("w", encoding="utf-8") as file:
        for name in options.only:
            file.write(json.dumps({"config": name, "fields": configs[name]}, separators=(",", ":")) + "\n")
            for row in rows(name, configs[name], by):
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
                count += 1
    print(f"{count} rows, {len(options.only)} configs: {options.output}")


if __name__ == "__main__":
    write_rows(__doc__, "executed_vision.jsonl", CONFIGS, rows_of, flash)
