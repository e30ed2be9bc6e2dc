"""Makes tests/data/executed_dora_sharded.jsonl: steps with peft's DoRA under FSDP2 and FSDP1, executed by PyTorch on fake tensors.

    python benchmarks/oracle/execute_dora_sharded.py [--output tests/data/executed_dora_sharded.jsonl]

Models, FSDP and the step are those of fuzz.py; adapters and magnitudes have the base's format. Under FSDP1 they are a part of their
layer's flat parameter (use_orig_params). Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import fuzz
import fuzz_fsdp
import peft
import torch
from execute import ROOT, SMALL, Row

CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **SMALL, "vocab_size": 512, "num_hidden_layers": 6},
    "qwen2": {"model_type": "qwen2", **SMALL, "vocab_size": 512, "num_hidden_layers": 5},
}
ALL = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
USUAL: Row = {
    **{"engine": "fsdp2", "attention": "flash_attention_2", "sequences": 1, "tokens": 256, "recompute": "none"},
    **{"micro_batches": 1, "optimizer": "sgd", "clip": False, "head": "hf_loss", "keep_outputs": False, "every": 1},
    **{"padding": False, "dtype": "bf16", "compute": "bf16", "reduce": "bf16", "ranks": 4, "deferred": False},
    **{"forward_prefetch": False, "reshard": True, "root_reshard": True, "wrap_embedding": False, "wrap_head": False},
}
LORA: Row = {"rank": 16, "dropout": 0.0, "verl": False, "targets": "q_proj v_proj", "format": "storage"}
CASES: list[Row] = [
    {"lora": LORA},
    {"lora": LORA, "recompute": "nonreentrant"},
    {"lora": LORA, "ranks": 2, "micro_batches": 2},
    {"lora": LORA | {"targets": ALL}},
    {"lora": LORA | {"targets": ALL}, "recompute": "nonreentrant", "sequences": 2},
    {"lora": LORA | {"targets": ALL}, "reshard": False},
]
FLAT: Row = {"engine": "fsdp1", "strategy": "FULL_SHARD", "backward_prefetch": "pre", "use_orig_params": True}
FLAT_CASES: list[Row] = [
    {"lora": LORA},
    {"lora": LORA, "recompute": "nonreentrant"},
    {"lora": LORA, "ranks": 3, "micro_batches": 2},
    {"lora": LORA | {"targets": ALL}},
    {"lora": LORA | {"targets": ALL}, "recompute": "nonreentrant", "sequences": 2},
    {"lora": LORA | {"targets": ALL}, "recompute": "reentrant"},
    {"lora": LORA | {"targets": ALL}, "strategy": "SHARD_GRAD_OP"},
    {"lora": LORA | {"targets": ALL}, "dtype": "fp32", "reduce": "fp32"},
    {"lora": LORA | {"targets": ALL, "dropout": 0.1}, "dtype": "fp32", "reduce": "fp32", "recompute": "nonreentrant"},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_dora_sharded.jsonl")
    options = parser.parse_args()
    fuzz.stand_in()
    fuzz.item_of["number"] = 1.0
    plain: Any = peft.LoraConfig
    peft.LoraConfig = lambda **given: plain(**given, use_dora=True)  # type: ignore[misc,assignment]
    by = f"torch {torch.__version__.split('+')[0]}, peft {metadata.version('peft')} executed on fake tensors"
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        lines.append({"config": name, "fields": config})
        for changes in [*CASES, *(FLAT | changes for changes in FLAT_CASES)]:
            case = USUAL | changes
            peaks = fuzz_fsdp.execute(config, case, fuzz.make_model, fuzz.loss_of, fuzz.optimizer_of, fuzz.inputs_of)
            if case["recompute"] != "none":
                del peaks["forward"]  # counted one identity matrix too high, as in execute_dora.py
            job = fuzz.job_of(case)
            job["trainer"]["lora"]["dora"] = True
            if case["engine"] == "fsdp1":
                job["trainer"]["lora"]["own_units"] = False
            targets = len(changes["lora"]["targets"].split())
            words = "/".join(f"{key}={value}" for key, value in changes.items() if key != "lora" and FLAT.get(key) != value)
            if changes["lora"]["dropout"]:
                words += "/dropout"
            row = {"id": f"{name}/dora/{case['engine']}/{targets} targets/{words or 'usual'}", "config": name, "job": job}
            lines.append({**row, "source": by, "peaks": peaks})
            print(lines[-1]["id"], peaks)
    options.output.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
