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

# Dates of the releases' tags, for logs that name a day: the newest release of that day. sgl-project/sglang; vllm-project/vllm up
# to 0.10.0, after that the first log of a release.
RELEASES = {
    "sglang": (("2025-07-05", "0.4.9"), ("2025-09-11", "0.5.2"), ("2025-10-23", "0.5.4"), ("2026-05-16", "0.5.12"),
               ("2026-06-10", "0.5.13"), ("2026-06-25", "0.5.14"), ("2026-07-09", "0.5.15"), ("2026-07-24", "0.5.16"),
               ("2026-08-20", "0.5.18")),
    "vllm": (("2024-10-14", "0.6.3"), ("2024-12-17", "0.6.5"), ("2025-02-20", "0.7.3"), ("2026-07-06", "0.24.0")),
}  # fmt: skip


def version_of(row: Row, metric: str = "") -> str:
    """The first release that is named ("0.19.0"; the older one of two), else the newest of the day that is named."""
    said = str(row.get("engine_version") or "")
    if any(word in said.lower() for word in ("fork", "ktransformers")):
        raise CannotExpress("a fork of the engine is not supported yet")
    found = re.search(r"(?<![\d.])(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)(?![\d])", said)
    if found:
        return found.group(1)
    day = re.search(r"20\d\d-\d\d(-\d\d)?", said)
    if day:
        date = day.group(0) if day.group(1) else f"{day.group(0)}-01"
        older = [release for since, release in RELEASES[str(row.get("engine"))] if since <= date]
        if older and (
            older[-1] != RELEASES[str(row.get("engine"))][-1][1] or row.get("engine") == "sglang" or date > "2026-07-06"
        ):
            return older[-1]
    if metric == "weights" and row.get("engine_gen") == "V0":
        return "0.7.3"  # they are the same in all of them
    raise CannotExpress("the engine's version is not stated")


def scheme(bits: int, kind: str, **more: Any) -> Row:
    weights = {"num_bits": bits, "type": kind, **more}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


# Words of a row's quantisation and of its model's name, and the quantization_config that checkpoints of that name have.
SCHEMES: tuple[tuple[tuple[str, ...], Row], ...] = (
    (("mxfp4",), {"quant_method": "mxfp4"}),
    (("fp8 block",), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    (("gptq",), {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}),
    (("compressed-tensors", "fp8-dynamic"), scheme(8, "float", strategy="channel")),
    (("compressed-tensors", "w8a8"), scheme(8, "int", strategy="channel")),
)


# What is known of checkpoints whose config.json is not beside the corpus: words of the model's name, and how they are stored.
EXPERTS_ONLY = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
TOWERS = ["model.vision_tower", "model.embed_vision"]


def awq(group: int) -> Row:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "modules_to_not_convert": TOWERS}


CHECKPOINTS: tuple[tuple[str, Row], ...] = (
    # mattbucci/2x-3090-GA102-300-A1-sglang-inference 84aca72, scripts/quantize/convert_gemma4_{26b,31b}_ct_to_awq.py
    ("gemma-4-26b-awq", awq(32)),
    ("gemma-4-31b-awq", awq(128)),
    # its config.json: routed experts in groups of 32; shared experts, attention, dense block and head in 16 bits
    ("kimi-k2-thinking", {**scheme(4, "int", strategy="group", group_size=32, symmetric=True), "ignore": EXPERTS_ONLY}),
    # Qwen's FP8 checkpoints of this family: head, gates and the two narrow projections of linear attention in 16 bits
    (
        "qwen3.8-27b-fp8",
        {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "in_proj_a", "in_proj_b", "in_proj_ba", "visual"],
        },
    ),
)

# What a source says of all its runs, and a row does not repeat.
# Servers over two nodes of which the logs have one's memory: that of the node with less decides (the blocks that follow from the
# tokens are whole numbers, and 4 to 17 % fewer than the logged memory would hold).
ONE_NODE_LOGGED = ("jasl/vllm-ds4-sm120-harness",)

SOURCES: dict[str, Row] = {
    # scripts/common.sh exports PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    "mattbucci/2x-3090-GA102-300-A1-sglang-inference": {"expandable_segments": True},
}

# Published values where the stored mirror of a config.json has others: google/gemma-3-* names no positions, which is
# Gemma3TextConfig's default (transformers 5.23).
PUBLISHED: dict[str, Row] = {f"google/gemma-3-{size}-it": {"max_position_embeddings": 131072} for size in ("4b", "12b", "27b")}


# Words by which a row names the quant_method of a config.json: a name of the model can lead to the file of another checkpoint.
OWN_WORDS = {
    "fp8": ("fp8",),
    "modelopt": ("nvfp4", "fp4"),
    "compressed-tensors": ("compressed-tensors",),
    "mxfp4": ("mxfp4",),
    "awq": ("awq",),
    "gptq": ("gptq",),
}


