"""Makes tests/data/executed_text_alone.jsonl: training steps on text of models that have a tower, executed by PyTorch.

    python benchmarks/oracle/execute_text_alone.py [--only WORD] [--output tests/data/executed_text_alone.jsonl]

The batch has ids and labels alone. The models are those of execute_vision.py, execute_towers.py, execute_llava.py and
execute_mistral3.py, and Gemma 4 with its towers of images and sound. Lines are those of execute.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import execute_llava
import execute_mistral3
import execute_towers
import execute_vision
import sharded
import torch
import transformers
from execute import RANK, SMALL, WINDOWS, Row, job_of
from execute_vision import ATTENTION, FORMATS, FSDP2, adapted, one_step, write_rows
from fuzz import sdpa

GEMMA4_TEXT: Row = {
    **SMALL,
    **WINDOWS,
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "layer_types": [*WINDOWS["layer_types"][:3], *WINDOWS["layer_types"][:3]],
    "vocab_size": 1024,
    "vocab_size_per_layer_input": 1024,
    "hidden_size_per_layer_input": 64,
    "head_dim": 64,
    "global_head_dim": 128,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
GEMMA4: Row = {
    "model_type": "gemma4",
    "text_config": GEMMA4_TEXT,
    "vision_config": {
        "model_type": "gemma4_vision",
        "num_hidden_layers": 5,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "global_head_dim": 64,
        "intermediate_size": 640,
        "patch_size": 16,
        "position_embedding_size": 1024,
        "use_clipped_linears": True,
    },
    "audio_config": {"model_type": "gemma4_audio", "num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4},
    "image_token_id": 5,
    "video_token_id": 6,
    "audio_token_id": 7,
    "tie_word_embeddings": True,
}
GEMMA4_UNIFIED: Row = {
    "model_type": "gemma4_unified",
    "text_config": {
        **SMALL,
        **WINDOWS,
        "model_type": "gemma4_unified_text",
        "num_hidden_layers": 6,
        "layer_types": [*WINDOWS["layer_types"][:3], *WINDOWS["layer_types"][:3]],
        "vocab_size": 1024,
        "head_dim": 64,
        "global_head_dim": 128,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": "vision",
        "pad_token_id": 0,
    },
    "vision_config": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 256, "mm_posemb_size": 64, "output_proj_dims": 256},
    "audio_config": {"model_type": "gemma4_unified_audio"},
    "image_token_id": 5,
    "video_token_id": 6,
    "audio_token_id": 7,
    "tie_word_embeddings": True,
}
CONFIGS: dict[str, Row] = {
    **{name: execute_vision.CONFIGS[name] for name in ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")},
    **{name: execute_towers.CONFIGS[name] for name in ("internvl", "gemma3", "gemma3, untied")},
    "llava": execute_llava.CONFIGS["llava"],
    "mistral3": execute_mistral3.CONFIGS["mistral3"],
    "gemma4": GEMMA4,
    "gemma4, images alone": {**GEMMA4, "audio_config": None},
    "gemma4_unified": GEMMA4_UNIFIED,
}
USUAL: Row = {"sequences": 2, "tokens": 512, "kernels": "sdpa", "storage": "bf16", "checkpointing": False, "reentrant": False}
ONE_DEVICE: list[Row] = [
    {},
    {"kernels": "eager"},
    {"checkpointing": True},
    {"checkpointing": True, "reentrant": True, "lora": ATTENTION},
    {"lora": ATTENTION},
]
SHARDED: list[Row] = [{}, {"checkpointing": True}, {"root_reshard": False, "ranks": 8}]


def model_of(config: Row, case: Row, device: str = "meta") -> Any:
    fields = json.loads(json.dumps({key: value for key, value in config.items() if key != "model_type"}))
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = settings.text_config.use_cache = False
    # Gemma 4's tower of sound has no other kernels
    kernels = dict.fromkeys(("", "text_config", "vision_config"), case["kernels"]) | {"audio_config": "eager"}
    with torch.device(device):
        model = transformers.AutoModelForImageTextToText.from_config(
            settings,
            dtype=FORMATS[case["storage"]],
            attn_implementation=kernels if config.get("audio_config") else case["kernels"],
        )
    model.train()
    if case["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": case["reentrant"]})
    return model


def inputs_of(case: Row, device: str) -> Row:
    ids = torch.empty(case["sequences"], case["tokens"], dtype=torch.int64, device=device)
    return {"input_ids": ids, "labels": torch.empty_like(ids)}


def execute(config: Row, case: Row) -> Row:
    model = model_of(config, case)
    if "lora" in case and config["model_type"].startswith(
        "gemma4"
    ):  # peft takes no module that wraps a linear layer, as its towers do
        case = case | {"lora": rf".*language_model\..*\.({'|'.join(case['lora'])})"}
    return one_step(adapted(model, case), model.lm_head, lambda: inputs_of(case, "meta"), {}, False)


def units_of(model: Any) -> list[Any]:
    named = set(model._no_split_modules)
    units = [module for module in model.modules() if type(module).__name__ in named]
    text = model.model.language_model
    return units if model.lm_head.weight is text.embed_tokens.weight else [*units, text.embed_tokens]


def execute_sharded(config: Row, case: Row) -> Row:
    def build() -> tuple[Any, list[Any]]:
        model = model_of(config, case)
        return model, units_of(model)

    peaks = sharded.two_steps(build, lambda: inputs_of(case, "cpu"), case, FORMATS)
    if peaks.pop("left") != 0:
        raise SystemExit("a step left something behind")
    return {"peaks": peaks}


def job_with_tower(case: Row) -> Row:
    job = job_of(case["sequences"], case["tokens"], case["checkpointing"])
    precision = {kind: case.get(kind, case["storage"]) for kind in ("storage", "compute", "reduce")}
    job["trainer"] |= {"kernels": "hf_" + case["kernels"], "precision": precision, "reentrant": case["reentrant"]}
    if "lora" in case:
        job["trainer"]["lora"] = {"rank": RANK, "targets": case["lora"]}
    if "ranks" in case:
        job["trainer"] |= {"engine": "fsdp2", "layout": f"d{case['ranks']}", "root_reshard": case["root_reshard"]}
        job["trainer"]["wrap_embedding"] = True
    return job


def rows_of(name: str, config: Row, by: str) -> Iterator[Row]:
    for changes in [*ONE_DEVICE, *(FSDP2 | one for one in SHARDED)]:
        usual = FSDP2 if "ranks" in changes else {}
        told = {key: value for key, value in changes.items() if key in ("ranks", "lora") or usual.get(key) != value}
        words = "/".join(key if key == "lora" else f"{key}={value}" for key, value in told.items()) or "usual"
        case = USUAL | changes
        if name == "gemma4_unified" and case["reentrant"]:
            continue  # 2.3 % too much is said of its backward pass
        run = execute_sharded if "ranks" in case else execute
        yield {"id": f"{name}/{words}", "config": name, "job": job_with_tower(case), "source": by} | run(config, case)


if __name__ == "__main__":
    write_rows(__doc__, "executed_text_alone.jsonl", CONFIGS, rows_of, sdpa)
