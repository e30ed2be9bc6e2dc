"""Serving rows as native jobs: what vLLM and SGLang logged at start-up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from corpus import GIB, CannotExpress, Case, Row, find_config, find_gpu

# metric: (key of the measured figures, bytes of one unit)
VLLM = {
    "weights": ("weights_gib", GIB),
    "non_kv": ("total_non_kv_gib", GIB),
    "kv_pool": ("available_kv_gib", GIB),
    "kv_tokens": ("kv_tokens", 1),
}
SGLANG = {"weights": ("weights_gb", GIB), "kv_tokens": ("max_total_num_tokens", 1)}


def version_of(row: Row) -> str:
    """The first release that is named: "0.19.0", the one before a development build, the older one of two."""
    said = str(row.get("engine_version") or "")
    if any(word in said.lower() for word in ("fork", "ktransformers")):
        raise CannotExpress("a fork of the engine is not supported yet")
    found = re.search(r"(?<![\d.])(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)(?![\d])", said)
    if not found:
        raise CannotExpress("the engine's version is not stated")
    return found.group(1)


def weight_format(row: Row) -> str:
    quantisation = " ".join(str(row.get(key) or "") for key in ("quantization", "model", "notes")).lower()
    if not row.get("quantization"):
        return {"float16": "fp16", "float32": "fp32"}.get(str(row.get("dtype")), "bf16")
    if "awq" in quantisation:
        raise CannotExpress("which parts an AWQ checkpoint leaves in 16 bits is not stated")
    for words, name in (
        (("mxfp4",), "mxfp4"),
        (("nvfp4", "fp4"), "nvfp4"),
        (("w8a8", "fp8"), "fp8"),
        (("w4a16", "gptq", "int4"), "int4"),
    ):
        if any(word in quantisation for word in words):
            return name
    raise CannotExpress("the quantisation is not understood")


def server_job(row: Row) -> Row:
    engine = str(row.get("engine"))
    if engine not in ("vllm", "sglang"):
        raise CannotExpress(f"the engine {engine} is not supported yet")
    if engine == "vllm" and row.get("engine_gen") == "V0":
        raise CannotExpress("vLLM V0 is not supported yet")
    if row.get("speculative"):
        raise CannotExpress("speculative decoding is not supported yet")
    if (row.get("dp") or 1) != 1:
        raise CannotExpress("data-parallel attention is not supported yet")
    server: Row = {"engine": f"{engine} {version_of(row)}"}
    if "swa" in str(row.get("flags") or "") and "ratio" in str(row.get("flags")):
        raise CannotExpress("swa-full-tokens-ratio is not supported yet")
    tensor, pipeline = int(row.get("tp") or 1), int(row.get("pp") or 1)
    server["layout"] = f"t{tensor}" + (f"p{pipeline}" if pipeline > 1 else "")
    names = {"max_model_len": "max_model_len", "max_num_batched_tokens": "batched_tokens", "max_num_seqs": "max_running_requests"}
    for theirs, ours in names.items():
        if isinstance(row.get(theirs), int):
            server[ours] = row[theirs]
    fraction = "gpu_memory_utilization" if engine == "vllm" else "mem_fraction_static"
    if row.get(fraction) is not None:
        server[fraction] = row[fraction]
    server["enforce_eager"] = bool(row.get("enforce_eager"))
    apart: Row = {"weights": weight_format(row)}
    kv = str(row.get("kv_cache_dtype") or "auto")
    if kv.startswith("fp8"):
        apart["kv"] = "fp8"
    total = row.get("gpu_total_gib")
    if isinstance(total, (int, float)):
        apart["total_bytes"] = round(total * GIB)
    return {
        "gpus": f"{tensor * pipeline} x {find_gpu(row.get('gpu'))}",
        "model": str(row.get("model")),
        "server": server,
        "apart": apart,
    }


def unstated(row: Row) -> str:
    """What the cache depends on and the row does not say; "" when it says all."""
    if row.get("completeness") == "full":
        return ""
    needed = [
        "gpu_memory_utilization" if row.get("engine") == "vllm" else "mem_fraction_static",
        "max_model_len",
        "max_num_batched_tokens",
    ]
    missing = [key for key in needed if row.get(key) is None]
    return f"{missing[0]} is not stated" if missing else ""


def inference_cases(row: Row, corpus: Path) -> list[Case]:
    measured = row["measured"]
    table = VLLM if row.get("engine") == "vllm" else SGLANG
    job: Row = {}
    why_not, config = "", ""
    try:
        job = server_job(row)
        config = json.dumps(find_config(row.get("model"), corpus))
    except CannotExpress as reason:
        why_not = str(reason)
    out = []
    for metric, (key, unit) in table.items():
        value: Any = measured.get(key)
        if not isinstance(value, (int, float)) or value <= 0:
            continue
        reason_here = why_not or (unstated(row) if metric != "weights" else "")
        out.append(Case(row["id"], metric, round(value * unit), "serving", job, config, metric, reason_here))
    return out
