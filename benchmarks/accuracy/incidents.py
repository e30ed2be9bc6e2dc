"""Reports of out-of-memory errors.

`kv_needed`, `longest_request`, `requested`: figures that servers printed when they refused to start. `oom`, of every report: 1 where the
answer to its settings does not fit and breaks first in the phase that was reported, else 0. `remedy`, where somebody else confirmed one: 1
where the settings do not fit and do with the remedy, else 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpus import CannotExpress, Case, Row, find_gpu
from incident_remedies import failing, has_remedy, remedied
from incident_rl import areal_ask, is_areal, is_slime, is_verl, slime_ask, verl_ask
from incident_servers import engine_of, server_ask
from incident_training import is_megatron, is_training, megatron_ask, training_ask
from incident_words import Choice, cards, expand, gpus_of, model_name
from serving import config_of

# metric: (key of the printed numbers, figure of the answer)
PRINTED = {
    "kv_needed": ("kv_needed", "request_bytes"),
    "longest_request": ("estimated_max_len", "longest"),
    "requested": ("requested", "requested"),
}


def server_of(row: Row) -> Row:
    config = row.get("config") or {}
    version = re.search(r"\d+\.\d+(\.\d+)?", str(row.get("version") or ""))
    server: Row = {"engine": f"vllm {version.group(0) if version else '0.19'}", "layout": f"t{config.get('tp') or 1}"}
    if (config.get("pp") or 1) > 1:
        server["layout"] += f"p{config['pp']}"
    if config.get("max_model_len"):
        server["max_model_len"] = int(config["max_model_len"])
    if config.get("gpu_memory_utilization"):
        server["gpu_memory_utilization"] = config["gpu_memory_utilization"]
    return server


def case_of(row: Row, corpus: Path, metric: str, figure: str, value: int) -> Case:
    numbers = row["numbers_bytes"]
    try:
        if not str(row.get("framework")).startswith("vLLM"):
            raise CannotExpress("the message is not vLLM's")
        server, apart = server_of(row), {}
        if metric == "requested":
            apart["total_bytes"] = numbers["total"]
            config: Row = {}
            name = "Qwen/Qwen3-0.6B"  # any: the share of the card does not depend on it
        else:
            if not row.get("version"):
                raise CannotExpress("the engine's version is not stated")
            config, name = config_of(row, corpus), str(row.get("model"))
            config.pop("quantization_config", None)
        if metric == "longest_request":
            server["kv_cache_memory"] = f"{numbers['kv_available']}B"
        try:
            gpu = find_gpu(row.get("gpu"))
        except CannotExpress:
            gpu = "H100-80GB"  # none of the figures depends on it
        gpus = int((row.get("config") or {}).get("tp") or 1) * int((row.get("config") or {}).get("pp") or 1)
        job = {"gpus": f"{gpus} x {gpu}", "model": name, "server": server, "apart": apart}
    except CannotExpress as reason:
        return Case(row["id"], metric, value, "serving", {}, "", figure, str(reason))
    return Case(row["id"], metric, value, "serving", job, json.dumps(config) if config else "", figure)


# ---- whether it was foreseen, and whether the remedy helps

Door = Callable[[Row, Path, Choice], Row]
DOORS: tuple[tuple[Callable[[Row], bool], Door], ...] = (
    (lambda row: bool(engine_of(row)), server_ask),
    (is_verl, verl_ask),
    (is_areal, areal_ask),
    (is_slime, slime_ask),
    (is_megatron, megatron_ask),
    (is_training, training_ask),
)


def door_of(row: Row) -> Door:
    """Who reads the settings. What nobody reads is refused for what its report leaves out, if anything."""
    for is_theirs, door in DOORS:
        if is_theirs(row):
            return door
    for stated in (model_name, lambda it: cards(it.get("gpu")), gpus_of):
        stated(row)
    raise CannotExpress(f"{row.get('framework') or 'the framework'} is not read yet")


def judged_phase(row: Row) -> str:
    phase = str(row.get("phase") or "unknown")
    if phase == "evaluation":
        raise CannotExpress("what is evaluated, and in which batches, is not part of a job")
    if phase == "host" and not any(
        name in dict(row.get("config") or {}) for name in ("host_ram_gb", "host_memory_gb", "host_ram")
    ):
        raise CannotExpress("the memory of the host is not stated")
    return phase


def judged_case(row: Row, corpus: Path, metric: str, build: Callable[[Row, Door, Choice], Row]) -> Case:
    try:
        failed = failing(row)
        phase, door = judged_phase(row), door_of(row)
        choices = [{"open": taken, **asks} for taken, asks in expand(lambda choice: build(failed, door, choice))]
    except CannotExpress as reason:
        return Case(row["id"], metric, 1, "incident", {}, "", "right", str(reason))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        why = f"a field has another type: {type(error).__name__} {str(error)[:60]}"
        return Case(row["id"], metric, 1, "incident", {}, "", "right", why)
    return Case(row["id"], metric, 1, "incident", {"phase": phase, "choices": choices}, "", "right")


def judged_cases(row: Row, corpus: Path) -> list[Case]:
    def oom(failed: Row, door: Door, choice: Choice) -> Row:
        return {"ask": door(failed, corpus, choice)}

    def remedy(failed: Row, door: Door, choice: Choice) -> Row:
        return {"ask": door(failed, corpus, choice), "after": [door(changed, corpus, choice) for changed in remedied(row)]}

    cases = [judged_case(row, corpus, "oom", oom)]
    return [*cases, judged_case(row, corpus, "remedy", remedy)] if has_remedy(row) else cases


def incident_cases(row: Row, corpus: Path) -> list[Case]:
    return printed_cases(row, corpus) + judged_cases(row, corpus)


def printed_cases(row: Row, corpus: Path) -> list[Case]:
    numbers: Any = row.get("numbers_bytes") or {}
    return [
        case_of(row, corpus, metric, figure, int(numbers[key]))
        for metric, (key, figure) in PRINTED.items()
        if isinstance(numbers.get(key), int) and (metric != "requested" or numbers.get("total"))
    ]
