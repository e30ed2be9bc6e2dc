"""peft's adapters for fuzz.py: LoRA with its switches, DoRA, VeRA and IA3 beside modules that are drawn.

LoRA's targets are lists of usual words, of which a model has some or none, or (`own`) of the model's own names, expressions, single
layers, exclusions, embedding and output layer, which are chosen once the model is there: `seed` says how.
"""

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
    *("own", "own", "own", "own", "own", "default"),
)


def draw(rng: random.Random, case: Row) -> Row:
    """Of one device: adapters with every switch."""
    if case["head"] == "value" or rng.random() < 0.7:
        return {"lora": None}
    kind = some(rng, "lora", "lora", "lora", "lora", "dora", "vera", "ia3")
    out: Row = {"kind": kind, "rank": some(rng, 1, 5, 8, 16), "dropout": some(rng, 0.0, 0.0, 0.1), "verl": flag(rng)}
    out |= {"targets": some(rng, *TARGETS), "format": some(rng, "fp32", "storage"), "seed": rng.randrange(10**6)}
    if out["targets"] == "own" and kind == "dora":
        out["targets"] = "q_proj v_proj"
    if kind in ("vera", "ia3"):
        out |= {"targets": some(rng, "q_proj v_proj", "k_proj v_proj down_proj", "q_proj down_proj"), "format": "fp32"}
    if kind == "ia3":
        out |= {"rank": 1, "dropout": 0.0}
    others = {"dtype": "bf16"} if kind != "lora" else {}
    return {"lora": out} | others | ({"optimizer": "adamw"} if case["optimizer"] == "muon" else {})


def words_of(lora: Row) -> Any:
    if lora["targets"] in ("all-linear", "default"):
        return None if lora["targets"] == "default" else "all-linear"
    return lora["targets"].split()


def own_names(config: Row, lora: Row) -> Row:
    """A specification in the model's own names: what LoraConfig gets, and what a job says."""
    import transformers
    from transformers.pytorch_utils import Conv1D

    rng = random.Random(lora["seed"])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    kinds = (torch.nn.Linear, Conv1D)
    names = [name for name, module in model.named_modules() if isinstance(module, kinds) and name != "lm_head"]
    words = sorted({name.rsplit(".", 1)[-1] for name in names})
    table = next(name for name, module in model.named_modules() if module is model.get_input_embeddings()).rsplit(".", 1)[-1]
    some_words = sorted(rng.sample(words, min(len(words), rng.choice((1, 2, 3)))))
    layers = sorted(rng.sample(range(4), rng.choice((1, 2))))
    form = rng.choice(("list", "layers", "expression", "exclude", "head", "table", "save", "save_both", "full"))
    out: Row = {"target_modules": some_words}
    if form == "layers":
        out["layers_to_transform"] = layers
    elif form == "expression":
        out["target_modules"] = rf".*\.[{layers[0]}-9]\..*\.({'|'.join(some_words)})"
    elif form == "exclude":
        out = {"target_modules": "all-linear", "exclude_modules": some_words[:1]}
    elif form == "head":
        out["target_modules"] = [*some_words, "lm_head"]
    elif form == "table":
        out["target_modules"] = [*some_words, table]
    elif form in ("save", "save_both"):
        out["modules_to_save"] = ["lm_head"] if form == "save" else ["lm_head", table]
    elif form == "full":
        out["target_modules"] = sorted(rng.sample(names, min(3, len(names))))
    return out


JOB_WORDS = {
    "target_modules": "targets",
    "exclude_modules": "exclude",
    "layers_to_transform": "layers",
    "modules_to_save": "modules_to_save",
}


def settings_of(lora: Row) -> Row:
    out = {"rank": lora["rank"], "dropout": lora["dropout"], "format": lora["format"]}
    if "spec" in lora:
        out |= {JOB_WORDS[key]: value for key, value in lora["spec"].items()}
    else:
        out["targets"] = lora["targets"] if lora["targets"] in ("all-linear", "default") else lora["targets"].split()
    if lora.get("joint"):
        out["own_units"] = False
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
    spec = lora.get("spec") or {"target_modules": words}
    return peft.LoraConfig(task_type="CAUSAL_LM", r=lora["rank"], lora_dropout=lora["dropout"], use_dora=kind == "dora", **spec)


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
