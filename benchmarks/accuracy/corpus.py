"""Rows of measured and executed runs: which schema a row has, and where its model's config.json is.

A row is mapped to Cases: native jobs (as dicts) for oomplan, with the figure that somebody else measured. No memory arithmetic
here: what a case costs is computed by the library.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
GIB = 2**30


class CannotExpress(Exception):
    """Why a row has no job: a reason that is counted."""


def reason_of(error: ValueError) -> str:
    """The library's own reason, short enough to be counted."""
    problems = getattr(error, "problems", None)
    text = problems[0].why or str(problems[0]) if problems else str(error)
    text = " ".join(str(text).split())
    return (text.rsplit(": ", maxsplit=1)[-1] if text.startswith("found ") else text)[:160]


def not_yet(what: str) -> CannotExpress:
    return CannotExpress(f"{what} is not supported yet")


@dataclass
class Case:
    """One measured figure and the job that predicts it. With `why_not` there is no job."""

    id: str
    metric: str
    measured: int
    kind: str = ""  # training, operator, serving, parameters, whole, snapshot
    job: Row = field(default_factory=dict)
    config: str = ""  # text of a config.json; empty: the model is looked up by name; of a snapshot its file and device
    figure: str = ""  # key of the answer
    why_not: str = ""


def schema_of(row: Row) -> str:
    """The name of the schema, "" when it is none of ours."""
    if "peaks_by_phase" in row:
        return "oracle_megatron" if "impl" in row and "tp" in row else "oracle"
    if "metric_kind" in row:
        return "measured_training"
    if isinstance(row.get("measured"), dict) and "engine" in row:
        return "measured_inference"
    if "numbers_bytes" in row and "raw_message" in row:
        return "oom_incidents"
    if "peak_reserved" in row and "segment_events" in row:
        return "snapshot"
    if "device_peak_bytes" in row and isinstance(row.get("knobs"), dict):
        return "measured_rl"
    if "file" in row and any(key in row for key in ("computed", "official_totals", "totals")):
        return "models"
    return ""


def rows_of(path: Path) -> Iterator[Row]:
    """Lines that are no JSON objects become rows without a schema."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                row = {}
            row.setdefault("id", f"{path.name}:{number}")
            yield row


# ---- configs


def plain(name: str) -> str:
    """A model's name without owner, quantisation and release suffixes: what two names of one architecture share."""
    name = name.split("/")[-1].lower()
    name = re.sub(r"[-_.](quantized|fp8|awq|gptq|nvfp4|w4a16|w8a8|int4|int8|bnb|4bit|dynamic|gguf).*$", "", name)
    return re.sub(r"^meta-", "", name)


@cache
def index(folder: Path) -> dict[str, Path]:
    """plain name -> file, of the configs in a folder."""
    return {plain(path.stem.replace("--", "/").replace("__", "/")): path for path in sorted(folder.glob("*.json"))}


def folders(corpus: Path) -> list[Path]:
    beside = [corpus.parent / "model_configs", corpus.parent, corpus.parent.parent / "model_configs"]
    return [folder for folder in [*beside, ROOT / "models" / "architectures"] if folder.is_dir()]


@cache
def same_shape() -> dict[str, str]:
    """Ids whose config is that of another built-in model."""
    table = json.loads((ROOT / "models" / "aliases.json").read_text(encoding="utf-8"))
    return dict(table["same_shape"])


@cache
def stored_formats() -> Row:
    """Formats of checkpoints that were converted."""
    return dict(json.loads((ROOT / "models" / "stored_formats.json").read_text(encoding="utf-8")))


def config_in(path: Path) -> Row:
    value = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(value, dict) and isinstance(value.get("config"), dict):  # a row of the built-in catalog
        value = value["config"]
    if not isinstance(value, dict):
        raise CannotExpress("the model's config.json is no object")
    return {key: item for key, item in value.items() if not key.startswith("_")}


def find_config(model: Any, corpus: Path) -> Row:
    """By the exact file name beside the corpus or in the catalog, by the id of the same shape, then by the plain name."""
    if not isinstance(model, str) or not model.strip():
        raise CannotExpress("the model is not named")
    name = model.strip()
    for folder in folders(corpus):
        for spelling in (name.replace("/", "__"), name.replace("/", "--")):
            try:
                if (folder / f"{spelling}.json").is_file():
                    return config_in(folder / f"{spelling}.json")
            except OSError:
                continue
    if name in same_shape():
        shape, _, stored = same_shape()[name].partition(":")
        config = find_config(shape, corpus)
        return config | {"quantization_config": stored_formats()[stored]["quantization_config"]} if stored else config
    wanted = plain(name)
    bare = re.sub(r"[-_](instruct|chat|it|hf)(?=[-_]|$)", "", wanted)
    for candidate in (wanted, bare, f"{wanted}-instruct"):
        for folder in folders(corpus):
            if candidate in index(folder):
                return config_in(index(folder)[candidate])
    for folder in folders(corpus):  # "gemma-4-26b" for "gemma-4-26B-A4B", when there is one only
        longer = [path for key, path in index(folder).items() if key.startswith(f"{bare}-")]
        if len(longer) == 1:
            return config_in(longer[0])
    raise CannotExpress("the model's config.json is not known")


