"""Remedies that somebody else confirmed, as changes of a report's settings.

A tag says what is changed; its value stands in the words of the remedy. A counter-example in the settings (works_with, works_without,
fails_with) is a remedy, too. What the words leave open is refused: a remedy has no row, or says why not.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from corpus import CannotExpress, Row

Change = Callable[[Row], Row]


def with_settings(row: Row, **settings: Any) -> Row:
    out = copy.deepcopy(row)
    out["config"] = {**(out.get("config") or {}), **settings}
    return out


def setter(*names: str, value: Any) -> Change:
    """Sets the first of these names that the report states, else the first one."""

    def change(row: Row) -> Row:
        config = row.get("config") or {}
        return with_settings(row, **{next((name for name in names if name in config), names[0]): value})

    return change


SHARES = ("gpu_memory_utilization", "mem_fraction_static", "mem_fraction", "utilization", "fraction")
LENGTHS = ("max_model_len", "vllm_maxlen", "context_length", "max_seq_len")
BATCHED = ("max_num_batched_tokens", "chunked_prefill_size", "chunked_prefill", "batched_tokens")
REQUESTS = ("max_num_seqs", "max_running_requests")
MICRO = ("micro_batch", "micro_batch_size", "per_device_batch", "batch", "per_device_train_batch_size", "micro_train_batch")
SAMPLES = ("max_seq_length", "cutoff_len", "max_length", "seq", "max_response", "max_response_length", "max_response_len")


def shares(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![\d.])(?:0\.\d+|1\.0)(?![\d.])", text)]


def counts(text: str) -> list[int]:
    """Whole numbers that are no part of a release, a share or a name."""
    return [
        int(number.replace(",", ""))
        for number in re.findall(r"(?<![\w.,-])\d{1,3}(?:,\d{3})+(?![\w.])|(?<![\w.,-])\d{2,}(?![\w.,%])", text)
    ]


def of_shares(row: Row, text: str) -> list[Change]:
    """Both ends of a range."""
    found = shares(text)
    if not found:
        raise CannotExpress("the value of the remedy is not stated: share of the GPU")
    server = "sglang" if "sglang" in str(row.get("framework")).lower() else "vllm"
    names = ("mem_fraction_static", *SHARES) if server == "sglang" else SHARES
    return [setter(*names, value=value) for value in found]


def of_counts(names: tuple[str, ...], what: str, cue: str) -> Callable[[Row, str], list[Change]]:
    def changes(row: Row, text: str) -> list[Change]:
        beside = re.search(rf"(?:{cue})\D{{0,30}}?(\d[\d,]*)", text, re.IGNORECASE)
        found = [int(beside.group(1).replace(",", ""))] if beside else counts(text)
        if len(found) != 1:
            raise CannotExpress(f"the value of the remedy is not stated: {what}")
        return [setter(*names, value=found[0])]

    return changes


def on(*names: str, value: Any = True) -> Callable[[Row, str], list[Change]]:
    return lambda row, text: [setter(*names, value=value)]


def upgraded(row: Row, text: str) -> list[Change]:
    found = re.search(r"(?:>=|\bfrom|\bin|\bto|\bsince|\bupgrade)\s*v?(\d+\.\d+(?:\.\d+)?)", text)
    if not found:
        raise CannotExpress("the release that has the remedy is not stated")
    version = found.group(1)
    if re.search("vllm|sglang", text, re.IGNORECASE) and not re.match("vllm|sglang", str(row.get("framework")), re.IGNORECASE):
        raise CannotExpress("a newer server under the same framework is not supported yet")
    return [lambda changed: {**copy.deepcopy(changed), "version": version}]


def more_gpus(row: Row, text: str) -> list[Change]:
    found = re.search(r"(\d+)\s*(?:gpus|cards|h100|a100|h200|h20)", text, re.IGNORECASE)
    if not found:
        raise CannotExpress("the value of the remedy is not stated: number of GPUs")
    gpus = int(found.group(1))
    return [lambda changed: {**copy.deepcopy(changed), "n_gpus": gpus}]


def more_host(row: Row, text: str) -> list[Change]:
    found = re.search(r"([\d.]+)\s*(TB|GB|TiB|GiB)", text)
    if not found:
        raise CannotExpress("the value of the remedy is not stated: memory of the host")
    gigabytes = float(found.group(1)) * {"TB": 1000, "GB": 1, "TiB": 1099.512, "GiB": 1.073742}[found.group(2)]
    return [setter("host_ram_gb", value=gigabytes)]


TAGS: dict[str, Callable[[Row, str], list[Change]]] = {
    "raise_mem_fraction": of_shares,
    "lower_mem_fraction": of_shares,
    "lower_max_model_len": of_counts(LENGTHS, "longest context", r"max.?model.?len\w*"),
    "lower_max_num_seqs": of_counts(REQUESTS, "requests at once", r"max.?num.?seqs|max.?running.?requests"),
    "lower_batched_tokens": of_counts(BATCHED, "tokens of a batch", r"batched.?tokens|prefill.?size"),
    "limit_graph_sizes": of_counts(("cuda_graph_max_bs",), "largest graph", r"max.?bs"),
    "lower_micro_batch": of_counts(MICRO, "micro-batch", r"batch\w*"),
    "lower_tokens": of_counts(SAMPLES, "length of the samples", r"length|tokens|context"),
    "fp8_kv": on("kv_cache_dtype", value="fp8"),
    "disable_graphs": on("enforce_eager"),
    "fused_loss": on("fused_loss"),
    "fused_optimizer": on("fused_optimizer"),
    "flash_attention": on("attention", value="flash"),
    "grad_checkpointing": on("gradient_checkpointing"),
    "expandable_segments": on("expandable_segments"),
    "offload_optimizer": on("optimizer_offload"),
    "offload_params": on("param_offload"),
    "less_offload": on("param_offload", value=False),
    "staged_wakeup": on("multi_stage_wake_up"),
    "chunk_logits": on("entropy_from_logits_with_chunking"),
    "no_accumulation": on("gradient_accumulation_steps", value=1),
    "free_other_process": on("others_bytes", value=0),
    "upgrade": upgraded,
    "more_gpus": more_gpus,
    "more_host_ram": more_host,
}

# Counter-examples of one word.
COUNTER: dict[str, Row] = {
    "fsdp1": {"trainer": "fsdp1"},
    "fsdp2": {"trainer": "fsdp2"},
    "megatron": {"trainer": "megatron"},
    "enforce_eager": {"enforce_eager": True},
    "eager": {"enforce_eager": True},
    "bf16": {"dtype": "bf16"},
    "gradient checkpointing": {"gradient_checkpointing": True},
}
NAMES = {"gpus": "n_gpus", "utilization": "gpu_memory_utilization"}


def counter_example(text: Any) -> Row:
    """ "max_num_seqs=64, tp=4", or one word that is known, as settings."""
    words = str(text).strip()
    if words.lower() in COUNTER:
        return COUNTER[words.lower()]
    if isinstance(text, dict):
        return dict(text)
    settings: Row = {}
    for part in re.split(r",\s*|\s+and\s+", words):
        found = re.fullmatch(r"([A-Za-z_.]+)\s*(?:=|\s)\s*([\w.]+)", part.strip())
        if not found:
            raise CannotExpress("the counter-example is not understood")
        value = found.group(2)
        number: Any = int(value) if value.isdigit() else float(value) if re.fullmatch(r"\d*\.\d+", value) else value
        settings[NAMES.get(found.group(1), found.group(1))] = {"true": True, "false": False}.get(value.lower(), number)
    return settings


def applied(row: Row, settings: Row) -> Row:
    fields: Row = {key: settings[key] for key in ("n_gpus", "gpu", "model", "version") if key in settings}
    return {**with_settings(row, **{key: value for key, value in settings.items() if key not in fields}), **fields}


def failing(row: Row) -> Row:
    """The settings that failed: `fails_with` tells what has to be added to what works."""
    config = row.get("config") or {}
    if not isinstance(config, dict):
        raise CannotExpress("the settings are no object")
    told = config.get("fails_with")
    return row if told is None else applied(row, counter_example(told))


def has_remedy(row: Row) -> bool:
    config = row["config"] if isinstance(row.get("config"), dict) else {}
    return (row.get("remedy_from") == "source" and bool(row.get("remedy"))) or any(
        config.get(name) for name in ("works_with", "works_without", "fails_with")
    )


def remedied(row: Row) -> list[Row]:
    """The report with the remedy applied: every way that the words name, each of which is said to be enough."""
    config = row.get("config") or {}
    if config.get("fails_with"):
        counter_example(config["fails_with"])
        return [row]
    if config.get("works_with"):
        return [applied(row, counter_example(config["works_with"]))]
    if config.get("works_without"):
        name = str(config["works_without"]).strip()
        if name not in config:
            raise CannotExpress("the counter-example is not understood")
        return [{**row, "config": {key: value for key, value in config.items() if key != name}}]
    text, tags = str(row.get("remedy") or ""), list(row.get("remedy_tags") or [])
    if not tags:
        raise CannotExpress("the remedy has no tag")
    unknown = [tag for tag in tags if tag not in TAGS]
    if unknown:
        raise CannotExpress(f"the remedy {unknown[0]} is not mapped")
    together = len(tags) == 1 or bool(re.search(r"\bAND\b|\+|\bwith\b", text)) or (" and " in text and " or " not in text)
    changes = [TAGS[tag](row, text) for tag in tags]
    if not together:
        return [change(row) for several in changes for change in several]
    out = [row]
    for several in changes:
        out = [change(changed) for changed in out for change in several]
    return out
