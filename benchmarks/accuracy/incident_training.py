"""Reports on plain training (Transformers, TRL, LLaMA-Factory, DeepSpeed, FSDP, Accelerate) as job files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from corpus import CannotExpress, Row, not_yet
from incident_rl import host_memory, machines, no_images
from incident_words import EARLY, Choice, Settings, card, gpus_of, model_config, needed

TRAINERS = re.compile(
    r"transformers|\btrl\b|\bhf\b|hugging|llama-factory|axolotl|accelerate|deepspeed|fsdp|unsloth|oumi|\bddp\b", re.I
)
OTHERS = re.compile(r"vllm|sglang|megatron|nccl|dcp|\btp\b|ms-swift|openrlhf|skyrl|slime|nemo", re.I)
MICRO_BATCH = (
    "micro_batch", "batch", "per_device_batch", "per_device_train_batch_size", "micro_batch_size", "train_micro_batch_size_per_gpu",
    "batch_size",
)  # fmt: skip
LENGTH = (
    "seq",
    "seq_len",
    "max_seq_length",
    "max_seq_len",
    "cutoff_len",
    "context",
    "max_length",
    "sequence_length",
    "model_max_length",
)
ADAPTERS = [{"rank": 8, "targets": ["q_proj", "v_proj"]}, {"rank": 64, "targets": ["all-linear"]}]
OPTIMIZERS = {
    "adamw": "adamw", "adamw_torch": "adamw", "adam": "adamw", "8-bit adam": "adamw_8bit", "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit", "paged_adamw_32bit": "paged_adamw_32bit",
    "adafactor": "adafactor", "sgd": "sgd",
}  # fmt: skip


def is_training(row: Row) -> bool:
    framework = str(row.get("framework") or "")
    return bool(TRAINERS.search(framework)) and not OTHERS.search(framework)


def engine_of(row: Row, given: Settings, gpus: int, choice: Choice) -> Row:
    """What splits the model over the GPUs."""
    words = f"{row.get('framework')} {row.get('version') or ''}".lower()
    stage = given.take("zero", "zero_stage")
    if stage is None and (found := re.search(r"zero-?(\d)", words)):
        stage = int(found.group(1))
    engine = given.word("engine", "trainer", "strategy")
    offload = given.take("cpu_offload", "offload")
    parameters = given.take("param_offload", "offload_param")
    states = given.take("optimizer_offload", "offload_optimizer", "adam_offload")
    if isinstance(offload, str):
        raise CannotExpress("what is offloaded is not understood")
    if stage is not None:
        if stage not in (1, 2, 3):
            raise CannotExpress(f"ZeRO {stage} is not mapped")
        zero: Row = {"stage": stage}
        if parameters or (offload and stage == 3):
            zero["offload_parameters"] = True
        if states or offload or (parameters and stage == 3):
            zero["offload_optimizer"] = True
        return {"engine": "deepspeed", "zero": zero}
    if "deepspeed" in words or engine == "deepspeed":
        raise CannotExpress("the stage of ZeRO is not stated")
    if given.flag("ddp") or engine == "ddp" or re.search(r"\bddp\b", words):
        return {"engine": "ddp"} if gpus > 1 else {"engine": "single"}
    if engine in ("fsdp1", "fsdp2") or (found := re.search(r"fsdp[12]", words)):
        sharded = engine if engine in ("fsdp1", "fsdp2") else str(found.group(0) if found else "")
    elif engine == "fsdp" or "fsdp" in words or given.flag("fsdp"):
        sharded = choice.of("the release of FSDP", ["fsdp1", "fsdp2"])
    elif gpus == 1:
        return {"engine": "single"}
    else:
        shared = choice.of("how the GPUs share the model", ["ddp", "zero 2", "zero 3", "fsdp1", "fsdp2"])
        if shared.startswith("zero"):
            return {"engine": "deepspeed", "zero": {"stage": int(shared[-1])}}
        sharded = shared
    return {"engine": sharded, **({"cpu_offload_policy": True} if offload or parameters else {})}


def precision(given: Settings, engine: str, choice: Choice) -> Row:
    stated = given.word("dtype", "precision")
    for name in ("bf16", "fp16"):
        if given.flag(name):
            stated = stated or name
    if given.flag("pure_bf16"):
        stated = "pure bf16"
    plain = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp32": "fp32", "float32": "fp32"}.get(stated or "", stated)
    if plain == "fp32":
        return {"precision": {"storage": "fp32", "compute": "fp32", "reduce": "fp32"}}
    if plain not in (None, "bf16", "fp16", "pure bf16"):
        raise CannotExpress(f"the precision {plain} is not mapped")
    form = "fp16" if plain == "fp16" else "bf16"
    whole = {"precision": {"storage": form, "compute": form, "reduce": form}}
    if engine == "deepspeed" or plain == "pure bf16":
        return whole
    if engine in ("fsdp1", "fsdp2"):
        mixed: Row = {"precision": {"storage": "fp32", "compute": form, "reduce": form}, "autocast": True}
    else:
        mixed = {"precision": {"storage": "fp32", "compute": "fp32", "reduce": "fp32", "autocast": form}, "autocast": True}
    kept = choice.of("whether parameters are kept in fp32", [False, True])
    return mixed if kept else whole


def adapters(row: Row, given: Settings, choice: Choice) -> Row:
    words = f"{row.get('framework')} {row.get('version') or ''} {row.get('model') or ''}".lower()
    rank, target, asked = (
        given.count("lora_rank", "lora_r", "rank"),
        given.take("lora_target", "lora_targets"),
        given.take("lora"),
    )
    given.take("lora_params")  # follows from the others
    packed = (
        "qlora" in words
        or re.search(r"4[- ]?bit", words) is not None
        or given.word("quantization_bit", "load_in_4bit") in ("4", "true")
    )
    if not (rank or target or asked or packed or "lora" in words):
        return {}
    if target in ("all", "all-linear"):
        target = ["all-linear"]
    if isinstance(target, str):
        target = [name.strip() for name in target.split(",")]
    unstated = choice.of("the adapters", ADAPTERS if rank is None or target is None else [ADAPTERS[0]])
    lora: Row = {"rank": rank or unstated["rank"], "targets": target or unstated["targets"], "format": "fp32"}
    if packed:
        lora |= {"base": "nf4", "base_double_quant": choice.of("double quantisation", [False, True]), "base_compute": "bf16"}
    return {"lora": lora}


def recompute(given: Settings, choice: Choice, early: bool) -> str:
    stated: Any = given.take("gradient_checkpointing", "recompute", "activation_checkpointing")
    if stated is None:
        stated = choice.of("recomputation", [False] if early else [False, True])
    if not isinstance(stated, bool):
        raise CannotExpress("recomputation is not understood")
    return "full" if stated else "none"


def training_ask(row: Row, corpus: Path, choice: Choice) -> Row:
    given, early = Settings(row.get("config")), row.get("phase") in EARLY
    config = model_config({**row, "model": re.sub(r"[ -](bnb-)?4-?bit$", "", str(row.get("model") or ""))}, corpus)
    if not early:
        no_images(config)
    gpu, gpus = card(row, choice), gpus_of(row)
    nodes, each = machines(given, gpus)
    micro, length = given.count(*MICRO_BATCH), given.count(*LENGTH)
    if early:
        micro, length = micro or 1, length or 512
    micro, length = needed(micro, "the micro-batch"), needed(length, "the length of the samples")
    if re.search("unsloth", f"{row.get('framework')} {row.get('version')}", re.IGNORECASE):
        raise not_yet("Unsloth")
    trainer: Row = engine_of(row, given, gpus, choice)
    trainer |= {"layout": f"d{gpus}", "sequences_per_micro_batch": micro, "sequence_tokens": length}
    trainer |= {**precision(given, str(trainer["engine"]), choice), **adapters(row, given, choice)}
    trainer["micro_batches"] = given.count("gradient_accumulation_steps", "grad_accum", "accumulation") or 1
    attention = given.word("attention", "attn_implementation", "flash_attn")
    kernels = {"flash_attention_2": "hf_flash", "fa2": "hf_flash", "flash": "hf_flash", "sdpa": "hf_sdpa", "eager": "hf_eager"}
    if attention is not None and attention not in kernels:
        raise CannotExpress(f"the attention {attention} is not mapped")
    trainer["kernels"] = (
        kernels[attention] if attention else choice.of("the attention", ["hf_sdpa"] if early else ["hf_sdpa", "hf_flash"])
    )
    trainer["recompute"] = recompute(given, choice, early)
    optimizer = given.word("optimizer", "optim") or "adamw"
    if optimizer not in OPTIMIZERS:
        raise CannotExpress(f"the optimizer {optimizer} is not mapped")
    trainer["optimizer"] = OPTIMIZERS[optimizer]
    trainer["head"] = "liger_fused_ce" if given.flag("fused_loss", "use_liger", "use_liger_kernel") else "hf_loss"
    if given.flag("fused_optimizer"):
        trainer["optimizer_form"] = "fused"
    segments = given.flag("expandable_segments")
    host = host_memory(given)
    given.done()
    job: Row = {
        "framework": "torch",
        "gpus": f"{gpus} x {gpu}",
        "model": "{model}",
        **({"gpus_per_node": each} if nodes > 1 else {}),
        **({"expandable_segments": True} if segments else {}),
        "trainer": trainer,
    }
    return {"job": job, "config": json.dumps(config), **host}


def is_megatron(row: Row) -> bool:
    return bool(re.match(r"megatron(-lm|-core| core)?$", str(row.get("framework") or ""), re.IGNORECASE))


def megatron_ask(row: Row, corpus: Path, choice: Choice) -> Row:
    """Megatron-LM: how the GPUs share the model has to be stated, as its flags say it."""
    given, early = Settings(row.get("config")), row.get("phase") in EARLY
    config = model_config(row, corpus)
    no_images(config)
    gpu, gpus = card(row, choice), gpus_of(row)
    tensor = needed(given.count("tp"), "how the GPUs share the model")
    degrees = {"t": tensor, "p": given.count("pp") or 1, "c": given.count("cp") or 1}
    ranks = gpus // (degrees["t"] * degrees["p"] * degrees["c"])
    micro, length = given.count(*MICRO_BATCH), given.count(*LENGTH)
    if early:
        micro, length = micro or 1, length or 512
    trainer: Row = {
        "engine": "megatron",
        "layout": f"d{ranks}" + "".join(f"{letter}{degree}" for letter, degree in degrees.items()),
        "sequences_per_micro_batch": needed(micro, "the micro-batch"),
        "sequence_tokens": needed(length, "the length of the samples"),
        "recompute": recompute(given, choice, early),
    }
    if trainer["recompute"] == "full":
        trainer |= {"recompute_method": "uniform", "recompute_layers": 1}
    if experts := given.count("ep"):
        trainer["layout"] += f"e{experts}"
    if sequence := given.flag("sp", "sequence_parallel"):
        trainer["sequence_parallel"] = sequence
    if (distributed := given.flag("distributed_optimizer", "use_distributed_optimizer")) is not None:
        trainer["distributed_optimizer"] = distributed
    chunks = needed(given.count("global_batch", "global_batch_size"), "the global batch") if degrees["p"] > 1 else None
    host = host_memory(given)
    given.done()
    job: Row = {"framework": "torch", "gpus": f"{gpus} x {gpu}", "model": "{model}", "trainer": trainer}
    job |= {"sequences_per_step": chunks} if chunks else {}
    trainer |= {} if chunks else {"micro_batches": 1}
    return {"job": job, "config": json.dumps(config), **host}
