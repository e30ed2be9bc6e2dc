"""Training rows that people measured, as native jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fms
from alst import alst_job
from corpus import GIB, CannotExpress, Case, Row, config_from_arch, find_config, find_gpu, not_yet
from litgpt import litgpt_config, litgpt_job
from measured_refusals import refuse_framework, refuse_settings, text
from megatron import simumax_config, simumax_job
from megatron_bridge import bridge_job, is_bridge
from megatron_golden import golden_config, golden_job, is_golden
from operators import operator_call
from torchtitan import titan_job
from torchtune import is_torchtune, torchtune_job

DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp32": "fp32", "float32": "fp32"}


def metric_of(row: Row) -> str:
    kind = str(row.get("metric_kind") or "").lower()
    if "nvidia-smi" in kind or "nvml" in kind:
        return "device"
    if "reserved" in kind:
        return "reserved"
    return "allocated"


def precision_of(row: Row) -> tuple[Row, bool]:
    policy = text(row, "dtype_policy")
    if not policy:
        raise CannotExpress("the precision is not stated")
    pure = next((short for long, short in DTYPES.items() if f"pure {long}" in policy), None)
    if pure:
        return {"storage": pure, "compute": pure, "reduce": pure}, False
    if fms.is_fms(row) and (of_plugin := fms.precision(row)):
        return of_plugin
    if "autocast over float16" in policy:
        return {"storage": "fp16", "compute": "fp16", "reduce": "fp16"}, True
    if "autocast over bf" in policy:
        return {"storage": "bf16", "compute": "bf16", "reduce": "bf16"}, True
    if "accelerate fsdp keeps fp32 shards" in policy:  # its MixedPrecision reduces in bf16 too, and it runs under autocast
        return {"storage": "fp32", "compute": "bf16", "reduce": "bf16"}, True
    if policy.startswith("precision bf16 (params bf16), lora bf16"):
        return {"storage": "bf16", "compute": "bf16", "reduce": "bf16"}, False
    if policy.startswith("fp32") and "bf16 compute" in policy:
        return {"storage": "fp32", "compute": "bf16", "reduce": "fp32"}, False
    if policy in ("bf16", "bfloat16"):
        return {"storage": "bf16", "compute": "bf16", "reduce": "bf16"}, False
    raise CannotExpress("the precision is not understood")


def releases(row: Row) -> Row:
    """Whose loss it was, and whether the training loop holds what the model gave it."""
    if fms.is_fms(row):
        return fms.releases(row)
    if row.get("group") == "fsdp_qlora":  # its README: neither 4.38 nor 4.39; train.py keeps `output` until the step is over
        return {"transformers": "4.37.2", "keep_outputs": True}
    return {}


def packed_base(row: Row, quant: str) -> Row:
    """A base that bitsandbytes packed. Both kits leave what is not packed in 16 bits."""
    if fms.is_fms(row):
        return fms.base(row, quant)
    if "gptq" in quant.lower():
        raise not_yet("a GPTQ base under adapters")
    four = {"base": "nf4", "base_double_quant": True, "base_compute": "bf16"}
    if row.get("group") == "fsdp_qlora":  # Linear4bit's own default compresses the scales
        return {**four, "bitsandbytes": "0.43.0"}
    raise CannotExpress("how the base under the adapters is packed is not stated")


# what its train.py means by "all"
FSDP_QLORA_ALL = ["k_proj", "q_proj", "v_proj", "up_proj", "down_proj", "gate_proj"]


def measured_lora(row: Row) -> Row | None:
    """Adapters as huggingface/peft makes them, in fp32. None: everything is trained."""
    given = row.get("lora")
    if not given and not any(word in text(row, "phase") for word in ("lora", "peft")):
        return None
    if not isinstance(given, dict) or not isinstance(given.get("r"), int):
        raise CannotExpress("the rank of the adapters is not stated")
    base = packed_base(row, str(given["quant"])) if given.get("quant") else {}
    if str(given.get("type") or "LORA").upper() != "LORA" or given.get("dora"):
        raise not_yet("adapters other than LoRA")
    targets = given.get("targets") or given.get("target_modules")
    words = targets.split() if isinstance(targets, str) else targets
    if words in (["all", "linear"], ["all-linear"]):
        words = FSDP_QLORA_ALL if row.get("group") == "fsdp_qlora" else ["all-linear"]
    if isinstance(words, list) and len(words) > 1:
        words = [word for word in words if word != "c_attn"]  # GPT-2's, named for all models alike
    if not isinstance(words, list) or not all(str(word).endswith(("_proj", "all-linear")) for word in words):
        raise CannotExpress("the modules with adapters are not stated by name")
    form = "storage" if "lora bf16" in text(row, "dtype_policy") else "fp32"
    return {"rank": given["r"], "targets": words, "dropout": given.get("dropout") or 0, "format": form, **base}


def measured_sharding(row: Row, gpus: int) -> Row:
    """The engine and its settings, as the words of the row say them."""
    words = str((row.get("parallelism") or {}).get("fsdp") or "").lower()
    if not words:
        if gpus > 1:
            raise not_yet("DDP")
        return {"engine": "single"}
    if "fsdp2" in words:
        return {"engine": "fsdp2"}
    out: Row = {"engine": "fsdp1", "reshard_after_forward": "shard_grad_op" not in words}
    if "no_shard" in words:
        out["replicas"] = gpus
    out["cpu_offload_policy"] = text(row, "offload").startswith("fsdp cpu offload")
    if fms.is_fms(row):
        out["use_orig_params"] = True  # accelerate 1.0.1 unless its file says otherwise; that file does not
    return out


def is_litgpt(row: Row) -> bool:
    return any(word in text(row, "framework") for word in ("lit-gpt", "litgpt"))


def measured_job(row: Row) -> Row:
    if not isinstance(row.get("value_gib"), (int, float)):
        raise CannotExpress("no value: a fit or no-fit label")
    if row.get("group") == "simumax-b200":
        return simumax_job(row)
    if "torchtitan" in text(row, "framework") and "component" not in text(row, "phase"):
        return titan_job(row)
    if is_litgpt(row):
        return litgpt_job(row)
    if is_torchtune(row):
        return torchtune_job(row)
    if row.get("group") == "arctic-alst":
        return alst_job(row)
    refuse_framework(row)
    refuse_settings(row)
    lora = measured_lora(row)
    if not isinstance(row.get("micro_batch"), int) or not isinstance(row.get("seq_len"), int):
        raise CannotExpress("the batch or the length is not stated")
    recompute = text(row, "recompute")
    if not recompute:
        raise CannotExpress("recomputation is not stated")
    if not recompute.startswith(("none", "full")):
        raise not_yet("selective recomputation")
    optimizer = text(row, "optimizer")
    if "adam" not in optimizer or any(word in optimizer for word in ("8bit", "8-bit", "paged", "4bit", "bnb")):
        raise not_yet("the optimizer")
    attention = text(row, "attention")
    kernels = (
        "hf_flash"
        if "flash_attention" in attention
        else "hf_sdpa"
        if "sdpa" in attention
        else "hf_eager"
        if "eager" in attention
        else ""
    )
    if not kernels:
        raise CannotExpress("the attention implementation is not stated")
    precision, autocast = precision_of(row)
    gpus = int(row.get("n_gpus") or 1)
    trainer: Row = {
        **measured_sharding(row, gpus),
        "layout": f"d{gpus}",
        "kernels": kernels,
        "precision": precision,
        "autocast": autocast,
        "recompute": "full" if recompute.startswith("full") else "none",
        "reentrant": "hf trainer" in text(row, "framework"),  # what the Trainer of transformers 4 does unless told otherwise
        "optimizer": "adamw" if "adamw" in optimizer else "adam",
        "optimizer_form": "fused" if "fused" in optimizer else "foreach",
        "head": "hf_loss",
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": fms.length(row) if fms.is_fms(row) else row["seq_len"],
        "micro_batches": int(row.get("grad_accum") or 1),
    }
    if "reentrant" in recompute and not re.search(r"non-?reentrant", recompute):
        trainer["reentrant"] = True
    trainer |= (fms.kernels(row) | fms.checkpoints(row) if fms.is_fms(row) else {}) | releases(row)
    if lora is not None:
        trainer["lora"] = lora
    return {
        "framework": "torch 2.2" if row.get("group") == "fsdp_qlora" else "torch",  # train.py names it
        "gpus": f"{gpus} x {find_gpu(row.get('gpu'))}",
        "model": str(row.get("model")),
        "trainer": trainer,
    }


def measured_config(row: Row, corpus: Path) -> Row:
    if row.get("group") == "simumax-b200" and row["arch"].get("experts"):
        return simumax_config(row)
    if fms.is_fms(row) and row.get("model") in fms.CONFIGS:
        return fms.CONFIGS[row["model"]]
    try:
        return find_config(fms.model(row.get("model")), corpus)
    except CannotExpress:
        config = config_from_arch(row.get("arch"), row.get("model"))
        if row.get("model") == "Mistral-7B-v0.2":  # "expanded the context window [...] to 32K tokens", benchmarks_03_2024.md
            config |= {"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": None}
        return config


def operator_cases(row: Row) -> list[Case]:
    """The printed figure in MiB, which the rounded one in GiB came from."""
    printed = str(row.get("value_orig") or "").split()
    value = row.get("value_gib")
    measured = round(value * GIB) if isinstance(value, (int, float)) else 0
    if len(printed) > 1 and printed[1] == "MB" and "2^20" in str(row["value_orig"]):
        measured = round(float(printed[0]) * 2**20)
    why_not, call = "", {}
    try:
        call = operator_call(row)
    except CannotExpress as reason:
        why_not = str(reason)
    return [Case(row["id"], "allocated", measured, "operator", call, "", "allocated", why_not)]


def golden_cases(row: Row) -> list[Case]:
    """A step's highest level and what is left of it, printed by the last rank."""
    job: Row = {}
    why_not, config = "", ""
    try:
        job = golden_job(row)
        config = json.dumps(golden_config(row))
    except CannotExpress as reason:
        why_not = str(reason)
    left = row["extra_values"].get("current_alloc_last_gib")
    figures = [("allocated", "peak", row["value_gib"])] + ([("resident", "resident", left)] if left else [])
    return [
        Case(row["id"], metric, round(value * GIB), "last_stage", job, config, figure, why_not)
        for metric, figure, value in figures
    ]