# Sizes that a row may state of a model like Llama, and models that are.
SIZES = {"layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "tied", "qk_norm", "swiglu", "gated"}
LLAMAS = re.compile(r"(meta-llama/|mistralai/)?(meta-)?(llama|mistral)", re.IGNORECASE)


def config_from_arch(arch: Any, model: Any) -> Row:
    """A Llama-shaped config from the sizes that a row states. Whether blocks have gates is stated, or known by the model's name."""
    if not isinstance(arch, dict) or any(
        not isinstance(arch.get(key), int) for key in ("layers", "hidden", "ffn", "heads", "vocab")
    ):
        raise CannotExpress("the model's config.json is not known")
    if any(arch.get(key) for key in ("experts", "n_experts", "moe", "num_experts")):
        raise CannotExpress("the model's config.json is not known")
    for key, value in arch.items():
        if value is not None and key not in SIZES:
            raise CannotExpress(f"the field arch.{key} of a row is not mapped")
    gated = arch.get("gated", arch.get("swiglu"))
    if gated is None and not LLAMAS.match(str(model)):
        raise CannotExpress("whether the model's feed-forward blocks have gates is not stated")
    if gated not in (None, True):
        raise CannotExpress("the model is not one of Llama's kin")
    heads = arch["heads"]
    return {
        "model_type": "qwen3" if arch.get("qk_norm") else "llama",
        "num_hidden_layers": arch["layers"],
        "hidden_size": arch["hidden"],
        "intermediate_size": arch["ffn"],
        "num_attention_heads": heads,
        "num_key_value_heads": arch.get("kv_heads") or heads,
        "head_dim": arch.get("head_dim") or arch["hidden"] // heads,
        "vocab_size": arch["vocab"],
        "tie_word_embeddings": bool(arch.get("tied")),
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
    }


LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def cut(config: Row, layers: Any) -> Row:
    """The first `layers` layers of the model: counts, lists with one entry a layer, lists of layer numbers."""
    if not isinstance(layers, int):
        return config
    out = copy.deepcopy(config)
    text = out["text_config"] if isinstance(out.get("text_config"), dict) else out
    full = next((text[key] for key in LAYER_KEYS if isinstance(text.get(key), int)), None)
    for key in LAYER_KEYS:
        if key in text:
            text[key] = layers
    for key, value in text.items():
        if isinstance(value, list) and full is not None and len(value) == full:
            text[key] = value[:layers]
    if isinstance(text.get("mlp_only_layers"), list):
        text["mlp_only_layers"] = [i for i in text["mlp_only_layers"] if i < layers]
    if isinstance(text.get("max_window_layers"), int):
        text["max_window_layers"] = min(text["max_window_layers"], layers)
    return out


# ---- GPUs


@cache
def gpu_table() -> list[Row]:
    table = json.loads((ROOT / "models" / "gpus.json").read_text(encoding="utf-8"))
    return list(table["gpus"] if isinstance(table, dict) else table)


def find_gpu(text: Any) -> str:
    """The table's name of a card that a row describes in its own words."""
    if not isinstance(text, str) or not text.strip() or "class" in text:
        raise CannotExpress("the GPU is not named")
    words = re.sub(r"[^a-z0-9]+", " ", text.lower())
    squeezed = words.replace(" ", "")
    best, length = "", 0
    for gpu in gpu_table():
        for alias in [gpu["name"], *gpu.get("aliases", [])]:
            short = re.sub(r"[^a-z0-9]+", "", alias.lower())
            if short in squeezed and len(short) > length:
                best, length = gpu["name"], len(short)
    if not best:
        raise CannotExpress("the GPU is not in the table")
    size = re.search(r"(\d+)\s*g", words)
    for gpu in gpu_table():  # "A100 40GB": the same card of the size that is written
        if size and gpu["name"].startswith(best.split("-")[0] + "-") and gpu["name"].endswith(f"-{size.group(1)}GB"):
            return str(gpu["name"])
    return best
