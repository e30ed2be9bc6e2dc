"""Drafts of other checkpoints for execute_drafts.py: published sizes of EAGLE and EAGLE-3 heads, and sizes made up where the name says
so."""

from __future__ import annotations

import json
from typing import Any

from server_cases import LONGEST, ROOT

Row = dict[str, Any]
BASE: Row = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "rms_norm_eps": 1e-5, "num_hidden_layers": 1}
BASE |= {"hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
ATTENTION: Row = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
LLAMA: Row = {**BASE, **ATTENTION, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 2048}
EAGLE3: Row = {**LLAMA, "draft_vocab_size": 32000}
QWEN: Row = {**BASE, **ATTENTION, "intermediate_size": 12288, "vocab_size": 151936, "draft_vocab_size": 32000}
QWEN |= {"max_position_embeddings": 2048, "head_dim": 128}
GPT_OSS: Row = {**BASE, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64}
GPT_OSS |= {"intermediate_size": 17280, "vocab_size": 201088, "draft_vocab_size": 32000, "max_position_embeddings": 131072}
LARGE: Row = {**EAGLE3, "hidden_size": 6144, "target_hidden_size": 8192, "num_attention_heads": 48, "intermediate_size": 16384}
# name, model, method, config.json
DRAFTS: tuple[tuple[str, str, str, Row], ...] = (
    ("EAGLE3-LLaMA3.1-Instruct-8B", "meta-llama/Llama-3.1-8B", "eagle3", EAGLE3),
    ("EAGLE-LLaMA3-Instruct-8B", "meta-llama/Llama-3.1-8B", "eagle", {**LLAMA, "architectures": ["LlamaForCausalLM"]}),
    ("Qwen3-8B_eagle3", "Qwen/Qwen3-8B", "eagle3", QWEN),
    ("gpt-oss-20b (made up)", "openai/gpt-oss-20b", "eagle3", GPT_OSS),
    ("EAGLE-3 of 6144 for 8192 (made up)", "meta-llama/Llama-3.3-70B-Instruct", "eagle3", LARGE),
    ("EAGLE-3 of two layers (made up)", "meta-llama/Llama-3.1-8B", "eagle3", {**EAGLE3, "num_hidden_layers": 2}),
    ("EAGLE-3 with 16 kv heads (made up)", "meta-llama/Llama-3.1-8B", "eagle3", {**EAGLE3, "num_key_value_heads": 16}),
    (
        "EAGLE-3 of the last states (made up)",
        "Qwen/Qwen3-8B",
        "eagle3",
        {**QWEN, "eagle_config": {"use_aux_hidden_state": False}},
    ),
    ("EAGLE-3 with a norm in front (made up)", "Qwen/Qwen3-8B", "eagle3", {**QWEN, "norm_before_fc": True}),
)


def built_in(model: str) -> Row:
    for file in sorted((ROOT / "models/architectures").glob("*.json")):
        row: Row = json.loads(file.read_text())
        if row["id"] == model:
            return {k: v for k, v in row["config"].items() if k != "quantization_config"}
    raise KeyError(model)


def cases(classes: Row, degrees: list[int]) -> list[Row]:
    """`classes`: keys of the model's config.json that the built-in sizes lack, by model_type."""
    out = []
    for name, model, method, config in DRAFTS:
        sizes = built_in(model)
        target = {**sizes, **classes[sizes["model_type"]]}
        draft = {"method": method, "tokens": 3, "config": config}
        plain = {"model": model, "config": target, "draft": draft, "max_model_len": LONGEST}
        for tensor in degrees:
            out.append({**plain, "id": f"{model} with {name} tp={tensor}", "tensor": tensor})
    return out
