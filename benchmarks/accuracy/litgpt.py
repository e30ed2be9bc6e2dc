"""Measured rows of LitGPT as native jobs: its fine-tuning scripts and the files of its config hub."""

from __future__ import annotations

import json
from pathlib import Path

from corpus import CannotExpress, Row, config_from_arch, find_config, find_gpu, not_yet

# A norm that multiplies by its weight in front of the cast, and Gemma 2, came with 0.4.6 (Lightning-AI/litgpt #1545); the config hub
# measured these models after it and the others before.
SINCE_0_4_6 = ("gemma2", "gemma-2-", "llama-3.1", "llama-3.2")
NAMES = {
    "tiny-llama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "phi-3": "microsoft/Phi-3-mini-4k-instruct",
    "llama 2 7 b": "meta-llama/Llama-2-7b-hf",
    "gemma2-2b": "google/gemma-2-2b",
    "gemma2b": "google/gemma-2-2b",
    "gemma2-9b": "google/gemma-2-9b",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "mistral-7b-v0.2": "mistralai/Mistral-7B-Instruct-v0.2",
    "falcon-7b": "tiiuae/falcon-7b-instruct",
}
# stabilityai/stablelm-base-alpha-3b, config.json
STABLELM_ALPHA: Row = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 16,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_attention_heads": 32,
    "vocab_size": 50688,
    "rotary_pct": 0.25,
    "use_parallel_residual": True,
    "tie_word_embeddings": False,
    "hidden_act": "gelu",
    "max_position_embeddings": 4096,
}
# LitGPT's switches by the names of transformers' modules
TARGETS = {
    "query": ["q_proj"],
    "key": ["k_proj"],
    "value": ["v_proj"],
    "projection": ["o_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
    "head": ["lm_head"],
}
SHORT = {"q": "query", "k": "key", "v": "value"}
# Fabric's FSDPPrecision reduces in the format of bf16-true too (lightning/fabric/plugins/precision/fsdp.py)
HALF = {"storage": "bf16", "compute": "bf16", "reduce": "bf16"}
PREFIX = 10  # Config.adapter_prompt_length (litgpt/adapter.py)
DROPOUT = 0.05  # of the files of the hub and of the scripts; the rate itself changes no size


def said(row: Row, key: str) -> str:
    return str(row.get(key) or "").lower()


def refuse(row: Row) -> None:
    if "below its own static states" in said(row, "notes"):
        raise CannotExpress("less than the parameters and states themselves: the settings are not those that are stated")
    if not said(row, "dtype_policy").startswith(("bf16-true", "bf16-mixed")):
        raise not_yet("a precision of LitGPT other than bf16-true and bf16-mixed")
    if "deepspeed" in said(row, "notes") or (row.get("parallelism") or {}).get("zero"):
        raise not_yet("DeepSpeed")
    if row.get("compile") not in (False, None) or row.get("offload"):
        raise not_yet("torch.compile or offload under LitGPT")
    if "adamw" not in said(row, "optimizer"):
        raise not_yet("the optimizer")
    if not isinstance(row.get("micro_batch"), int) or not isinstance(row.get("seq_len"), int):
        raise CannotExpress("the batch or the length is not stated")


def packed_base(quant: str) -> Row:
    """Fabric's BitsandbytesPrecision in the model's format; LitGPT asks for bitsandbytes 0.42.0, whose product is 0.41's."""
    form, _, nested = quant.removeprefix("bnb.").partition("-")
    if form not in ("nf4", "fp4"):
        raise not_yet(f"a base packed by {quant}")
    return {"base": form, "base_double_quant": nested == "dq", "base_compute": "bf16", "bitsandbytes": "0.42.0"}


def lora(row: Row) -> Row | None:
    given = row.get("lora")
    if not given:
        if "lora" in said(row, "phase"):
            raise CannotExpress("the rank of the adapters is not stated")
        return None
    if str(given.get("type")) in ("adapter", "adapter_v2"):
        base = packed_base(str(given["quant"])) if given.get("quant") else {}
        return {"kind": given["type"], "rank": PREFIX, "format": "storage", **base}
    words = given["targets"].split(",") if isinstance(given["targets"], str) else given["targets"]
    names = [name for word in words for name in TARGETS[SHORT.get(str(word).strip(), str(word).strip())]]
    base = packed_base(str(given["quant"])) if given.get("quant") else {}
    return {"rank": given["r"], "targets": names, "dropout": given.get("dropout", DROPOUT), "format": "storage", **base}


def kernels(row: Row) -> str:
    """From October 2023 (Lit-GPT #606) to February 2024 (#941) RMSNorm multiplied by its weight in front of the cast, as it does again
    since 0.4.6: it matters where norms are trained, which are adapter_v2's."""
    early = said(row, "date") < "2024-02-23" and (row.get("lora") or {}).get("type") == "adapter_v2"
    return "litgpt" if early or said(row, "model").startswith(SINCE_0_4_6) else "litgpt_0_4_5"


def sharding(row: Row, gpus: int) -> Row:
    if gpus == 1:
        return {"engine": "single", "recompute": "none"}
    # finetune/full.py: FSDPStrategy(auto_wrap_policy={Block}, activation_checkpointing_policy={Block}); Fabric asks for
    # use_orig_params since PyTorch 2.0 (lightning/fabric/strategies/fsdp.py)
    # and the loops synchronise gradients in the last micro-batch alone: fabric.no_backward_sync
    return {"engine": "fsdp1", "recompute": "full", "use_orig_params": True, "gradient_sync_every_micro_batch": False}


def litgpt_job(row: Row) -> Row:
    refuse(row)
    gpus = int(row.get("n_gpus") or 1)
    adapters = lora(row)
    mixed = said(row, "dtype_policy").startswith("bf16-mixed")
    trainer: Row = {
        **sharding(row, gpus),
        "layout": f"d{gpus}",
        "kernels": kernels(row),
        "precision": {"storage": "fp32", "compute": "fp32"} if mixed else HALF,
        "autocast": mixed,
        # a packed model gets bitsandbytes' PagedAdamW, whatever the file says (litgpt/utils.py instantiate_bnb_optimizer)
        "optimizer": "paged_adamw_32bit" if (row.get("lora") or {}).get("quant") else "adamw",
        "optimizer_form": "foreach",
        "head": "litgpt",
        # samples cut to one length follow one another; the longest of a data set seldom follows one as long
        "keep_outputs": "truncation" in said(row, "seq_note"),
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq_len"],
        "micro_batches": max(1, int(row.get("global_batch") or 1) // gpus // row["micro_batch"]),
    }
    if adapters is not None:
        trainer["lora"] = adapters | ({"own_units": False} if gpus > 1 else {})
    gpu = find_gpu(row.get("gpu"))
    return {"framework": "torch", "gpus": f"{gpus} x {gpu}", "model": str(row.get("model")), "trainer": trainer}


def litgpt_config(row: Row, corpus: Path) -> str:
    model = said(row, "model")
    if model in ("stablelm alpha", "stablelm-base-alpha-3b"):
        return json.dumps(STABLELM_ALPHA)
    try:
        return json.dumps(find_config(NAMES.get(model, row.get("model")), corpus))
    except CannotExpress:
        return json.dumps(config_from_arch(row.get("arch"), row.get("model")))
