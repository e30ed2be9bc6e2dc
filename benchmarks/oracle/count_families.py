"""Counts what transformers' own classes hold, family by family, as tests/data/counted_families.jsonl.

    python benchmarks/oracle/count_families.py [--output FILE]

Needs torch and transformers, no GPU. Every decoder that oomplan reads is built on the meta device with the defaults of its
configuration class and four layers; a row has the config as transformers saves it (the names of version 5: layer_types,
mlp_layer_types, per_layer_config, rope_parameters) and the elements of all stored tensors, tied ones once.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]

# What the defaults of a class leave out or contradict.
OWN: dict[str, Row] = {
    "nemotron": {"num_key_value_heads": 8},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
    "dots1": {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "qwen2_moe": {"layer_types": ["full_attention"] * 4},
}
LAYERS = 4
NOT_OF_THE_MODEL = {
    "transformers_version",
    "architectures",
    "torch_dtype",
    "dtype",
    "initializer_range",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "id2label",
    "label2id",
    "problem_type",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "_name_or_path",
}
FAMILIES = [
    "afmoe",
    "apertus",
    "arcee",
    "bloom",
    "cohere",
    "cohere2",
    "cwm",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
    "falcon",
    "falcon_mamba",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hyperclovax",
    "jais2",
    "jamba",
    "lfm2",
    "lfm2_moe",
    "llama",
    "llama4_text",
    "mamba",
    "mamba2",
    "mellum",
    "mimo_v2_flash",
    "minicpm3",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl_text",
    "ministral3",
    "mistral",
    "mixtral",
    "mpt",
    "nemotron",
    "nemotron_h",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "solar_open",
    "stablelm",
    "starcoder2",
    "vaultgemma",
    "youtu",
]


def small(family: str) -> Any:
    """A config of a few layers where its class takes that; lists of the class's own follow from the number."""
    for layers in ({"num_hidden_layers": LAYERS}, {}):
        try:
            return CONFIG_MAPPING[family](**{**layers, **OWN.get(family, {})})
        except Exception as error:
            last = error
    raise last


def elements(model: torch.nn.Module) -> int:
    """Of all parameters, and of the buffers that its checkpoint stores."""
    stored = model.state_dict(keep_vars=True)
    kept = [tensor for name, tensor in model.named_buffers() if name in stored]
    return sum(tensor.numel() for tensor in [*model.parameters(), *kept])


def row_of(family: str) -> Row:
    config = small(family)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    saved = json.loads(config.to_json_string(use_diff=False))
    fields = {key: value for key, value in saved.items() if key not in NOT_OF_THE_MODEL and value is not None}
    return {"family": family, "config": fields | {"model_type": family}, "elements": elements(model)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "counted_families.jsonl")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    by = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, meta device"
    lines = []
    for family in FAMILIES:
        try:
            lines.append(row_of(family) | {"source": by})
        except Exception as error:
            raise SystemExit(f"{family}: {type(error).__name__} {error}") from error
    options.output.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} families")


if __name__ == "__main__":
    main()
