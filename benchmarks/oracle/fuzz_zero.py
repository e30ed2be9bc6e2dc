"""DeepSpeed's ZeRO for fuzz.py: what is drawn of its settings, and the third step under it, computed by DeepSpeed on the CPU.

    python fuzz_zero.py CONFIG CASE

executes one step, both in JSON, and prints its peaks: DeepSpeed keeps its groups, so every step has a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import execute_zero
import torch
import transformers
from execute import Row
from execute_zero import RANKS
from fuzz_models import some

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "olmo2", "granite", "smollm3", "glm4", "cohere", "arcee")
EXPERTS = ("mixtral", "qwen3_moe")
PLACE = {"LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "DS_ACCELERATOR": "cpu"}
PLACE |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}


def draw(rng: random.Random, case: Row) -> Row:
    """Attention is flash-attention's, as in execute_zero.py; buckets are small as the models are."""
    stage = some(rng, 1, 2, 3, 3)
    zero: Row = {"stage": stage, "reduce_bucket": some(rng, 20_000, 150_000, 2_500_000)}
    if stage == 3:
        zero |= {"prefetch_bucket": some(rng, 0, 5_000, 60_000), "max_live": some(rng, 30_000, 200_000, 1_500_000)}
        zero |= {"max_reuse_distance": some(rng, 0, 50_000, 1_000_000), "persistence_threshold": some(rng, 0, 300, 20_000)}
        zero |= {"sub_group": some(rng, 30_000, 500_000)}
    elif some(rng, True, False):
        zero["overlap_comm"] = True
    out: Row = {"zero": zero, "attention": "flash_attention_2", "dtype": "bf16", "padding": False, "clip": False}
    out |= {"head": "hf_loss", "keep_outputs": False, "optimizer": "adamw", "every": 1}
    own = {"dropout": 0.0, "verl": False, "format": "storage"}
    out["lora"] = case["lora"] | own if case["lora"] and stage == 3 else None
    return out | {"tokens": some(rng, 32, 64, 160), "sequences": rng.randint(1, 3)}


def settings_of(case: Row) -> Row:
    return {"engine": "deepspeed", "layout": "d8", "zero": case["zero"], "kernel_internals": False}


def fullest(config: Row) -> int:
    """The rank that has a piece of most: stages 1 and 2 cut all parameters at even places, and gradients of whole ones are kept."""
    fields = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(config["model_type"], **fields))
    sizes = [parameter.numel() for parameter in model.parameters()]
    piece = -(-sum(sizes) // (2 * RANKS)) * 2
    held = [0] * RANKS
    start = 0
    for size in sizes:
        for rank in range(start // piece, min(RANKS, -(-(start + size) // piece))):
            held[rank] += size
        start += size
    return held.index(max(held))


def execute(config: Row, case: Row) -> Row:
    if config["model_type"] not in (*FAMILIES, *EXPERTS):
        raise ValueError("not computed")
    command = [sys.executable, __file__, json.dumps(config), json.dumps(case)]
    rank = fullest(config) if case["zero"]["stage"] < 3 else 0
    told = subprocess.run(command, env=os.environ | PLACE | {"RANK": str(rank)}, capture_output=True, text=True, check=False)
    lines = [line for line in told.stdout.splitlines() if line.startswith("peaks ")]
    if not lines:
        raise RuntimeError(told.stderr.strip().splitlines()[-1])
    return dict(json.loads(lines[0][6:]))


def adapted(model: Any, case: Row) -> Any:
    import peft

    if case["recompute"] != "none":
        model.enable_input_require_grads()
    words = "all-linear" if case["lora"]["targets"] == "all-linear" else case["lora"]["targets"].split()
    given = peft.LoraConfig(task_type="CAUSAL_LM", r=case["lora"]["rank"], target_modules=words)
    return peft.get_peft_model(model, given, autocast_adapter_dtype=False)


def make_engine(config: Row, case: Row) -> Any:
    import deepspeed
    from execute_parallel import attend

    execute_zero.stand_in(attend)
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16, attn_implementation="executed")
    model.train()
    if case["lora"]:
        model = adapted(model, case)
    if case["recompute"] != "none":
        given = {"use_reentrant": case["recompute"] == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=given)
    asked = {
        "train_micro_batch_size_per_gpu": case["sequences"],
        "gradient_accumulation_steps": case["micro_batches"],
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {execute_zero.SPELLINGS[key]: value for key, value in case["zero"].items()},
    }
    kind = torch.optim.SGD if case["optimizer"] == "sgd" else torch.optim.AdamW
    optimizer = kind([one for one in model.parameters() if one.requires_grad], lr=1e-5, foreach=True)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=asked, dist_init_required=False)[0]


def main() -> None:
    config, case = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    peaks = execute_zero.third_step(make_engine(config, case), case["sequences"], case["tokens"], case["micro_batches"])
    print("peaks " + json.dumps(peaks))


if __name__ == "__main__":
    main()
