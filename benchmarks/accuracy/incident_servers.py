"""Reports on vLLM and SGLang as what was typed to start the server."""

from __future__ import annotations

import json
import re
from pathlib import Path

from corpus import CannotExpress, Row
from incident_words import Choice, Settings, card, model_config, release

# Where a report names no release: these must agree.
RELEASES = {
    "vllm": ("0.6.3", "0.7.3", "0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.13.0", "0.16.0", "0.19.0", "0.22.0", "0.24.0"),
    "sglang": ("0.4.5", "0.4.9", "0.5.2", "0.5.5", "0.5.10", "0.5.14", "0.5.18"),
}

# Of a message that one of them prints: the check of free memory came with 0.9.0.
WITH_THE_CHECK = {**RELEASES, "vllm": RELEASES["vllm"][3:]}

COUNTS = {
    "vllm": {
        "max-num-seqs": ("max_num_seqs",),
        "max-num-batched-tokens": ("max_num_batched_tokens", "batched_tokens"),
        "max-model-len": ("max_model_len", "vllm_maxlen", "max_seq_len", "context"),
        "block-size": ("block_size",),
        "max-loras": ("max_loras",),
        "max-lora-rank": ("max_lora_rank",),
        "cpu-offload-gb": ("cpu_offload_gb",),
    },
    "sglang": {
        "max-running-requests": ("max_running_requests", "max_num_seqs"),
        "chunked-prefill-size": ("chunked_prefill_size", "chunked_prefill"),
        "context-length": ("context_length", "max_model_len", "context"),
        "max-total-tokens": ("max_total_tokens",),
        "cuda-graph-max-bs": ("cuda_graph_max_bs",),
        "page-size": ("page_size",),
        "max-prefill-tokens": ("max_prefill_tokens",),
        "max-loras-per-batch": ("max_loras_per_batch",),
        "max-lora-rank": ("max_lora_rank",),
    },
}
SWITCHES = {
    "vllm": {
        "enforce-eager": ("enforce_eager", "vllm_enforce_eager"),
        "enable-expert-parallel": ("enable_expert_parallel", "expert_parallel"),
        "enable-lora": ("enable_lora",),
        "enable-chunked-prefill": ("enable_chunked_prefill",),
        "enable-prefix-caching": ("enable_prefix_caching",),
    },
    "sglang": {
        "disable-cuda-graph": ("disable_cuda_graph", "enforce_eager"),
        "enable-dp-attention": ("enable_dp_attention", "dp_attention"),
        "disable-radix-cache": ("disable_radix_cache",),
    },
}
WORDS = {
    "vllm": {"dtype": ("dtype",), "kv-cache-dtype": ("kv_cache_dtype",), "quantization": ("quantization",)},
    "sglang": {"dtype": ("dtype",), "kv-cache-dtype": ("kv_cache_dtype",), "quantization": ("quantization",)},
}
SHARE = {"vllm": "gpu-memory-utilization", "sglang": "mem-fraction-static"}


def engine_of(row: Row) -> str:
    """vllm or sglang, of a report on a server by itself (that another program started, perhaps); "" otherwise."""
    words = str(row.get("framework") or "")
    omni = "(-omni)?" if before_loading(row) else ""  # its stages are such engines
    found = re.match(rf"(vllm|sglang){omni}( \d[\w.]*)?( via .*| \(.*\))?$", words, re.IGNORECASE)
    return found.group(1).lower() if found else ""


def before_loading(row: Row) -> bool:
    """The engine looked at the free memory and went no further: any model does, and what others hold is told."""
    numbers = row.get("numbers_bytes") or {}
    return "on startup is less than desired" in str(row.get("raw_message") or "") and bool(numbers.get("total"))


def server_ask(row: Row, corpus: Path, choice: Choice) -> Row:
    engine = engine_of(row)
    given = Settings(row.get("config"))
    early = before_loading(row)
    quantization = given.left.get("quantization")
    config = None if early else model_config(row, corpus, str(quantization) if quantization else None)
    tensor, stages, data = given.count("tp"), given.count("pp"), given.count("dp")
    gpus = row.get("n_gpus")
    degrees = (tensor or 1) * (stages or 1) * (data or 1) if engine == "vllm" else (tensor or 1) * (stages or 1)
    if gpus is None and tensor is None and stages is None and not early:
        raise CannotExpress("the number of GPUs is not stated")
    if isinstance(gpus, int) and gpus != degrees and not early:
        raise CannotExpress("how the server is laid out over the GPUs is not stated")
    flags: list[str] = []
    if early:
        tensor, stages, data = 1, 1, 1
    for flag, value in (("tensor-parallel-size", tensor), ("pipeline-parallel-size", stages), ("data-parallel-size", data)):
        name = flag if engine == "vllm" else {"t": "tp-size", "p": "pp-size", "d": "dp-size"}[flag[0]]
        if value and value > 1:
            flags += [f"--{name}", str(value)]
    given.take("nodes")
    share = given.share("gpu_memory_utilization", "mem_fraction_static", "mem_fraction", "utilization", "fraction")
    if share is not None:
        flags += [f"--{SHARE[engine]}", f"{share:g}"]
    for flag, names in COUNTS[engine].items():
        if (count := given.count(*names)) is not None and not early:
            flags += [f"--{flag}", str(count)]
    for flag, names in SWITCHES[engine].items():
        if given.flag(*names) and not early:
            flags.append(f"--{flag}")
    for flag, names in WORDS[engine].items():
        if (word := given.word(*names)) is not None and not early:
            flags += [f"--{flag}", {"bf16": "bfloat16", "fp16": "half"}.get(word, word)]
    others = given.take("others_bytes")
    if not early:
        given.done()
    numbers = row.get("numbers_bytes") or {}
    if early:
        others = numbers["total"] - numbers["free"] if others is None else others
        # whoever is named here: the share of the card does not depend on the model
    version = release(row.get("version")) or choice.of("the release", (WITH_THE_CHECK if early else RELEASES)[engine])
    model = "Qwen/Qwen3-0.6B" if early else "{model}"
    start = ["vllm", "serve", model] if engine == "vllm" else ["python", "-m", "sglang.launch_server", "--model-path", model]
    if early:
        flags += ["--max-model-len" if engine == "vllm" else "--context-length", "1024"]
    return {
        "command": [*start, *flags],
        "version": version,
        "gpu": card(row, choice),
        "config": json.dumps(config) if config else "",
        **({"others": f"{max(0, round(others))}B"} if others else {}),
    }
