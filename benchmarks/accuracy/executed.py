"""Training steps that PyTorch executed on fake tensors, as job files.

Every field of a row is taken (fields.py). The job is read as a user's file would be: the model is a config.json, every setting a
knob, and what the file's reader refuses is refused here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from corpus import LAYER_KEYS, CannotExpress, Case, Row, cut, find_config, find_gpu, not_yet
from fields import Fields

PHASES = ("forward", "backward", "optimizer")

# Fields that bear no memory, and why.
PASSED_OVER = {
    "id": "name",
    "peaks_by_phase": "figures",
    "device": "figures",  # of a real GPU: device_cases
}

HEADS = {
    "hf_loss_keep_outputs": "hf_loss",
    "forward_only_logprob_fp32": "logprob_fp32",
    "verl_ref_logprob": "verl_flash_ce",
    "verl_old_logprob_entropy_compiled": "verl_entropy_compiled",
    "verl_old_logprob_entropy_eager": "verl_entropy_eager",
    "verl_old_logprob_entropy_chunked": "verl_entropy_chunked",
    "areal_forward_compiled": "areal_compiled",
    "areal_vocab_parallel": "areal_compiled",  # under tensor parallelism AReaL's own functions become this
    "tp_loss_parallel": "cross_entropy",
} | {
    name: name
    for name in (
        "hf_loss",
        "logprob_fp32",
        "logprob_bf16",
        "logprob_lse",
        "logprob_rows",
        "logprob_chunked",
        "logprob_entropy_fp32",
        "logprob_entropy_nograd",
        "logprob_temperature",
        "verl_flash_ce",
        "verl_entropy_compiled",
        "verl_entropy_eager",
        "verl_entropy_checkpoint",
        "verl_entropy_chunked",
        "verl_entropy_chunked_checkpoint",
        "verl_flash_ce_div_in_place",
        "verl_entropy_eager_div_in_place",
        "verl_fp32_flash_ce",
        "verl_fp32_entropy_eager",
        "verl_rows",
        "areal_compiled",
        "areal_eager",
        "areal_clamped",
        "cross_entropy",
    )
}
FORWARD_ONLY = ("forward_only", "verl_old_logprob", "verl_ref_logprob", "areal_forward")
DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp32": "fp32", "float32": "fp32"}
FORMATS = {name: DTYPES.get(name or "") for name in (None, *DTYPES)}
# storage, and the format of autocast under which the step ran
STORED: dict[str, tuple[str, str | None]] = {name: (short, None) for name, short in DTYPES.items()} | {
    f"{name}_autocast_{half}": (short, half) for name, short in DTYPES.items() for half in ("bf16", "fp16")
}
ATTENTIONS = {
    "fa2": "hf_flash",
    "flash_attention_2": "hf_flash",
    "eager": "hf_eager",
    "sdpa": "hf_sdpa",
    "sdpa:math": "hf_sdpa",
    "none (no attention layers)": "hf_sdpa",
}
# transformers' experts_implementation; the loop's tokens were spread evenly, as its description has them
EXPERTS = {None: "auto", "grouped_mm": "grouped_mm", "batched_mm": "batched_mm", "eager": "eager", "eager_balanced": "eager"}
CHECKPOINTING = {"none": ("none", False), "nonreentrant": ("full", False), "reentrant": ("full", True)}
OPTIMIZERS = {name: name for name in ("adamw", "adam", "sgd", "sgd_momentum")}
FORMS = {name: name for name in ("foreach", "fused", "loop")}
STRATEGIES: dict[str | None, str] = {None: "FULL_SHARD"} | {
    name: name for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
}
ENGINES = {None: "fsdp2", "fsdp2": "fsdp2", "fsdp1": "fsdp1", "ddp": "ddp"}
NAMED = {"deepspeed": "DeepSpeed", "megatron": "Megatron"}
MISSING = object()


def set_ddp(given: Fields, trainer: Row) -> int:
    world = given.count("world")
    trainer["layout"] = f"d{world}"
    trainer["gradient_as_bucket_view"] = given.flag("gradient_as_bucket_view")
    trainer["bucket_cap_mb"] = given.count("bucket_mb", 25)
    trainer["gradient_sync_every_micro_batch"] = not given.flag("no_sync")
    return world


def set_precision(given: Fields, trainer: Row) -> bool:
    """Without a reduce format gradients are reduced in the one that is computed with. Tells whether there is a policy."""
    compute, reduce = given.word("param_dtype", FORMATS), given.word("reduce_dtype", FORMATS)
    precision = trainer["precision"]
    if compute:
        precision["compute"] = compute
    precision["reduce"] = reduce or precision["compute"]
    return compute is not None


def set_fsdp1(given: Fields, trainer: Row, context: int) -> int:
    world = given.count("world")
    trainer["layout"] = f"d{world // context}" + (f"c{context}" if context > 1 else "")
    set_precision(given, trainer)
    strategy = given.word("strategy", STRATEGIES)
    replicas = given.count("replicate", 1)
    trainer["replicas"] = world if strategy == "NO_SHARD" else replicas
    trainer["reshard_after_forward"] = strategy not in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
    trainer |= {"root_reshard": False, "wrap_embedding": False, "wrap_head": False}  # the root keeps what is no layer's
    # a row that says nothing has the library's default, BACKWARD_PRE; one that says None has none
    prefetch = given.values.pop("backward_prefetch", MISSING)
    known = {MISSING: "pre", None: "none", "PRE": "pre", "POST": "post", "BACKWARD_PRE": "pre", "BACKWARD_POST": "post"}
    if isinstance(prefetch, (dict, list, bool)) or prefetch not in known:
        raise given.refuse("backward_prefetch", prefetch)
    trainer["backward_prefetch"] = known[prefetch]
    trainer["forward_prefetch"] = given.flag("forward_prefetch")
    trainer["use_orig_params"] = given.flag("use_orig_params")
    trainer["cpu_offload_policy"] = given.flag("cpu_offload")
    trainer["gradient_sync_every_micro_batch"] = not given.flag("no_sync")
    given.flag("limit_all_gathers")  # holds the CPU back; what is allocated in the program's order stays
    return world


# what tensor parallelism alone has no use for
OF_SHARDS = (
    "replicas",
    "reshard_after_forward",
    "root_reshard",
    "reshard_ranks",
    "forward_prefetch",
    "wrap_embedding",
    "wrap_head",
    "cpu_offload_policy",
    "gradient_sync_every_micro_batch",
)


def set_fsdp2(given: Fields, trainer: Row, context: int) -> int:
    tensor, world = given.count("tp", 1), given.count("world")
    given.flag("loss_parallel")  # what tensor parallelism does with cross_entropy: the head says it
    degrees = {"t": tensor, "c": context}
    trainer["layout"] = f"d{world // context // tensor}" + "".join(f"{k}{n}" for k, n in degrees.items() if n > 1)
    trainer["forward_prefetch"] = given.flag("forward_prefetch")
    trainer["replicas"] = given.count("replicate", 1)
    mixed = set_precision(given, trainer)
    reshard = given.take("reshard")
    if not isinstance(reshard, (bool, int, type(None))) or (not isinstance(reshard, bool) and reshard == 0):
        raise given.refuse("reshard", reshard)
    if isinstance(reshard, int) and not isinstance(reshard, bool):
        trainer["reshard_ranks"] = reshard
    trainer["reshard_after_forward"] = reshard is not False
    trainer["root_reshard"] = reshard not in (None, False)  # the library's default keeps the root's parameters
    trainer["wrap_embedding"] = given.flag("wrap_embedding")
    trainer["wrap_head"] = given.flag("wrap_head")
    trainer["cpu_offload_policy"] = given.flag("cpu_offload")
    trainer["gradient_sync_every_micro_batch"] = not given.flag("no_sync")
    if tensor == world and not mixed:  # nothing is sharded: tensor parallelism alone
        for key in OF_SHARDS:
            trainer.pop(key, None)
        trainer["engine"] = "single"
    return world


def set_sharding(row: Fields, trainer: Row, context: int) -> int:
    """Engine, layout and their settings; the number of GPUs."""
    given = row.group("sharding")
    if given is None:
        if context > 1:
            raise CannotExpress("sequences are split over ranks that the row does not have")
        trainer |= {"engine": "single", "layout": "d1"}
        return 1
    engine = given.take("engine")
    if engine in NAMED:
        raise not_yet(NAMED[engine])
    given.values["engine"] = engine
    trainer["engine"] = given.word("engine", ENGINES)
    if trainer["engine"] == "ddp":
        if context > 1:
            raise not_yet("DDP with sequences that are split")
        return set_ddp(given, trainer)
    set_engine = set_fsdp1 if trainer["engine"] == "fsdp1" else set_fsdp2
    return set_engine(given, trainer, context)


def lora_of(given: Fields) -> Row:
    """LoRA as an executed row states it; peft makes adapters in fp32 unless told otherwise."""
    targets = given.take("targets")
    words = [targets or "all-linear"] if isinstance(targets, (str, type(None))) else targets
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise given.refuse("targets", targets)
    given.number("alpha")  # a factor
    return {
        "rank": given.count("r"),
        "targets": words,
        "dropout": given.number("dropout"),
        "format": "fp32" if given.flag("fp32_adapters", True) else "storage",
    }


def decay_of(row: Fields, optimizer: str, form: str) -> Row:
    """AdamW multiplies parameters where they are, and a fused step makes nothing. The others add it to copies of the gradients."""
    decay = row.number("weight_decay")
    default = 0.01  # torch.optim.AdamW's, which alone was given it
    return {} if optimizer == "adamw" or form == "fused" or decay in (0, default) else {"weight_decay": decay}


def releases_of(row: Fields, trainer: Row) -> str:
    """The framework of the job, with its release."""
    given = row.group("versions")
    if given is None:
        return "torch"
    said = {name: given.text(name) for name in ("torch", "transformers", "peft", "python") if name in given.values}
    for name, text in said.items():  # of peft no release keeps anything else in its LoRA layers, of Python none keeps any
        if not re.fullmatch(r"\d+(\.\d+)+([+a-z].*)?", text):
            raise given.refuse(name, text)
    if "transformers" in said:
        trainer["transformers"] = said["transformers"]
    return f"torch {said['torch'].split('+')[0]}" if "torch" in said else "torch"


def fields_job(row: Fields) -> Row:
    loss = row.text("loss")
    head = HEADS.get(loss)
    if head is None:
        raise not_yet(f"the loss head {loss}")
    storage, autocast = row.word("dtype", STORED)
    attention = str(row.values.get("attention"))
    kernels = row.word("attention", ATTENTIONS)
    recompute, reentrant = row.word("checkpointing", CHECKPOINTING)
    optimizer = row.word("optimizer", OPTIMIZERS)
    form = row.word("optimizer_impl", FORMS)
    sequences, tokens = row.count("batch"), row.count("seq")
    trainer: Row = {
        "kernels": kernels,
        "precision": {"storage": storage, "compute": storage, "reduce": storage},
        "autocast": row.flag("autocast") or autocast is not None,
        "recompute": recompute,
        "reentrant": reentrant,
        "optimizer": optimizer,
        "optimizer_form": form,
        **decay_of(row, optimizer, form),
        "clip": row.flag("clip"),
        "head": head,
        "sequences_per_micro_batch": sequences,
        "sequence_tokens": tokens,
        "micro_batches": row.count("grad_accum", 1),
        "padding_mask": row.flag("padding_mask"),
        "keep_outputs": loss == "hf_loss_keep_outputs",
        "sdpa_math": attention == "sdpa:math",
        "kernel_internals": False,
    }
    if autocast:
        trainer["precision"]["autocast"] = autocast
    for name in ("experts", "experts_implementation"):
        if row.values.get(name) is not None:
            trainer["experts"] = row.word(name, EXPERTS)
    if kept := row.count("logits_to_keep", 0, least=0):
        trainer["logits_to_keep"] = kept
    if adapters := row.group("peft"):
        trainer["lora"] = lora_of(adapters)
    parallel = row.group("sequence_parallel")
    context = parallel.count("size") if parallel else 1
    framework = releases_of(row, trainer)
    if parallel:
        framework = parallel.word("implementation", {None: "verl", "verl": "verl", "areal": "areal"})
    world = set_sharding(row, trainer, context)
    row.equal("tokens_per_rank", sequences * tokens // context, "the batch makes")
    if offload := row.group("offload"):
        trainer["offload"] = [name for name in ("parameters", "optimizer") if offload.flag(name)]
    row.flag("use_cache")  # its keys and values are the tensors that attention saves
    forward_only = loss.startswith(FORWARD_ONLY)
    # PyTorch's own dispatch on fake tensors of "cuda": the copy in front of a softmax is an operator of its own
    apart = {"forward_only": forward_only, "shows_casts_of_softmax": True}
    job: Row = {"framework": framework, "gpus": f"{world} x H100-80GB", "trainer": trainer, "apart": apart}
    if world > 8 and world % 8 != 0:  # a world of any size was executed: on machines of as many GPUs as divide it
        job["gpus_per_node"] = max(n for n in range(1, 9) if world % n == 0)
    if row.flag("expandable_segments"):
        job["expandable_segments"] = True
    return job


def fields_config(row: Fields, corpus: Path) -> tuple[str, Row]:
    """The model's name and its config.json, cut to the layers that were executed."""
    model, layers = row.text("model"), row.take("layers")
    config = find_config(model, corpus)
    if layers is not None and (isinstance(layers, bool) or not isinstance(layers, int) or layers < 1):
        raise row.refuse("layers", layers)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    full = next((text[key] for key in LAYER_KEYS if isinstance(text.get(key), int)), None)
    if override := row.group("layers_override"):
        override.equal("full", full, "the model's config.json")
        override.equal("used", layers, "the field layers")
    if layers is not None and full is None:
        raise CannotExpress("the layers of the model's config.json are not counted")
    if isinstance(layers, int) and isinstance(full, int) and layers > full:
        raise row.refuse("layers", layers)
    config = cut(config, layers)
    overrides = row.take("config_overrides")
    if overrides is not None and not isinstance(overrides, dict):
        raise row.refuse("config_overrides", overrides)
    for key, value in (overrides or {}).items():
        if key not in config and not key.endswith("_token_id"):
            raise CannotExpress(f"the field config_overrides.{key} of a row is not mapped")
        if type(value) is not type(config.get(key, value)):
            raise CannotExpress(f"{json.dumps(value)[:40]} of the field config_overrides.{key} is not mapped")
        config[key] = value
    return model, config


