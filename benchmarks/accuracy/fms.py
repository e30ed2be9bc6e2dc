"""Rows of foundation-model-stack/fms-acceleration (scripts/benchmarks): which of its plugins a run had, and whose releases.

Read at November 2025: sample-configurations, plugins/fused-ops-and-kernels, plugins/accelerated-peft.
"""

from __future__ import annotations

import re
from typing import Any

from corpus import Row

HEADS = {"foak fast ce kernel": "foak_ce", "liger fused linear ce": "liger_fused_ce"}
# scripts/benchmarks/refs*/requirements*.txt: a release for each file of results
TRANSFORMERS = {
    "a100_80gb": "4.48.1",
    "a100_80gb_liger": "4.45.2",
    "a100_80gb_granite": "4.45.2",
    "a100_80gb_pf": "4.44.2",
    "a100_80gb_moe": "4.52.4",
}
# Models whose config.json is not at hand. PowerLM: sizes of arXiv:2408.13359, table 4, and the tokenizer's 49152 words; the numbers that
# follow, 3,510,819,072, are the files of ibm/PowerLM-3b (4.87, 4.93 and 4.25 GB in fp32). Its head is tied: 6 bytes of each number are
# the 19.6 GiB that full training leaves.
CONFIGS: dict[str, Row] = {
    "ibm/PowerLM-3b": {
        "model_type": "granite",
        "num_hidden_layers": 40,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_attention_heads": 36,
        "num_key_value_heads": 36,
        "vocab_size": 49152,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
    },
    # bigcode/gpt_bigcode-santacoder, config.json
    "bigcode/gpt_bigcode-santacoder": {
        "model_type": "gpt_bigcode",
        "n_layer": 24,
        "n_embd": 2048,
        "n_head": 16,
        "n_inner": 8192,
        "n_positions": 2048,
        "vocab_size": 49280,
        "multi_query": True,
        "activation_function": "gelu_pytorch_tanh",
    },
}
# tokenizer_config.json: model_max_length, which tuning/sft_trainer.py of fms-hf-tuning takes where it is less
LONGEST = {"bigcode/gpt_bigcode-santacoder": 2048}


def is_fms(row: Row) -> bool:
    return row.get("group") == "fms-acceleration"


def plugin(row: Row) -> str:
    """The name of the sample configuration: accelerated-peft-bnb-foak-liger."""
    found = re.match(r"framework_config=([\w-]+)", str(row.get("notes") or ""))
    return found.group(1) if found else ""


def head(row: Row) -> str | None:
    return HEADS.get(re.sub(r"\s*\(.*", "", str(row.get("loss_kernel") or "").lower()).strip())


def quantised(row: Row) -> bool:
    return bool((row.get("lora") or {}).get("quant"))


def fused_adapters(row: Row) -> bool:
    """Configurations for a quantised base fuse its adapters; without such a base the rule is left out."""
    return "foak" in plugin(row) and quantised(row)


def kernels(row: Row) -> Row:
    """The loss, and the operators. Some configurations misspell fast_rms_layernorm, which was on unless told otherwise."""
    if "foak" not in plugin(row):
        return {}
    out: Row = {"head": head(row), "foak": ["rope", "rms_norm"] + (["lora"] if fused_adapters(row) else [])}
    return out | ({"liger_version": "0.3.0"} if "liger" in plugin(row) else {})  # its copy of Liger's fused loss is of 2024


def base(row: Row, quant: str) -> Row:
    """Its plugins prepare a base themselves, and cast nothing: what is not packed stays in 16 bits. The baseline's is prepared by TRL
    (trl/trainer/sft_trainer.py, 0.12), which leaves a base alone that FSDP will bring to the GPU."""
    if "gptq" in quant.lower():
        return {"base": "gptq", "base_bits": 4, "base_group": 128}
    prepared = {"prepare_kbit": True, "casts_heads": True} if "baseline-peft" in plugin(row) and not sharded(row) else {}
    return {"base": "nf4", "base_double_quant": True, "base_compute": "bf16", "bitsandbytes": "0.43.3", **prepared}


def sharded(row: Row) -> bool:
    return bool((row.get("parallelism") or {}).get("fsdp"))


def precision(row: Row) -> tuple[Row, bool] | None:
    """Under FSDP the base stays in 16 bits, and so do its fused adapters in fp32, whole on every rank. Adapters of a base that is not
    quantised are cast as they are gathered, which autocast would do to them as well."""
    policy = str(row.get("dtype_policy") or "").lower()
    found = re.search(r"trainer (bf16|fp16) flag; quantised/frozen base", policy)
    if not found:
        return None
    return {key: found.group(1) for key in ("storage", "compute", "reduce")}, True


def checkpoints(row: Row) -> Row:
    """The Trainer of its releases checkpoints the call of a layer, which is FSDP's unit."""
    return {"checkpoint_units": True} if sharded(row) and row.get("lora") else {}


def releases(row: Row) -> Row:
    return {"transformers": TRANSFORMERS.get(str(row["id"]).split("/")[1], "newest")}


def length(row: Row) -> int:
    return min(int(row["seq_len"]), LONGEST.get(str(row.get("model")), int(row["seq_len"])))


def model(name: Any) -> Any:
    """A GPTQ checkpoint has the sizes of what was quantised."""
    return re.sub(r"^[^/]*/(.*)-GPTQ$", r"\1", name) if isinstance(name, str) else name