def with_quantization(config: Row, row: Row) -> Row:
    """The config.json with the formats that the row names, where the file that is known has none."""
    inner = config.get("text_config")
    own = config.get("quantization_config") or (inner.get("quantization_config") if isinstance(inner, dict) else None)
    if not row.get("quantization"):
        said = f"{row.get('model')} {row.get('notes')}".lower()
        if any(word in said for word in ("4-bit", "4bit", "low-bit", "awq", "nvfp4")):
            raise CannotExpress("the quantisation is not understood")
        if own and row.get("dtype") is not None and "fp8" not in said:
            return without_quantization(config)
        return config
    words = " ".join(str(row.get(key) or "") for key in ("quantization", "model")).lower()
    if own and any(word in words for word in OWN_WORDS.get(str(own.get("quant_method") or own.get("quant_algo")), ())):
        if any(isinstance(value, dict) and "_first" in value for value in own.values()):
            if own.get("quant_method") != "fp8":
                raise CannotExpress("the list of modules in 16 bits is cut short")
            own = {key: value for key, value in own.items() if not (isinstance(value, dict) and "_first" in value)}
        return {**without_quantization(config), "quantization_config": own}
    for name, answer in CHECKPOINTS:
        if name in words:
            return {**without_quantization(config), "quantization_config": answer}
    for needed, answer in SCHEMES:
        if all(word in words for word in needed):
            return {**without_quantization(config), "quantization_config": answer}
    if "awq" in words or "w4a16" in words or "int4" in words:
        raise CannotExpress("which parts a 4-bit checkpoint leaves in 16 bits is not stated")
    raise CannotExpress("the quantisation is not understood")


def without_quantization(config: Row) -> Row:
    out = {key: value for key, value in config.items() if key != "quantization_config"}
    if isinstance(out.get("text_config"), dict):
        out["text_config"] = {key: value for key, value in out["text_config"].items() if key != "quantization_config"}
    return out


def flag_of(row: Row, name: str) -> str:
    """The value of "name=value" or "--name value" in the row's flags; "" when it is not there."""
    found = re.search(rf"\b{name.replace('_', '[-_]')}[= ]([^\s\],;]+)", str(row.get("flags") or ""))
    return found.group(1) if found else ""


def drafts(row: Row) -> Row:
    """The tokens that are guessed ahead, by the model's own blocks only."""
    said = str(row.get("speculative") or "")
    if not said or said == "None":
        return {}
    found = re.fullmatch(r"(?:mtp|nextn)[- ]?(\d*)", said.lower())
    if not found:
        raise CannotExpress(f"speculative decoding with {said} is not supported yet")
    return {"draft_tokens": int(found.group(1) or 1)}


def server_of(row: Row, metric: str = "") -> Row:
    engine = str(row.get("engine"))
    if engine not in ("vllm", "sglang"):
        raise CannotExpress(f"the engine {engine} is not supported yet")
    flags = str(row.get("flags") or "").lower()
    if "patched" in flags:  # how many experts stay on the GPU, and the tokens of the cache, are that run's own
        raise CannotExpress("a build that places experts by a plan of its own is not supported yet")
    tensor, pipeline, data = (int(row.get(key) or 1) for key in ("tp", "pp", "dp"))
    server: Row = {"engine": f"{engine} {version_of(row, metric)}", **drafts(row)}
    inside = engine == "sglang" and "dp-attention" in flags  # groups of the tensor-parallel ranks
    if data > 1 and inside:
        if "deepep" in flags or "ep deployment" in flags:
            raise CannotExpress("which experts are copied is not stated, and buffers of DeepEP are not supported yet")
        server["attention_data"] = data
    elif data > 1 and engine == "vllm" and (row.get("ep") or "expert" in flags):
        server["attention_data"] = data
    all_ranks = tensor * (data if engine == "vllm" else 1)
    expert = (all_ranks if row["ep"] else 1) if isinstance(row.get("ep"), bool) else int(row.get("ep") or 1)
    parts = {"d": 1 if inside else data, "t": tensor, "p": pipeline, "e": expert}
    server["layout"] = "".join(f"{letter}{n}" for letter, n in parts.items() if n > 1 or letter == "t")
    names = {"max_model_len": "max_model_len", "max_num_batched_tokens": "batched_tokens", "max_num_seqs": "max_running_requests"}
    for theirs, ours in names.items():
        if isinstance(row.get(theirs), int):
            server[ours] = row[theirs]
    fraction = "gpu_memory_utilization" if engine == "vllm" else "mem_fraction_static"
    if row.get(fraction) is not None:
        server[fraction] = row[fraction]
    if engine == "sglang":
        if ratio := flag_of(row, "swa_full_tokens_ratio"):
            server["swa_full_tokens_ratio"] = float(ratio)
        if page := flag_of(row, "page_size"):
            server["page_tokens"] = int(page)
    if offload := flag_of(row, "cpu_offload_gb"):
        server["cpu_offload"] = f"{float(offload):g}GiB"
    if groups := flag_of(row, "decode_context_parallel_size"):
        server["decode_context"] = int(groups)
    server |= SOURCES.get(str((row.get("source") or {}).get("repo")), {})
    server["enforce_eager"] = bool(row.get("enforce_eager"))
    return server


