"""Which modules peft adapts, family by family, as tests/data/adapted_modules.jsonl.

    python benchmarks/oracle/count_targets.py [--output FILE] [--only FAMILY...] [--seed N]

Needs torch, transformers and peft, no GPU. Every model of tests/data/counted_families.jsonl is built on the meta device, adapted as
each of many specifications asks, and looked at: names of adapted modules (layers as {l}, with their numbers), of wrapped ones
(modules_to_save), adapted parameters, elements that are trained; or the beginning of what peft objects.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import ModulesToSaveWrapper
from transformers import AutoModelForCausalLM

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
RANK = 4

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SPECS: list[Row] = [
    {},
    {"targets": "all-linear"},
    {"targets": "All-Linear"},
    {"targets": ["q_proj", "v_proj"]},
    {"targets": ATTENTION},
    {"targets": ["gate_proj", "up_proj", "down_proj"]},
    {"targets": ["q_proj", "down_proj"]},
    {"targets": ["up_proj"]},
    {"targets": ["o_proj"]},
    {"targets": ["out_proj"]},
    {"targets": ["dense"]},
    {"targets": ["fc1", "fc2"]},
    {"targets": ["c_proj"]},
    {"targets": ["mlp.c_proj"]},
    {"targets": ["query_key_value", "dense_h_to_4h"]},
    {"targets": ["gate"]},
    {"targets": ["lm_head"]},
    {"targets": ["embed_tokens"]},
    {"targets": ["q_proj", "k_proj", "lm_head", "wte"]},
    {"targets": ["model.layers.1.self_attn.q_proj", "transformer.h.2.mlp.c_fc"]},
    {"targets": ["proj"]},
    {"targets": ["self_attn"]},
    {"targets": r".*\.(q|v)_proj"},
    {"targets": r".*self_attn.*"},
    {"targets": r".*\.\d+\.mlp\..*"},
    {"targets": r"(model|transformer)\.(layers|h)\.[02]\..*(_proj|c_attn)"},
    {"targets": r".*\.(?:[1-3])\..*(?:query_key_value|o_proj|w2)"},
    {"targets": "q_proj"},
    {"targets": "all-linear", "exclude": ["o_proj", "gate", "mlp.up_proj"]},
    {"targets": "all-linear", "exclude": r".*\.(0|2)\..*"},
    {"targets": ["q_proj", "v_proj"], "exclude": ["q_proj", "v_proj"]},
    {"targets": ["q_proj", "v_proj", "query_key_value", "c_attn"], "layers": [1, 3]},
    {"targets": ["q_proj", "in_proj", "down_proj"], "layers": [0]},
    {"targets": ["q_proj", "v_proj", "c_attn"], "layers": [2, 7], "pattern": ["layers", "h"]},
    {"targets": ["q_proj"], "layers": [1], "pattern": ["blocks"]},
    {"targets": "all-linear", "layers": [1]},
    {"targets": ["q_proj", "v_proj", "query_key_value"], "save": ["lm_head"]},
    {"targets": ["q_proj", "v_proj", "query_key_value"], "save": ["embed_tokens", "lm_head"]},
    {"targets": ["q_proj", "c_attn"], "save": ["norm", "wte"]},
    {"targets": "all-linear", "save": ["lm_head"]},
    {"kind": "ia3"},
    {"kind": "vera"},
    {"kind": "vera", "targets": ["q_proj", "v_proj"], "layers": [1]},
    {"kind": "ia3", "targets": ["k_proj", "down_proj"], "feed": ["down_proj"]},
]


def peft_config(spec: Row) -> Any:
    given: Row = {"task_type": "CAUSAL_LM", "target_modules": spec.get("targets")}
    for ours, theirs in (("exclude", "exclude_modules"), ("save", "modules_to_save"), ("feed", "feedforward_modules")):
        if ours in spec:
            given[theirs] = spec[ours]
    for ours, theirs in (("layers", "layers_to_transform"), ("pattern", "layers_pattern")):
        if ours in spec:
            given[theirs] = spec[ours]
    kind = spec.get("kind", "lora")
    if kind == "ia3":
        return peft.IA3Config(**given)
    if kind == "vera":
        return peft.VeraConfig(**given, r=RANK)
    return peft.LoraConfig(**given, r=RANK)


def built(config: Row) -> Any:
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(made)


def place_of(name: str) -> tuple[str, int]:
    """The name with its layer's number taken out: the first one that is not the last word."""
    found = re.match(r"^(.*?\.(?:layers|h|blocks)\.)(\d+)(\..*)$", name)
    return (f"{found[1]}{{l}}{found[3]}", int(found[2])) if found else (name, -1)


