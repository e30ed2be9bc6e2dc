"""Rows of reinforcement learning on one GPU as native jobs: trainer and server in one process, which AgileRL measured.

Its rig (tools/memory_profiling/harness.py of the branch memory/profiling-rig) makes an agent, generates one group of responses
to one prompt of a quarter of the context, puts the engine to sleep and trains on the group once. The figures are peaks of the
whole device as NVML sees it, and torch's own statistics, in which a sleeping engine's weights and cache count as allocated.

The rig makes every response as long as it may be (min_output_tokens, since its commit c02e7ac8 of 30 July 2026), so that no row is
padded: `padding_mask: false`. The sweeps of SmolLM2, nf4 and longctx are older and sampled their lengths. Which of their rows were
padded is not stated; where torch's allocated peak tells, it is taken from there (padded.py, docs/agilerl.md).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from corpus import CannotExpress, Case, Row, find_config, find_gpu

TRAINING = {
    "device": "device_peak_bytes",
    "asleep": "sleeping_baseline_bytes",
    "allocated": "torch_max_allocated_bytes",
    "reserved": "torch_max_reserved_bytes",
}

SWEEP = "agilerl/{}-Instruct@NVIDIA-{}".format
SMOL, LONG = SWEEP("main/SmolLM2-1.7B", "L4"), SWEEP("pending/Qwen2.5-0.5B", "A100-SXM4-40GB.longctx")
# every response is as long as it may be
PINNED = {
    SWEEP("main/OLMoE-1B-7B-0924", "A100-SXM4-40GB"),
    SWEEP("main/Qwen2.5-0.5B", "A100-SXM4-40GB"),
    SWEEP("main/Qwen2.5-0.5B", "L4"),
}
# of the other sweeps: what padded.py prints
PADDED = {f"{SMOL}/{row}" for row in (17, 21, 23, 25, 29, 31)} | {f"{LONG}/{row}" for row in (20, 22)}


def whole(value: Any, name: str) -> int:
    if not isinstance(value, (int, float)) or value < 1:
        raise CannotExpress(f"{name} is not stated")
    return int(value)


def job_of(row: Row) -> Row:
    knobs = row["knobs"]
    versions = row.get("versions") or {}
    if not versions.get("vllm"):
        raise CannotExpress("the engine's version is not stated")
    quantization = row.get("quantization") or "none"
    if quantization not in ("none", "nf4"):
        raise CannotExpress(f"{quantization} weights are not supported yet")
    if row.get("phase") == "training" and (row.get("nvml_polled_bytes") or 0) < row["device_peak_bytes"]:
        # the device gave back while torch took: the rig opened the row before an earlier process was gone
        raise CannotExpress("another process left the device during the measurement")
    if knobs.get("gpu_memory_utilization") is None:
        raise CannotExpress("gpu_memory_utilization is not stated")
    tokens, group = whole(knobs.get("seq_len"), "seq_len"), whole(knobs.get("group_size"), "group_size")
    rank = whole(knobs.get("lora_rank"), "lora_rank")
    sequences = min(whole(knobs.get("micro_batch"), "micro_batch"), group)
    prompt = max(tokens // 4, 8)
    lora: Row = {"rank": rank}
    if quantization == "nf4":  # of the trainer alone: the rig hands no quantisation to the engine
        lora |= {"base": "nf4", "base_double_quant": True, "base_compute": "bf16", "prepare_kbit": True}
    targets = str(knobs.get("lora_target_modules") or "all-linear")
    if targets != "all-linear":
        lora["targets"] = [target.strip() for target in targets.split(",")]
    return {
        "gpus": f"1 x {find_gpu(row.get('gpu'))}",
        "framework": "agilerl 2.8",
        "prompt_tokens": prompt,
        "response_tokens": tokens - prompt,
        "sequences_per_step": group,
        "samples_per_prompt": group,
        "rollout": {
            "engine": f"vllm {versions['vllm']}",
            "gpu_memory_utilization": knobs["gpu_memory_utilization"],
            "max_running_requests": group,
            "concurrency": group,
            "lora": {"slots": 1, "rank": rank},
        },
        "actor": {
            "engine": "single",
            "beside": "rollout",
            "sequences_per_micro_batch": sequences,
            "sequence_tokens": tokens,
            "micro_batches": math.ceil(group / sequences),
            "padding_mask": row["id"] in PADDED,
            "lora": lora,
        },
    }


def server_alone(job: Row) -> Row:
    """The same engine in a process of its own, for the generation of models whose training is not described.

    AgileRL's budget of tokens (agilerl/utils/llm_utils.py) is written out: it is a default of the trainer's framework.
    """
    tokens, group = job["prompt_tokens"] + job["response_tokens"], job["samples_per_prompt"]
    kept = ("gpus", "prompt_tokens", "response_tokens", "samples_per_prompt")
    budget = min(group * tokens, max(tokens, group * 8192))
    server = {**job["rollout"], "max_model_len": tokens, "batched_tokens": budget}
    return {**{key: job[key] for key in kept}, "server": server}


def rl_cases(row: Row, corpus: Path) -> list[Case]:
    training = row.get("phase") == "training"
    job: Row = {}
    why_not, config = "", ""
    try:
        found = find_config(row.get("model"), corpus)
        job, config = job_of(row), json.dumps(found)
        if not training and ("vision_config" in found or "audio_config" in found):
            job = server_alone(job)
    except CannotExpress as reason:
        why_not = str(reason)
    out = []
    for metric, key in (TRAINING if training else {"device": "device_peak_bytes"}).items():
        value = row.get(key)
        if not isinstance(value, (int, float)) or value <= 0:
            continue
        figure = f"{'training' if training else 'generation'}_{metric}"
        out.append(Case(row["id"], metric, int(value), "colocated", job, config, figure, why_not))
    return out
