"""Writes models/class_defaults.json: what every field of transformers' configuration classes is where a config leaves it out.

    python benchmarks/oracle/class_defaults.py [--older PYTHON] [--output FILE]

Needs transformers, no GPU and no torch. PYTHON is an interpreter with an earlier transformers: where one of its defaults is
another, the file says so under "older". A class is a row: its fields, those of them that take null though their default is not
null, other names that the class takes for a field, and whether it refuses a hidden size that is no multiple of the heads, whether
a text half that ties its embeddings ties the whole or is tied by itself alone, and whether a config without one has its fields
beside the others. A part of a config with a class of its own is a row named "<model_type>.<key>"; where the part may name another
model_type, the row says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]

MODEL_TYPES = """
afmoe apertus arcee bloom cohere cohere2 cwm dbrx deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 dots1 ernie4_5 ernie4_5_moe
exaone4 exaone_moe falcon falcon_mamba flex_olmo gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text glm glm4
glm4_moe glm4_moe_lite glm_moe_dsa gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granitemoe granitemoehybrid granitemoeshared
helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internvl jais2 jamba kimi_k25 lfm2 lfm2_moe llama llama4
llama4_text llava mamba mamba2 mellum mimo_v2_flash minicpm3 minimax minimax_m2 minimax_m3_vl minimax_m3_vl_text ministral3 mistral
mistral3 mistral4 mixtral mpt nemotron nemotron_h olmo olmo2 olmo3 olmoe opt phi phi3 phimoe qwen2 qwen2_5_vl qwen2_5_vl_text
qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next
qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text seed_oss smollm3 solar_open stablelm starcoder2 step3p5
vaultgemma youtu internlm3 kimi_linear clip_vision_model pixtral siglip_vision_model
"""
# Nothing of the model's shape or of what it keeps.
NOT_OF_THE_MODEL = {
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
    "output_hidden_states",
    "return_dict",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "id2label",
    "label2id",
    "problem_type",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "initializer_range",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
}


def plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(one) for key, one in value.items())
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and abs(value) < 1e300)


def raw_fields(config: Any) -> dict[str, tuple[Any, bool]]:
    """Default of each field, and whether the class takes None for it."""
    if dataclasses.is_dataclass(config):
        out = {}
        for field in dataclasses.fields(config):
            if field.default_factory is not dataclasses.MISSING:
                out[field.name] = (field.default_factory(), "None" in str(field.type))
            elif field.default is not dataclasses.MISSING:
                out[field.name] = (field.default, "None" in str(field.type))
        return out
    signature = inspect.signature(config.__init__)
    return {
        name: (parameter.default, True)
        for name, parameter in signature.parameters.items()
        if name != "self" and parameter.default is not inspect.Parameter.empty
    }


def whole_heads(config: Any) -> bool:
    """Is a hidden size refused that is no multiple of the heads, though the size of a head is stated?"""
    try:
        config(hidden_size=192, num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    except Exception:
        return False
    try:
        config(hidden_size=194, num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    except Exception:
        return True
    return False


def parts(config: Any) -> dict[str, tuple[str, Any, Row]]:
    """Parts with a class of their own: its model_type where the part may name another, the class, what stands for no part."""
    out: dict[str, tuple[str, Any, Row]] = {}
    for key, spec in (getattr(config, "sub_configs_defaults", None) or {}).items():
        if spec.optional or (spec.config_class.__name__ == "AutoConfig" and spec.model_type not in CONFIG_MAPPING):
            continue
        if spec.config_class.__name__ != "AutoConfig":
            out[key] = ("", spec.config_class, {})
        else:
            stands = {name: value for name, value in spec.init_kwargs.items() if plain(value)}
            out[key] = (spec.model_type, CONFIG_MAPPING[spec.model_type], stands | {"model_type": spec.model_type})
    return out


TIED_INSIDE = {"llama4"}  # the text half is a model with a head of its own, which alone says whether it is tied


def flat_text(config: Any) -> bool:
    """Are the fields of the text half read beside the others?"""
    try:
        return bool(config(hidden_size=4321).text_config.hidden_size == 4321)
    except Exception:
        return False


def tie_of_text(config: Any) -> bool:
    """Does the text half's tie_word_embeddings decide where the whole states none?"""
    try:
        return bool(config(text_config={"tie_word_embeddings": True}, tie_word_embeddings=False).tie_word_embeddings)
    except Exception:
        return False


def row_of(config: Any) -> Row:
    raw = {name: pair for name, pair in raw_fields(config).items() if name not in NOT_OF_THE_MODEL}
    for name, (_, _, stands) in parts(config).items():
        raw[name] = (stands, False)
    fields = {name: value for name, (value, _) in raw.items() if plain(value)}
    row: Row = {"fields": dict(sorted(fields.items()))}
    nullable = sorted(name for name, (value, takes) in raw.items() if takes and value is not None and name in fields)
    names = getattr(config, "attribute_map", None) or {}
    aliases = {alias: name for alias, name in names.items() if alias not in fields}
    aliases |= {name: alias for alias, name in names.items() if alias in fields and name not in fields}
    if nullable:
        row["nullable"] = nullable
    if aliases:
        row["aliases"] = dict(sorted(aliases.items()))
    if whole_heads(config):
        row["whole_heads"] = True
    if "text_config" in fields and tie_of_text(config):
        row["tie_of_text"] = True
    if config.model_type in TIED_INSIDE:
        row["tied_inside"] = True
    if "text_config" in fields and flat_text(config):
        row["flat_text"] = True
    return row


def rows() -> dict[str, Row]:
    out: dict[str, Row] = {}
    for model_type in MODEL_TYPES.split():
        if model_type not in CONFIG_MAPPING:
            continue
        config = CONFIG_MAPPING[model_type]
        out[model_type] = row_of(config)
        for key, (may_be, part, _) in parts(config).items():
            out[f"{model_type}.{key}"] = row_of(part) | ({"may_be_another": True} if may_be else {})
    return out


def older_defaults(now: dict[str, Row], then: Row) -> Row:
    """Of the fields that both versions name, those whose default was another."""
    out: Row = {}
    for name, row in then["classes"].items():
        before, after = row["fields"], now.get(name, {"fields": {}})["fields"]
        other = {key: value for key, value in before.items() if key in after and after[key] != value}
        other = {key: value for key, value in other.items() if after[key] != {} and not key.startswith("rope")}
        if other:
            out[name] = other
    return {"transformers": then["transformers"], "fields": out}


def text_of(table: Row) -> str:
    def line(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    head = [f' "{key}": {line(value)},' for key, value in table.items() if key != "classes"]
    classes = [f'  "{name}": {line(row)}' for name, row in sorted(table["classes"].items())]
    return "\n".join(["{", *head, ' "classes": {', ",\n".join(classes), " }", "}"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--older", help="an interpreter with an earlier transformers")
    parser.add_argument("--print", action="store_true", help="print the rows alone, as JSON")
    parser.add_argument("--output", type=Path, default=ROOT / "models" / "class_defaults.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    table: Row = {"transformers": transformers.__version__, "classes": rows()}
    if options.print:
        print(json.dumps(table))
        return
    if options.older:
        command = [options.older, str(Path(__file__).resolve()), "--print"]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        table["older"] = older_defaults(table["classes"], json.loads(said.splitlines()[-1]))
    options.output.write_text(text_of(table), encoding="utf-8")
    print(f"{len(table['classes'])} classes of transformers {transformers.__version__}", file=sys.stderr)


if __name__ == "__main__":
    main()
