"""Makes tests/data/executed_vectors_sharded.jsonl: steps with peft's IA3 and VeRA under FSDP2, executed by PyTorch on fake tensors.

    python benchmarks/oracle/execute_vectors_sharded.py [--output tests/data/executed_vectors_sharded.jsonl]

Models, FSDP2 and the step are those of fuzz.py, the adapters' settings those of execute_vectors.py. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
from importlib import metadata
from pathlib import Path
from typing import Any

import execute_vectors
import fuzz
import fuzz_fsdp
import torch
from execute import ROOT, SMALL, Row
from execute_scaler import item_of
from execute_vectors import IA3, RANK
from row_lines import write_rows

CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **SMALL, "vocab_size": 512, "num_hidden_layers": 6},
    "qwen2": {"model_type": "qwen2", **SMALL, "vocab_size": 512, "num_hidden_layers": 5, "tie_word_embeddings": True},
}
USUAL: Row = {
    **{"engine": "fsdp2", "attention": "flash_attention_2", "sequences": 1, "tokens": 512, "recompute": "none"},
    **{"micro_batches": 1, "optimizer": "adamw", "clip": False, "head": "hf_loss", "keep_outputs": False, "every": 1},
    **{"padding": False, "dtype": "bf16", "compute": "bf16", "reduce": "fp32", "ranks": 4, "deferred": False},
    **{"forward_prefetch": False, "reshard": True, "root_reshard": True, "wrap_embedding": False, "wrap_head": False},
}
OF_IA3: Row = {"kind": "ia3", "rank": 1, "targets": " ".join(IA3), "dropout": 0.0, "verl": False, "format": "fp32"}
OF_VERA: Row = {**OF_IA3, "kind": "vera", "rank": RANK, "targets": "q_proj v_proj", "format": "storage"}
CASES: list[Row] = [
    {"lora": OF_IA3},
    {"lora": OF_IA3, "recompute": "nonreentrant", "sequences": 2},
    {"lora": OF_IA3, "recompute": "reentrant", "ranks": 2},
    {"lora": OF_IA3, "micro_batches": 2, "ranks": 3},
    {"lora": OF_IA3, "reshard": False},
    {"lora": OF_IA3 | {"format": "storage"}, "reduce": "bf16"},
    {"lora": OF_IA3, "dtype": "fp32"},
    {"lora": OF_VERA},
    {"lora": OF_VERA, "recompute": "nonreentrant", "sequences": 2},
    {"lora": OF_VERA | {"dropout": 0.1}, "ranks": 3},
    {"lora": OF_VERA | {"targets": "q_proj down_proj"}, "reduce": "bf16"},
]


def make_model(config: Row, case: Row) -> Any:
    lora = case["lora"]
    model = fuzz.make_model(config, case | {"lora": None})
    run = (lora["kind"], lora["targets"].split(), 0, 0, case["recompute"] != "none", lora["dropout"])
    with torch.device("meta"):
        model = execute_vectors.share(execute_vectors.adapted(model, run))
    if lora["format"] == "storage":
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if f"{lora['kind']}_" in name:
                tensor.data = tensor.data.to(torch.bfloat16)
    return execute_vectors.share(model)


def job_of(case: Row) -> Row:
    job = fuzz.job_of(case)
    job["trainer"]["lora"]["kind"] = case["lora"]["kind"]
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_vectors_sharded.jsonl")
    options = parser.parse_args()
    fuzz.stand_in()
    item_of["number"] = 1.0
    fuzz_fsdp.formats_of = lambda case: {"param_dtype": torch.bfloat16, "reduce_dtype": fuzz.FORMATS[case["reduce"]]}
    by = f"torch {torch.__version__.split('+')[0]}, peft {metadata.version('peft')} executed on fake tensors"
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        lines.append({"config": name, "fields": config})
        for changes in CASES:
            case = USUAL | changes
            lora = case["lora"]
            words = {key: value for key, value in changes.items() if key != "lora"}
            words |= {key: lora[key] for key in ("targets", "dropout", "format")}
            said = "/".join(f"{key}={str(value).replace(' ', '+')}" for key, value in words.items())
            row = {"id": f"{name}/{lora['kind']}/fsdp2/{said}", "config": name, "job": job_of(case)}
            peaks = fuzz_fsdp.execute(config, case, make_model, fuzz.loss_of, fuzz.optimizer_of, fuzz.inputs_of)
            lines.append({**row, "source": by, "peaks": peaks})
            print(lines[-1]["id"], peaks)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