def bridge_case(row: Row, corpus: Path) -> Case:
    """max_memory_allocated, in the blocks that the allocator hands out."""
    job: Row = {}
    why_not, config = "", ""
    try:
        job = bridge_job(row)
        config = json.dumps(find_config(job["model"], corpus))
    except CannotExpress as reason:
        why_not = str(reason)
    return Case(row["id"], "allocated", round(row["value_gib"] * GIB), "last_stage", job, config, "peak", why_not)


def measured_cases(row: Row, corpus: Path) -> list[Case]:
    if is_golden(row):
        return golden_cases(row)
    if is_bridge(row):
        return [bridge_case(row, corpus)]
    if "component" in text(row, "phase"):
        return operator_cases(row)
    metric, value = metric_of(row), row.get("value_gib")
    measured = round(value * GIB) if isinstance(value, (int, float)) else 0
    job: Row = {}
    why_not, config = "", ""
    try:
        job = measured_job(row)
        config = litgpt_config(row, corpus) if is_litgpt(row) else json.dumps(measured_config(row, corpus))
    except CannotExpress as reason:
        why_not = str(reason)
    if "apart" in job:  # one stage of a pipeline, whose tensors alone are added up
        return [Case(row["id"], metric, measured, "training", job, config, "peak", why_not)]
    return [Case(row["id"], metric, measured, "whole", job, config, metric, why_not)]
