"""Makes tests/data/executed_sdpa.jsonl: training steps of models with latent attention (MLA) on SDPA's memory-efficient kernel.

    python benchmarks/oracle/execute_sdpa.py [--only FAMILY...] [--output tests/data/executed_sdpa.jsonl]

As execute.py. Values of MLA are narrower than queries and keys, which flash does not take and the memory-efficient kernel does
(pytorch/pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, 2.13: check_head_dim_size_flash,
check_head_dim_size_mem_efficient), so that kernel is called by its name here; its outputs and its autograd formula are PyTorch's own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from execute import MODELS, ROOT, RUNS, SMALL, Row, as_on_cuda, execute, job_of
from row_lines import write_rows

FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")


def efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> torch.Tensor:
    records = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    call = torch.ops.aten._scaled_dot_product_efficient_attention
    return call(query, key, value, attn_mask, records, dropout_p, is_causal, scale=scale)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(FAMILIES))
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_sdpa.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    torch.nn.functional.scaled_dot_product_attention = efficient
    lines: list[Row] = []
    for family in options.only:
        config = {"model_type": family, **SMALL, **MODELS[family]}
        lines.append({"config": family, "fields": config})
        for sequences, tokens, checkpointing in (*RUNS, (1, 500, False)):
            peaks, saved = execute(config, sequences, tokens, checkpointing, attention="sdpa")
            job = job_of(sequences, tokens, checkpointing)
            job["trainer"]["kernels"] = "hf_sdpa"
            name = f"sdpa/{family}/b{sequences}s{tokens}" + ("/checkpointed" if checkpointing else "")
            source = (
                f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on the meta device"
            )
            row = {"id": name, "config": family, "job": job, "source": source, "peaks": peaks}
            if not checkpointing and tokens % 32 == 0:  # its log-sum-exp is padded to 32 rows, which oomplan leaves out
                row |= {"layer": config["num_hidden_layers"] // 2, "saved": saved}
            lines.append(row)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
