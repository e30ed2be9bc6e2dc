"""Makes tests/data/executed_towers.jsonl: training steps of models whose tower sees images of one size, executed by PyTorch.

    python benchmarks/oracle/execute_towers.py [--only WORD] [--output tests/data/executed_towers.jsonl]

As execute_vision.py, whose cases these are. FSDP2: fully_shard around what the models' _no_split_modules name, and the model.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import sharded
import torch
import transformers
import transformers.masking_utils
from execute import SMALL, WINDOWS, Row, job_of
from execute_vision import (
    ADAPTED,
    BLOCK,
    FLASH,
    FORMATS,
    FSDP2,
    REPLICATED,
    USUAL,
    adapted,
    adapters_of,
    one_step,
    replicas_of,
    replicated_steps,
    words_of,
    write_rows,
)
from fuzz import sdpa

SIGLIP: Row = {
    "model_type": "siglip_vision_model",
    "num_hidden_layers": 5,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 640,
    "patch_size": 14,
    "image_size": 448,
    "vision_use_head": False,
    "hidden_act": "gelu_pytorch_tanh",
}
INTERN: Row = {
    "model_type": "internvl_vision",
    "num_hidden_layers": 5,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 640,
    "patch_size": [14, 14],
    "image_size": [224, 224],
    "attention_bias": True,
}
CONFIGS: dict[str, Row] = {
    "internvl": {
        "model_type": "internvl",
        "text_config": {**SMALL, "vocab_size": 1024, "model_type": "qwen2"},
        "vision_config": INTERN,
        "image_token_id": 5,
        "tie_word_embeddings": False,
    },
    "internvl, qwen3": {
        "model_type": "internvl",
        "text_config": {**SMALL, "vocab_size": 1024, "head_dim": 64, "model_type": "qwen3"},
        "vision_config": {**INTERN, "num_hidden_layers": 6, "image_size": [448, 448]},
        "image_token_id": 5,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "model_type": "gemma3",
        "text_config": {**SMALL, **WINDOWS, "vocab_size": 1024, "head_dim": 64, "model_type": "gemma3_text"},
        "vision_config": SIGLIP,
        "mm_tokens_per_image": 64,
        "image_token_index": 5,
        "boi_token_index": 7,
        "eoi_token_index": 8,
        "tie_word_embeddings": True,
    },
    "gemma3, untied": {
        "model_type": "gemma3",
        "text_config": {
            **SMALL,
            **WINDOWS,
            "vocab_size": 1024,
            "head_dim": 64,
            "model_type": "gemma3_text",
            "tie_word_embeddings": False,
        },
        "vision_config": {**SIGLIP, "image_size": 224},
        "mm_tokens_per_image": 16,
        "image_token_index": 5,
        "boi_token_index": 7,
        "eoi_token_index": 8,
        "tie_word_embeddings": False,
    },
}


def side_of(config: Row) -> int:
    side = config["vision_config"]["image_size"]
    return side[0] if isinstance(side, list) else side


def blocks_of(model: Any) -> Any:
    encoder = model.model.vision_tower.encoder
    return encoder.layers if hasattr(encoder, "layers") else encoder.layer


def model_of(config: Row, case: Row, device: str = "meta") -> Any:
    fields = json.loads(json.dumps({key: value for key, value in config.items() if key != "model_type"}))
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = settings.text_config.use_cache = False
    with torch.device(device):
        dtype = FORMATS[case["storage"]]
        kernels = "flash_attention_2" if case["kernels"] == "flash" else case["kernels"]
        model = transformers.AutoModelForImageTextToText.from_config(settings, dtype=dtype, attn_implementation=kernels)
    model.train()
    for name, parameter in model.model.named_parameters():
        projects = "projector" in name
        if projects or "vision_tower" in name:
            parameter.requires_grad_(case["train"] == "all" or (case["train"] == "projector" and projects))
    if case["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": case["reentrant"]})
    return model


def inputs_of(config: Row, case: Row, device: str) -> Row:
    side = side_of(config)
    images = case["images"] * case["sequences"]
    ids = torch.empty(case["sequences"], case["tokens"], dtype=torch.int64, device=device)
    pixels = torch.empty(images, 3, side, side, dtype=torch.float32, device=device)
    kinds = {"token_type_ids": torch.empty_like(ids)} if config["model_type"] == "gemma3" else {}
    return {"input_ids": ids, "labels": torch.empty_like(ids), "pixel_values": pixels, **kinds}


def execute(config: Row, case: Row) -> Row:
    model = model_of(config, case)
    block = blocks_of(model)[BLOCK]
    tells = not case["checkpointing"] and case["train"] == "all"
    return one_step(adapted(model, case), block, lambda: inputs_of(config, case, "meta"), {}, tells)


def execute_sharded(config: Row, case: Row) -> Row:
    def build() -> tuple[Any, list[Any]]:
        model = model_of(config, case)
        text, tower = model.model.language_model, model.model.vision_tower
        tied = model.lm_head.weight is text.embed_tokens.weight
        front = [tower.embeddings] if config["model_type"] == "gemma3" else []
        units = [*front, *blocks_of(model), *text.layers, *([] if tied else [text.embed_tokens])]
        return adapted(model, case), units

    peaks = sharded.two_steps(build, lambda: inputs_of(config, case, "cpu"), case, FORMATS)
    if peaks.pop("left") != 0:
        raise SystemExit("a step left something behind")
    return {"peaks": peaks}


def execute_replicated(config: Row, case: Row) -> Row:
    return replicated_steps(model_of(config, case, "cpu"), lambda: inputs_of(config, case, "cpu"), case, {})


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
    {"images": 2, "sequences": 2},
    {"images": 2, "sequences": 2, "checkpointing": True},
    {"images": 2, "sequences": 2, "train": "none", "kernels": "eager"},
    {"images": 3},
    {"images": 3, "train": "projector"},
    {"checkpointing": True, "reentrant": True},
    {"checkpointing": True, "reentrant": True, "train": "projector", "kernels": "eager"},
    {"checkpointing": True, "reentrant": True, "train": "none", "images": 2, "sequences": 2},
]
SHARDED: list[Row] = [
    {},
    {"train": "projector"},
    {"train": "none"},
    {"checkpointing": True},
    {"checkpointing": True, "train": "none"},
    {"root_reshard": False, "train": "none", "kernels": "eager"},
    {"storage": "bf16", "reduce": "bf16"},
    {"storage": "bf16", "train": "none", "ranks": 8},
    {"images": 2, "sequences": 2, "train": "projector", "checkpointing": True},
    {"checkpointing": True, "reentrant": True},
]
FEW = slice(None, None, 3)
ALL_CASES = ("gemma3", "internvl")


def job_with_images(config: Row, case: Row) -> Row:
    job = job_of(case["sequences"], case["tokens"], case["checkpointing"])
    side = side_of(config)
    precision = {kind: case.get(kind, case["storage"]) for kind in ("storage", "compute", "reduce")}
    job["trainer"] |= {"kernels": "hf_" + case["kernels"], "precision": precision, "reentrant": case["reentrant"]}
    job["trainer"]["vision"] = {"images": case["images"], "height": side, "width": side, "train": case["train"]}
    job["trainer"] |= adapters_of(case) | replicas_of(case)
    if "ranks" in case:
        job["trainer"] |= {"engine": "fsdp2", "layout": f"d{case['ranks']}", "root_reshard": case["root_reshard"]}
        job["trainer"]["wrap_embedding"] = True
    return job


def cases_of(name: str) -> Iterator[tuple[str, Row]]:
    """What is told of a case, and the case."""
    first = name in ALL_CASES
    for changes in [
        *(ONE_DEVICE if first else ONE_DEVICE[FEW]),
        *FLASH,
        *(FSDP2 | one for one in (SHARDED if first else SHARDED[FEW])),
    ]:
        usual = FSDP2 if "ranks" in changes else {}
        told = {key: value for key, value in changes.items() if key == "ranks" or usual.get(key) != value}
        yield "/".join(f"{key}={value}" for key, value in told.items()) or "usual", USUAL | changes
    for changes in REPLICATED if first else []:
        told = "/".join(f"{key}={value}" for key, value in {"ddp": True, **changes}.items())
        yield told, USUAL | {"ddp": True, "storage": "fp32", "kernels": "eager", "images": 2, "tokens": 160} | changes
    for changes in ADAPTED if first else []:
        yield "/".join(f"{key}={value}" for key, value in words_of(changes).items()), USUAL | changes | {"train": "none"}


def rows_of(name: str, config: Row, by: str) -> Iterator[Row]:
    for words, case in cases_of(name):
        run = execute_sharded if "ranks" in case else execute_replicated if case.get("ddp") else execute
        yield {"id": f"{name}/{words}", "config": name, "job": job_with_images(config, case), "source": by} | run(config, case)


def main() -> None:
    for family in ("gemma3", "internvl"):
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        module.torch_compilable_check = lambda *_, **__: None  # counts the images' tokens
    write_rows(__doc__, "executed_towers.jsonl", CONFIGS, rows_of, sdpa)


if __name__ == "__main__":
    main()
