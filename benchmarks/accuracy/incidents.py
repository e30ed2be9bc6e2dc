"""Servers that refused to start and said in figures why: what a request needs, what fits, what was asked of the card."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from corpus import CannotExpress, Case, Row, find_gpu
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


def incident_cases(row: Row, corpus: Path) -> list[Case]:
    numbers: Any = row.get("numbers_bytes") or {}
    return [
        case_of(row, corpus, metric, figure, int(numbers[key]))
        for metric, (key, figure) in PRINTED.items()
        if isinstance(numbers.get(key), int) and (metric != "requested" or numbers.get("total"))
    ]
