"""peft's adapters for fuzz.py: LoRA with its switches, DoRA, VeRA and IA3 beside modules that are drawn."""

from __future__ import annotations

import random
from typing import Any

import torch
from execute import Row
from execute_vectors import share
from fuzz_models import flag, some

FEED_FORWARD = ("down_proj", "fc2")
TARGETS = (
    *("all-linear", "all-linear", "q_proj v_proj", "q_proj k_proj v_proj o_proj"),
    *("gate_proj up_proj down_proj", "q_proj down_proj", "k_proj", "o_proj"),
)


def draw(rng: random.Random, case: Row) -> Row:
    """Of one device: adapters with every switch."""
    if case["head"] == "value" or rng.random() < 0.7:
        return {"lora": None}
    kind = some(rng, "lora", "lora", "lora", "lora", "dora", "vera", "ia3")
    out: Row = {"kind": kind, "rank": some(rng, 1, 5, 8, 16), "dropout": some(rng, 0.0, 0.0, 0.1), "verl": flag(rng)}
    out |= {"targets": some(rng, *TARGETS), "format": some(rng, "fp32", "storage")}
    if kind in ("vera", "ia3"):
        out |= {"targets": some(rng, "q_proj v_proj", "k_proj v_proj down_proj", "q_proj down_proj"), "format": "fp32"}
    if kind == "ia3":
        out |= {"rank": 1, "dropout": 0.0}
    others = {"dtype": "bf16"} if kind != "lora" else {}
    return {"lora": out} | others | ({"optimizer": "adamw"} if case["optimizer"] == "muon" else {})


def words_of(lora: Row) -> Any:
    return "all-linear" if lora["targets"] == "all-linear" else lora["targets"].split()


def settings_of(lora: Row) -> Row:
    out = {"rank": lora["rank"], "targets": lora["targets"].split(), "dropout": lora["dropout"], "format": lora["format"]}
    kind = lora.get("kind", "lora")
    if kind == "dora":
        out["dora"] = True
    elif kind != "lora":
        out["kind"] = kind
    return out


def peft_config(lora: Row) -> Any:
    import peft

    kind, words = lora.get("kind", "lora"), words_of(lora)
    if kind == "vera":
        return peft.VeraConfig(
            task_type="CAUSAL_LM", r=lora["rank"], target_modules=words, vera_dropout=lora["dropout"], save_projection=True
        )
    if kind == "ia3":
        inner = [word for word in words if word in FEED_FORWARD]
        return peft.IA3Config(task_type="CAUSAL_LM", target_modules=words, feedforward_modules=inner)
    return peft.LoraConfig(
        task_type="CAUSAL_LM", r=lora["rank"], target_modules=words, lora_dropout=lora["dropout"], use_dora=kind == "dora"
    )


def made_fp32(model: Any, kind: str) -> None:
    """peft casts what it makes to fp32, but not on the meta device."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if f"{kind}_" in name:
            tensor.data = torch.empty_like(tensor, dtype=torch.float32, device="meta")
    for module in model.modules():
        for vector in getattr(module, "lora_magnitude_vector", None) or {}:
            layer = module.lora_magnitude_vector[vector]
            layer.weight = torch.nn.Parameter(torch.empty_like(layer.weight, dtype=torch.float32))


def adapted(model: Any, lora: Row, dtype: torch.dtype) -> Any:
    import peft

    if lora["verl"]:
        model.enable_input_require_grads()
    kind = lora.get("kind", "lora")
    with torch.device("meta"):
        model = peft.get_peft_model(model, peft_config(lora))
    if kind != "lora":
        made_fp32(model, "lora" if kind == "dora" else kind)
    if kind == "vera":
        share(model)
    if lora["format"] == "storage":
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)
    return model
