"""Which ranks of which models the servers' own classes are asked for, and the rows that become of them: execute_servers.py,
execute_sglang.py.

Models are the built-in ones of which a folder has config.json, with the keys that it lacks and the engines read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
LONGEST = 8192
FAST_MROPE = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}
# keys of config.json by model_type, beside the sizes of the built-in row
MORE: dict[str, Row] = {
    "mistral": {"sliding_window": None},
    "mistral3": {"sliding_window": None, "tie_word_embeddings": False},
    "qwen2_vl": {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    "qwen2_5_vl": {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    "qwen3_vl": {"rope_scaling": FAST_MROPE},
    "qwen3_vl_moe": {"rope_scaling": FAST_MROPE},
    "minimax_m2": {"rotary_dim": 64, "scoring_func": "sigmoid"},
    "dots1": {"moe_layer_freq": 1},
    "nemotron_h": {"mamba_ssm_cache_dtype": "float32"},
    "kimi_linear": {"architectures": ["KimiLinearForCausalLM"], "rope_theta": 10000.0, "head_dim": 72},
    "qwen3_5": {"mamba_ssm_dtype": "float32"},
    "qwen3_5_moe": {"mamba_ssm_dtype": "float32"},
}


def compressed(form: str, weights: Row, inputs: Row | None = None) -> Row:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    ignore = ["lm_head", "re:.*mlp.gate$"]
    out = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    return {**out, "ignore": ignore, "config_groups": {"group_0": group}}


def numbers(bits: int, kind: str, strategy: str, group: int | None = None, dynamic: bool = False) -> Row:
    out = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy, "group_size": group}
    return {**out, "dynamic": dynamic, "actorder": None, "block_structure": None}


FORMATS: dict[str, Row] = {
    "fp8 in blocks": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "fp8 by rows": compressed("float-quantized", numbers(8, "float", "channel"), numbers(8, "float", "token", dynamic=True)),
    "int8": compressed("int-quantized", numbers(8, "int", "channel"), numbers(8, "int", "token", dynamic=True)),
    "int4": compressed("pack-quantized", numbers(4, "int", "group", 128)),
}
QUANTISED = ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1", "zai-org/GLM-4.5-Air"]
# of every class one, on stages of a pipeline
TEXT_ALONE = {"google/gemma-4-E4B": "Gemma4ForCausalLM"}  # class of vLLM
STAGED = [
    "Qwen/Qwen3-VL-4B-Instruct",
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen3-0.6B",
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V2-Lite",
    "ai21labs/AI21-Jamba-Mini-1.5",
    "allenai/OLMo-7B-hf",
    "allenai/OLMo-2-1124-7B",
    "allenai/OLMoE-1B-7B-0125",
    "baidu/ERNIE-4.5-21B-A3B-PT",
    "bigcode/starcoder2-3b",
    "bigscience/bloom-7b1",
    "CohereLabs/aya-23-8B",
    "EleutherAI/pythia-6.9b",
    "facebook/opt-6.7b",
    "google/gemma-2b",
    "google/gemma-2-2b",
    "ibm-granite/granite-3.3-8b-instruct",
    "ibm-granite/granite-3.1-1b-a400m-instruct",
    "ibm-granite/granite-4.0-h-small",
    "inclusionAI/Ling-mini-2.0",
    "internlm/internlm2-7b",
    "microsoft/phi-2",
    "microsoft/phi-4",
    "microsoft/Phi-3.5-MoE-instruct",
    "MiniMaxAI/MiniMax-M2",
    "mistralai/Mistral-7B-v0.1",
    "mistralai/Mixtral-8x7B-v0.1",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    "moonshotai/Moonlight-16B-A3B",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "openai/gpt-oss-20b",
    "openai-community/gpt2-large",
    "Qwen/Qwen1.5-MoE-A2.7B",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3-VL-8B-Instruct",
    "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3.5-35B-A3B",
    "rednote-hilab/dots.llm1.inst",
    "stabilityai/stablelm-2-zephyr-1_6b",
    "state-spaces/mamba-2.8b-hf",
    "tencent/Hunyuan-7B-Instruct",
    "tencent/Hunyuan-A13B-Instruct",
    "tiiuae/falcon-7b-instruct",
    "XiaomiMiMo/MiMo-7B-Base",
    "zai-org/GLM-4-9B-0414",
    "zai-org/GLM-4.5-Air",
    "zai-org/GLM-4.7-Flash",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "google/gemma-4-E4B",
    "google/gemma-3n-E4B-it",
    "ByteDance-Seed/Seed-OSS-36B-Instruct",
    "THUDM/glm-4-9b-chat",
]


def text_of(config: Row) -> Row:
    text: Row = config.get("text_config", config)
    return text


def overlaid(below: Row, above: Row) -> Row:
    out = dict(below)
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = overlaid(out[key], value) if nested else value
    return out


def complete(published: Row, sizes: Row) -> Row:
    """The published config.json with the built-in sizes, in 16 bits."""
    out = overlaid({k: v for k, v in published.items() if not k.startswith("_") and k != "auto_map"}, sizes)
    if out.get("model_type") == "gemma3" and "text_config" not in out:
        out |= {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    text = text_of(out)
    text.update({k: v for k, v in MORE.get(out.get("model_type", ""), {}).items() if k not in text})
    for part in (out, text):
        part.pop("quantization_config", None)
        if "gemma" in part.get("model_type", ""):
            part["hidden_activation"] = part["hidden_act"] = "gelu_pytorch_tanh"
        if "tie_word_embeddings" in text or "tie_word_embeddings" in out:
            part["tie_word_embeddings"] = out.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    text.pop("time_step_limit", None)
    if out.get("model_type") == "qwen3_vl":
        text.setdefault("architectures", ["Qwen3ForCausalLM"])  # vLLM 0.19.1 asks for them beside a pipeline
    return out


def longest(config: Row) -> int:
    text = text_of(config)
    stated = [text[k] for k in ("max_position_embeddings", "n_positions", "seq_length") if text.get(k)]
    return min([LONGEST, *stated]) if stated else LONGEST // 4


def cases(configs: Path, only: str, degrees: list[int]) -> list[Row]:
    out = []
    for file in sorted((ROOT / "models/architectures").glob("*.json")):
        built_in = json.loads(file.read_text())
        known = configs / (built_in["id"].replace("/", "__") + ".json")
        if only not in built_in["id"] or not known.exists():
            continue
        model, config = built_in["id"], complete(json.loads(known.read_text()), built_in["config"])
        for tensor in degrees:
            plain = {"model": model, "config": config, "tensor": tensor, "max_model_len": longest(config)}
            out.append({**plain, "id": f"{model} tp={tensor}"})
            if model in TEXT_ALONE and tensor == 2:
                text = config["text_config"] | {"architectures": [TEXT_ALONE[model]]}
                out.append({**plain, "model": f"{model}:text", "config": text, "id": f"{model}:text tp={tensor}"})
            if model in STAGED and tensor == 2:
                out += [
                    {**plain, "id": f"{model} tp=2 pp={pp} stage={i}", "pipeline": pp, "stage": i}
                    for pp, i in ((2, 0), (2, 1), (3, 1))  # the first, the last and one between
                ]
            for name, form in FORMATS.items() if model in QUANTISED else ():
                of = {"quantization": form, "config": {**config, "quantization_config": form}}
                out.append({**plain, **of, "id": f"{model} {name} tp={tensor}"})
    return out


def asked_for(description: str, output: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path, help="a folder of published config.json files, named owner__name.json")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--tensor", default="1,2,4,8")
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data" / output)
    return parser.parse_args()


def write(asked: argparse.Namespace, cases: list[Row], head: Row, execute: Callable[[Row], Row], marks: dict[str, str]) -> None:
    """One line for each case that the engine takes. `marks`: findings by id, which the test expects to be missed."""
    keys = ("model", "tensor", "pipeline", "stage", "expert", "attention_data", "quantization", "options", "gpu")
    with asked.output.open("w") as out:
        for case in cases:
            try:
                row = execute(case)
            except Exception as error:  # the engines' own refusals are of many types
                print(f"{case['id']}: {type(error).__name__}: {str(error)[:160]}", file=sys.stderr)
                continue
            known = {k: case[k] for k in keys if k in case}
            mark = {"open": marks[case["id"]]} if case["id"] in marks else {}
            out.write(json.dumps({"id": case["id"], **head, **known, **row, **mark}) + "\n")
            out.flush()