def server_job(row: Row, metric: str) -> Row:
    apart: Row = {}
    if str(row.get("dtype")) in ("float16", "float32"):
        apart["weights"] = {"float16": "fp16", "float32": "fp32"}[str(row["dtype"])]
    if str(row.get("kv_cache_dtype") or "auto").startswith("fp8"):
        apart["kv"] = "fp8"
    total = row.get("gpu_total_gib")
    if isinstance(total, (int, float)):
        apart["total_bytes"] = round(total * GIB)
    server = server_of(row, metric)
    replicas = 1 if "attention_data" in server and row.get("engine") == "sglang" else int(row.get("dp") or 1)
    gpus = int(row.get("tp") or 1) * int(row.get("pp") or 1) * replicas
    try:
        gpu = find_gpu(row.get("gpu"))
    except CannotExpress:
        if metric not in ("weights", "tokens_of_pool"):
            raise
        gpu = "H100-80GB"  # bytes of weights and of a token are the same on every card
    return {"gpus": f"{gpus} x {gpu}", "model": str(row.get("model")), "server": server, "apart": apart}


def model_of(row: Row) -> str:
    """The model's name without the remarks that stand beside it."""
    name = str(row.get("model") or "").split(" (")[0].split("; ")[0].strip()
    return re.sub(r"^(GLM-[\d.]+) .*$", r"zai-org/\1", re.sub(r" (NVFP4|class|family|FP4)$", "", name))


def config_of(row: Row, corpus: Path) -> Row:
    if not row.get("model"):
        raise CannotExpress("the model is not named")
    try:
        config = find_config(model_of(row), corpus)
    except CannotExpress:  # "Lingshu-32B (Qwen2.5-VL-32B)": trained from the model in brackets
        base = re.search(r" \(([\w.-]+)\)$", str(row["model"]))
        if not base:
            raise
        config = find_config(base.group(1), corpus)
    published = PUBLISHED.get(model_of(row), {})
    if published and isinstance(config.get("text_config"), dict):
        config = {**config, "text_config": {**config["text_config"], **published}}
    return config


def unstated(row: Row, metric: str) -> str:
    """What the cache depends on and the row does not say; "" when it says all."""
    if row.get("completeness") == "full":
        return ""
    first = row.get("engine_gen") == "V0"  # its batch follows from the context
    needed = ["gpu_memory_utilization" if row.get("engine") == "vllm" else "mem_fraction_static", "max_model_len"]
    if row.get("engine") == "vllm" and not first:
        needed.append("max_num_batched_tokens")
    missing = [key for key in needed if row.get(key) is None and not (key == "max_model_len" and row.get("engine") == "sglang")]
    return f"{missing[0]} is not stated" if missing else ""


def case_of(row: Row, corpus: Path, metric: str, value: int) -> Case:
    figure = "kv_tokens" if metric == "tokens_of_pool" else metric
    try:
        if metric == "tokens_of_pool" and (row.get("source") or {}).get("repo") in ONE_NODE_LOGGED:
            raise CannotExpress("of two nodes the one with more memory was logged")
        missing = unstated(row, metric) if metric not in ("weights", "tokens_of_pool") else ""
        job = server_job(row, metric)
        config = config_of(row, corpus)
        if metric == "tokens_of_pool":
            config = without_quantization(config)
            job["server"]["kv_cache_memory"] = f"{round(row['measured']['available_kv_gib'] * GIB)}B"
        else:
            if "offload" in str(row.get("flags") or "").lower() and not job["server"].get("cpu_offload"):
                raise CannotExpress("weights in host memory are not supported yet")
            config = with_quantization(config, row)
            if missing:
                raise CannotExpress(missing)
    except CannotExpress as reason:
        return Case(row["id"], metric, value, "serving", {}, "", figure, str(reason))
    return Case(row["id"], metric, value, "serving", job, json.dumps(config), figure)


def inference_cases(row: Row, corpus: Path) -> list[Case]:
    measured = row["measured"]
    table = VLLM if row.get("engine") == "vllm" else SGLANG
    out = []
    for metric, (key, unit) in table.items():
        value: Any = measured.get(key)
        if isinstance(value, (int, float)) and value > 0:
            out.append(case_of(row, corpus, metric, round(value * unit)))
    pool = measured.get("available_kv_gib")
    if row.get("engine") == "vllm" and isinstance(pool, (int, float)) and pool > 0 and measured.get("kv_tokens"):
        out.append(case_of(row, corpus, "tokens_of_pool", int(measured["kv_tokens"])))
    return out