def check_tower(row: Row, config: Row) -> None:
    """Rows hold no images: what was executed is the language model. One that counts the tower's parameters too says otherwise."""
    stated = row.get("parameters")
    if not isinstance(config.get("vision_config"), dict) or not isinstance(stated, int) or row.get("sharding") or row.get("peft"):
        return
    from oomplan import _core

    counts: Row = dict(_core.parameter_figures(json.dumps(config)))
    if stated == counts["language"] + counts["tower"]:
        raise not_yet("a model that was executed with its vision tower, without images,")


def oracle_job(row: Row, corpus: Path) -> tuple[Row, Row]:
    """A row's job and its model's config.json. Raises CannotExpress."""
    fields = Fields(row)
    job = fields_job(fields)
    model, config = fields_config(fields, corpus)
    if seen := row.get("device"):
        # of benchmarks/gpu/measure.py: kernels' own buffers are counted
        job["trainer"]["kernel_internals"] = True
        job["gpus"] = f"1 x {find_gpu(seen.get('gpu'))}"
    fields.done(PASSED_OVER)
    check_tower(row, config)
    return {**job, "model": model}, config


def oracle_cases(row: Row, corpus: Path) -> list[Case]:
    measured = {phase: figure["bytes"] for phase, figure in row["peaks_by_phase"].items() if phase in PHASES}
    if row.get("peak_bytes"):
        measured["peak"] = row["peak_bytes"]
    job: Row = {}
    why_not, config = "", ""
    try:
        job, sizes = oracle_job(row, corpus)
        config = json.dumps(sizes)
    except CannotExpress as reason:
        why_not = str(reason)
    kind = "whole" if row.get("device") else "training"  # a GPU's rows count what the allocator gave to libraries, too
    cases = [Case(row["id"], name, int(value), kind, job, config, name, why_not) for name, value in measured.items() if value]
    return cases + (device_cases(row, job, config, why_not) if row.get("device") else [])


def device_cases(row: Row, job: Row, config: str, why_not: str) -> list[Case]:
    """What the allocator and the driver of a real GPU hold."""
    seen = row["device"]
    figures = {"reserved": seen.get("reserved_peak_bytes"), "device": seen.get("process_bytes")}
    return [Case(row["id"], name, int(value), "whole", job, config, name, why_not) for name, value in figures.items() if value]
