"""config.json files as publishers have them, cut to a few layers of every kind: for execute_families.py and fuzz.py."""

from __future__ import annotations

import json
from pathlib import Path

from execute import Row
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

# what lists an entry for each layer
BY_LAYER = (
    "layer_types",
    "mlp_layer_types",
    "layers_block_type",
    "no_rope_layers",
    "moe_layers",
    "indexer_types",
    "block_types",
    "hybrid_layer_pattern",
    "moe_layer_freq",
    "intermediate_size",
    "activation_sparsity_pattern",
)
# not the model's, or written so that its class does not take them
FOREIGN = (
    "auto_map",
    "time_step_limit",
    "quantization_config",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "_name_or_path",
)


def text_of(config: Row) -> Row:
    """The language model's own config."""
    text = config.get("text_config")
    if isinstance(text, dict) and text.get("model_type") in (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "mistral4"):
        return dict(text)
    return dict(config)


def depth_of(config: Row) -> int:
    """Layers that it takes to have every kind of layer."""
    layers = int(config.get("num_hidden_layers") or config.get("n_layer") or config.get("n_layers") or 1000)
    needed = 4
    for key in BY_LAYER:
        given = config.get(key)
        if isinstance(given, list) and given:
            needed = max([needed, *(given.index(kind) + 1 for kind in set(map(str, given)) if kind in given)])
    pattern = config.get("hybrid_override_pattern") or ""
    needed = max([needed, *(pattern.index(kind) + 1 for kind in set(pattern))])
    if config.get("num_kv_shared_layers"):  # as many again, which share; Gemma 3n: every fifth layer is full
        needed = 2 * max(needed, 5)
    dense = [
        config.get(key) for key in ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "attn_layer_offset")
    ]
    needed = max([needed, *(n + 1 for n in dense if isinstance(n, int))])
    return min(layers, needed)


def cut(config: Row) -> Row:
    depth = depth_of(config)
    out = {key: value for key, value in config.items() if key not in FOREIGN and not key.startswith("_")}
    out[next((key for key in ("num_hidden_layers", "n_layer", "n_layers") if key in out), "num_hidden_layers")] = depth
    for key in BY_LAYER:
        if isinstance(out.get(key), list):
            out[key] = out[key][:depth]
    if out.get("num_kv_shared_layers"):
        out["num_kv_shared_layers"] = depth // 2
    if "mlp_only_layers" in out and isinstance(out["mlp_only_layers"], list):
        out["mlp_only_layers"] = [layer for layer in out["mlp_only_layers"] if layer < depth]
    if isinstance(out.get("hybrid_override_pattern"), str):
        out["hybrid_override_pattern"] = out["hybrid_override_pattern"][:depth]
    if isinstance(out.get("num_nextn_predict_layers"), int):
        out["num_nextn_predict_layers"] = 0
    return out


def published(folder: Path) -> list[tuple[str, Row]]:
    out = []
    for path in sorted(folder.rglob("*.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(config, dict):
            out.append((path.stem.replace("__", "/"), text_of(config)))
    return out


def by_family(folder: Path) -> dict[str, list[Row]]:
    """Language models of the families that transformers knows."""
    out: dict[str, list[Row]] = {}
    for _, config in published(folder):
        family = str(config.get("model_type"))
        if (
            family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            and family in CONFIG_MAPPING
            and not {"vision_config", "text_config"} & {*config}
        ):
            out.setdefault(family, []).append(config)
    return out
