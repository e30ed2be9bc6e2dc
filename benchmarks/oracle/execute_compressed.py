"""Makes tests/data/executed_compressed.jsonl: DeepSeek V4 as vLLM's own classes allocate it on one rank, and how vLLM cuts its cache of
windows and compressed entries.

    LD_LIBRARY_PATH=STUBS python benchmarks/oracle/execute_compressed.py CONFIGS [--only TEXT] [--output FILE]

Needs vLLM 0.24 as execute_servers.py does. The checkpoints are taken as they are published, with their own formats.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from execute_servers import BUDGET
from meta_rank import META
from server_cases import Row, asked_for, write
from vllm_code import VERSION, execute

FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"
GPUS = {"H100": 90, "B200": 100}
# what is not met, docs/findings.md
SCALES = "scales of blocks for DeepGEMM on Blackwell: a byte for every row, 0.1 % of a rank"
OPEN = {f"{FLASH} tp=8 B200 65536 tokens mtp=2": SCALES}


def interleaved(scales: Any) -> Any:
    """FlashInfer's layout of scales: rows rounded up to 128, columns to 4 (flashinfer/quantization/fp4_quantization.py, 0.6)."""
    *outer, rows, columns = scales.shape
    count = torch.Size(outer).numel() * (-(-rows // 128) * 128) * (-(-columns // 4) * 4)
    return torch.empty(count, dtype=torch.uint8, device=META)


# longest request, tokens of a batch, tokens that MTP blocks guess ahead
SHORT, LONG, AHEAD, LONGEST = (8192, 2048, 0), (65536, 8192, 0), (65536, 8192, 2), (1048576, 16384, 0)
ASKED = [
    (FLASH, "H100", 1, SHORT),
    (FLASH, "H100", 2, LONG),
    (FLASH, "H100", 2, AHEAD),
    (FLASH, "H100", 4, SHORT),
    (FLASH, "H100", 8, LONGEST),
    (FLASH, "B200", 2, LONG),
    (FLASH, "B200", 8, AHEAD),
    (PRO, "H100", 8, LONG),
    (PRO, "H100", 8, AHEAD),
    (PRO, "H100", 16, LONGEST),
    (PRO, "B200", 8, SHORT),
]


def cases(configs: Path, only: str) -> list[Row]:
    out = []
    for model, gpu, tensor, (longest, batch, ahead) in ASKED:
        published = json.loads((configs / (model.replace("/", "__") + ".json")).read_text())
        config = {key: value for key, value in published.items() if not key.startswith("_")}
        asked = {"kv_cache_dtype": "fp8", "max_num_batched_tokens": batch}
        name = f"{model} tp={tensor} {gpu} {longest} tokens" + (f" mtp={ahead}" if ahead else "")
        row = {"id": name, "model": model, "config": config, "tensor": tensor, "max_model_len": longest, "gpu": gpu}
        out.append({**row, "capability": GPUS[gpu], "engine_options": asked, "mtp": ahead})
    return [row for row in out if only in row["id"]]


def main() -> None:
    asked = asked_for(__doc__ or "", "executed_compressed.jsonl")
    kernels = importlib.import_module("flashinfer.fp4_quantization")
    kernels.nvfp4_block_scale_interleave = interleaved
    head = {"engine": "vllm", "version": VERSION, "as_published": True, "kv": "fp8"}

    def run(case: Row) -> Row:
        return {**({"mtp": case["mtp"]} if case["mtp"] else {}), **execute(case, BUDGET)}

    write(asked, cases(asked.configs, asked.only), head, run, OPEN)


if __name__ == "__main__":
    main()
