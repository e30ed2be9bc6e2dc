"""Counts what transformers builds from changed configs, as tests/data/mutated_configs.jsonl, and holds oomplan against it.

    python benchmarks/oracle/mutate_configs.py [--rows N] [--seed N] [--output FILE] [--check]

Needs torch and transformers, no GPU, and the built module oomplan. A mutation is a built-in config of few layers with up to four
changes: a key dropped, null, a flag turned over, a size made another, a word of another kind, a field of the class that the config
leaves out, a key of other families, the model_type of another family. Each is built on the meta device by transformers' own class;
a row has the changes and what that module holds: its parameters (tied ones once), of them those that want no gradient, and the
buffers that its checkpoint stores; or that the class refuses it. The shortened configs come first in the file. With --check, rows
are read from FILE and oomplan alone is run; a row where it answers what transformers refuses is marked "answers" when written.

Left out: vocabularies smaller than the config's (token ids are not oomplan's affair), more than 96 layers, whole numbers for
fractions, towers that need packages beyond torch.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models" / "architectures"
OWN_CODE = {"mixtral": {"Grok1ModelForCausalLM"}}  # classes that ship with their checkpoint under another's model_type
NOT_BUILT = {"gemma3n"}  # its tower needs timm

# Keys that some families know and others pass over.
FOREIGN: Row = {
    "attention_bias": [True, False],
    "mlp_bias": [True, False],
    "use_bias": [True, False],
    "bias": [True, False],
    "qkv_bias": [True, False],
    "use_qk_norm": [True, False],
    "qk_layernorm": [True, False],
    "tie_word_embeddings": [True, False],
    "lm_head_bias": [True, False],
    "head_dim": [32, 64, 128],
    "num_key_value_heads": [1, 2, 4, 8],
    "sliding_window": [None, 128, 4096],
    "use_sliding_window": [True, False],
    "max_window_layers": [0, 1, 2],
    "n_shared_experts": [1, 2],
    "num_experts": [4, 8],
    "first_k_dense_replace": [0, 1, 2],
    "partial_rotary_factor": [0.25, 0.5],
    "rope_scaling": [{"type": "linear", "factor": 2.0}],
    "attention_dropout": [0.0, 0.1],
    "output_router_logits": [True, False],
    "use_cache": [True, False],
    "q_lora_rank": [None, 64],
    "num_nextn_predict_layers": [0, 1],
    "n_inner": [None, 512],
}
WORDS = {
    "hidden_act": ["silu", "gelu", "relu", "relu2", "gelu_pytorch_tanh"],
    "hidden_activation": ["silu", "gelu_pytorch_tanh"],
    "activation_function": ["gelu", "gelu_new", "relu"],
}
FIXED = {"model_type", "architectures", "dtype", "torch_dtype", "auto_map", "quantization_config"}
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def classes() -> dict[str, Row]:
    return json.loads((ROOT / "models" / "class_defaults.json").read_text())["classes"]


def shortened(config: Row, layers: int) -> Row:
    """Of few layers: lists with an entry for each layer are cut."""
    out = copy.deepcopy(config)
    for half in [out, out.get("text_config", {})]:
        count = next((half[key] for key in LAYER_KEYS if isinstance(half.get(key), int)), None)
        if count is None:
            continue
        keep = min(layers, count)
        for key, value in half.items():
            if key in LAYER_KEYS:
                half[key] = keep
            elif isinstance(value, list) and len(value) in (count, count + 1, count + 3):
                half[key] = value[: keep + len(value) - count]
            elif key == "hybrid_override_pattern":
                half[key] = value[:keep]
            elif key == "linear_attn_config":
                for name in ("full_attn_layers", "kda_layers"):
                    value[name] = [layer for layer in value[name] if layer <= keep]
    return out


def other_size(value: int, chance: random.Random) -> int:
    return chance.choice([value * 2, max(1, value // 2), value + 1, max(0, value - 1), value + 64, 1, 0, 16, 128, 256])


def other_value(key: str, value: Any, chance: random.Random) -> Any:
    if key in WORDS:
        return chance.choice(WORDS[key])
    if isinstance(value, bool):
        return not value
    if key == "vocab_size":
        return chance.choice([value * 2, value + 64])
    if isinstance(value, int):
        return other_size(value, chance)
    if isinstance(value, float):
        return chance.choice([0.0, 0.5, 1.0, value * 2])
    if isinstance(value, str):
        return chance.choice(["gelu", "none", "default", value + "_x"])
    if isinstance(value, list) and value:
        return chance.choice([value[:-1], [*value, value[-1]], value[::-1], []])
    if isinstance(value, dict):
        return chance.choice([{}, {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}])
    return chance.choice([True, False] if key.startswith(("use_", "is_")) else [1, 2, 64, 128])


def built_types(table: dict[str, Row]) -> list[str]:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    makers = (AutoModelForCausalLM._model_mapping, AutoModelForImageTextToText._model_mapping)
    known = [name for name in table if name in CONFIG_MAPPING and name not in NOT_BUILT]
    return [name for name in known if any(CONFIG_MAPPING[name] in maker for maker in makers)]


def mutate(config: Row, table: dict[str, Row], chance: random.Random) -> list[list[Any]]:
    """Changes as [operation, key, value?]; a key of the text half is "text_config.<key>"."""
    out: list[list[Any]] = []
    half = config.get("text_config")
    for _ in range(chance.choice([1, 1, 1, 2, 3, 4])):
        inner = isinstance(half, dict) and chance.random() < 0.7
        part, prefix = (half, "text_config.") if inner else (config, "")
        known = table.get(part.get("model_type", ""), {}).get("fields", {})
        keys = sorted(key for key in part if key not in FIXED and not isinstance(part[key], dict))
        absent = sorted(key for key in known if key not in part)
        kind = chance.choice(["drop", "drop", "other", "other", "other", "null", "absent", "absent", "absent", "foreign", "type"])
        if kind == "type" and (inner or half is not None or chance.random() < 0.4):
            kind = "other"
        if kind == "absent" and not absent:
            kind = "other"
        if not keys:
            continue
        if kind in ("drop", "other", "null"):
            key = chance.choice(keys)
            value = None if kind == "null" else other_value(key, part[key], chance)
            out.append(["drop", prefix + key] if kind == "drop" else ["set", prefix + key, value])
        elif kind == "absent":
            key = chance.choice(absent)
            out.append(["set", prefix + key, other_value(key, known[key], chance)])
        elif kind == "foreign":
            key = chance.choice(sorted(FOREIGN))
            out.append(["set", prefix + key, chance.choice(FOREIGN[key])])
        else:
            out.append(["set", "model_type", chance.choice(sorted(built_types(table)))])
    return out


def changed(config: Row, changes: list[list[Any]]) -> Row:
    out = copy.deepcopy(config)
    for operation, path, *value in changes:
        *outer, key = path.split(".")
        part = out
        for name in outer:
            part = part[name]
        if operation == "drop":
            part.pop(key, None)
        else:
            part[key] = value[0]
    return out


def layers_of(config: Any) -> int:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(getattr(text, "num_hidden_layers", 0) or 0)


class Refused(Exception):
    pass


def built(fields: Row) -> tuple[Any, Any]:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        config = CONFIG_MAPPING[fields["model_type"]].from_dict(
            {key: value for key, value in copy.deepcopy(fields).items() if key not in ("model_type", "quantization_config")}
        )
        if layers_of(config) > 96:
            raise Refused("more layers than are worth building")
        seeing = getattr(config, "vision_config", None) is not None and type(config) in AutoModelForImageTextToText._model_mapping
        wrapped = "text_config" in fields or seeing or type(config) not in AutoModelForCausalLM._model_mapping
        maker = AutoModelForImageTextToText if wrapped else AutoModelForCausalLM
        with torch.device("meta"):
            model = maker.from_config(config)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    return config, model


def persistent(model: Any) -> dict[str, Any]:
    kept = set(model.state_dict(keep_vars=True))
    return {name: tensor for name, tensor in model.named_buffers() if name in kept}


def held(model: Any) -> Row:
    tensors = dict(model.named_parameters())
    parameters = sum(tensor.numel() for tensor in tensors.values())
    still = sum(tensor.numel() for tensor in tensors.values() if not tensor.requires_grad)
    buffers = sum(tensor.numel() for tensor in persistent(model).values())
    out = {"parameters": parameters}
    if still:
        out["still"] = still
    if buffers:
        out["buffers"] = buffers
    return out


def oomplan_card(fields: Row) -> Row:
    from oomplan import _core

    return json.loads(_core.model_card(json.dumps(fields), "config.json"))


def tensors_of(card: Row) -> Counter[str]:
    out: Counter[str] = Counter()
    for row in card["tensors"]:
        out[re.sub(r"\{[le]\}", "*", row["name"])] += row["total"]
    return out


def difference(fields: Row, row: Row) -> str:
    """ "" where oomplan says the same; otherwise what differs."""
    try:
        card = oomplan_card(fields)
    except Exception as error:
        text = str(error).splitlines()[0]
        return "" if "refused" in row else "oomplan refuses: " + text
    if "refused" in row:
        return "transformers refuses: " + row["refused"]
    counts = card["parameters"]
    mine = counts["total"] + counts["vision_tower"]
    wanted = row["parameters"] + row.get("buffers", 0)
    if mine != wanted:
        return f"counts {mine}, not {wanted} ({mine - wanted:+})"
    if counts["buffers"] != row.get("buffers", 0):
        return f"buffers {counts['buffers']}, not {row.get('buffers', 0)}"
    trained = counts["trained"] + counts["vision_tower"]
    if trained != row["parameters"] - row.get("still", 0):
        return f"trained {trained}, not {row['parameters'] - row.get('still', 0)}"
    return ""


def by_name(fields: Row) -> list[str]:
    """Where the names of both are comparable: elements of the same name that differ."""
    _, model = built(fields)
    theirs: Counter[str] = Counter()
    for name, tensor in [*model.named_parameters(), *persistent(model).items()]:
        theirs[re.sub(r"\.\d+\.", ".*.", re.sub(r"\.\d+\.", ".*.", name))] += tensor.numel()
    mine = tensors_of(oomplan_card(fields))
    out = [f"{name}: {mine[name]}, not {theirs[name]}" for name in mine if name in theirs and mine[name] != theirs[name]]
    out += [f"only transformers: {name} {theirs[name]}" for name in theirs if name not in mine]
    return out + [f"only oomplan: {name} {mine[name]}" for name in mine if name not in theirs]


def bases() -> dict[str, list[Row]]:
    """Built-in configs by model_type, of those that transformers has a class for."""
    from transformers import CONFIG_MAPPING

    out: dict[str, list[Row]] = {}
    for path in sorted(MODELS.glob("*.json")):
        row = json.loads(path.read_text())
        config = row["config"]
        kind = config.get("model_type", "")
        if kind not in CONFIG_MAPPING or kind in NOT_BUILT or (kind == "ministral3" and "text_config" in config):
            continue
        if set(config.get("architectures", [])) & OWN_CODE.get(kind, set()):
            continue
        out.setdefault(kind, []).append(row)
    return out


def rows(count: int, seed: int) -> tuple[dict[str, Row], list[Row]]:
    """The shortened configs by id, and the rows. A row follows from the seed and its place alone."""
    table, known = classes(), bases()
    kinds = sorted(known)
    short: dict[str, Row] = {}
    out: list[Row] = []
    for place in itertools.count():
        if len(out) == count:
            return dict(sorted(short.items())), out
        chance = random.Random(f"{seed}/{place}")
        base = chance.choice(known[kinds[place % len(kinds)]])
        layers = chance.choice([2, 3, 4, 6, 8])
        config = shortened(base["config"], layers)
        changes = mutate(config, table, chance)
        row: Row = {"of": f"{base['id']}@{layers}", "changes": changes}
        try:
            row |= held(built(changed(config, changes))[1])
        except Refused as error:
            text = re.sub(r"\s+", " ", str(error))
            if "more layers" in text:
                continue
            row["refused"] = text[:80]
        short[row["of"]] = config
        out.append(row)
        if len(out) % 100 == 0:
            print(len(out), file=sys.stderr, flush=True)
    raise AssertionError


def check(short: dict[str, Row], all_rows: list[Row]) -> Counter[str]:
    """How many rows end how."""
    kinds: Counter[str] = Counter()
    for index, row in enumerate(all_rows):
        fields = changed(short[row["of"]], row["changes"])
        said = difference(fields, row)
        kind = "equal" if not said else said.split(":")[0].split(" ")[0] + (" refuses" if "refuses" in said else "")
        kinds[kind] += 1
        row.pop("answers", None)
        if kind == "transformers refuses":
            row["answers"] = True
        if said:
            print(index, row["of"], fields["model_type"], json.dumps(row["changes"]), "|", said)
    print(dict(kinds))
    return kinds


def write(path: Path, short: dict[str, Row], all_rows: list[Row], kinds: Counter[str]) -> None:
    ends = {"rows": len(all_rows), "equal": sum("parameters" in row for row in all_rows) - kinds["oomplan refuses"]}
    ends |= {"refused_alone": kinds["oomplan refuses"], "answered_alone": kinds["transformers refuses"]}
    lines = [ends] + [{"id": name, "config": config} for name, config in short.items()] + all_rows
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")


def read(path: Path) -> tuple[dict[str, Row], list[Row]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["id"]: line["config"] for line in lines if "id" in line}, [line for line in lines if "of" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "mutated_configs.jsonl")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--names", type=int, help="compares this row of FILE tensor by tensor")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.names is not None:
        short, all_rows = read(options.output)
        row = all_rows[options.names]
        print("\n".join(by_name(changed(short[row["of"]], row["changes"]))))
        return
    if options.check:
        short, all_rows = read(options.output)
    else:
        import transformers

        transformers.logging.set_verbosity(transformers.logging.FATAL)
        short, all_rows = rows(options.rows, options.seed)
    kinds = check(short, all_rows)
    write(options.output, short, all_rows, kinds)
    sys.exit(1 if kinds["counts"] + kinds["buffers"] + kinds["trained"] else 0)


if __name__ == "__main__":
    main()