def by_layer(names: list[str]) -> Row:
    out: dict[str, list[int]] = {}
    for name in names:
        place, layer = place_of(name)
        out.setdefault(place, []).append(layer)
    return {place: sorted(layers) for place, layers in sorted(out.items())}


def inner(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer", "")


def looked_at(model: Any) -> Row:
    adapted, saved, folded = [], [], []
    for name, module in model.named_modules():
        if isinstance(module, ModulesToSaveWrapper):
            saved.append(inner(name))
        elif type(module).__name__ == "ParamWrapper":
            folded.append(f"{inner(name)}.{module.parameter_name}")
        elif isinstance(module, BaseTunerLayer):
            adapted.append(inner(name))
    trained = [p.numel() for p in model.parameters() if p.requires_grad]
    out: Row = {"adapted": by_layer(adapted), "trained": sum(trained)}
    if saved:
        out["saved"] = by_layer(saved)
    if folded:
        out["folded"] = by_layer(folded)
    return out


def answer(config: Row, spec: Row) -> Row:
    try:
        model = built(config)
        with torch.device("meta"):
            return looked_at(peft.get_peft_model(model, peft_config(spec)))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:56]}


def own_specs(config: Row, rng: random.Random) -> list[Row]:
    """Each matrix of the model by its last word, and random lists and expressions of its own names."""
    names = [n for n, module in built(config).named_modules() if list(module.parameters(recurse=False))]
    words = sorted({n.rsplit(".", 1)[-1] for n in names})
    pairs = sorted({".".join(n.rsplit(".", 2)[-2:]) for n in names if n.count(".") > 1})
    out: list[Row] = [{"targets": [word]} for word in words if not word.isdigit()]
    for _ in range(3):
        out.append({"targets": sorted(rng.sample(words + pairs, min(3, len(words))))})
    some = rng.sample(words, min(2, len(words)))
    out.append({"targets": rf".*\.[0-{rng.randint(0, 2)}]\.[a-z_]+\.({'|'.join(some)})"})
    out.append({"targets": "all-linear", "exclude": sorted(rng.sample(pairs, min(3, len(pairs))))})
    out.append({"targets": sorted(rng.sample(words, min(4, len(words)))), "layers": sorted(rng.sample(range(4), 2))})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=DATA / "adapted_modules.jsonl")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    by = f"peft {peft.__version__}, transformers {transformers.__version__}, meta device"
    rng = random.Random(options.seed)
    with options.output.open("w", encoding="utf-8") as out:
        for line in (DATA / "counted_families.jsonl").read_text(encoding="utf-8").splitlines():
            counted = json.loads(line)
            family, config = counted["family"], counted["config"]
            if options.only and family not in options.only:
                continue
            try:
                specs = SPECS + own_specs(config, rng)
            except Exception as error:
                print(f"{family}: {type(error).__name__} {str(error)[:100]}", file=sys.stderr)
                continue
            for spec in specs:
                row = {"family": family, "spec": spec, **answer(config, spec)}
                out.write(json.dumps(row, separators=(",", ":")) + "\n")
            out.flush()
            gc.collect()
            print(f"{family}: {len(specs)}", file=sys.stderr, flush=True)
    print(by, file=sys.stderr)


if __name__ == "__main__":
    main()
