"""Makes tests/data/executed_policies.jsonl: FSDP with policies that leave formats unnamed, FSDP1 with parameters on the host, Adam
and SGD in every form, with and without weight decay, layers that autograd does not reach, and units that stay gathered.

PYTHONPATH=build/python python benchmarks/oracle/execute_policies.py [--only NAME...] [--output tests/data/executed_policies.jsonl]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fuzz
import torch
import transformers
from execute import ROOT, Row
from execute_found import BASE, CHECKPOINT, FSDP1, FSDP2, REENTRANT, SDPA, TWO, small
from execute_scaler import item_of
from row_lines import write_rows

ADAPTERS: Row = {"rank": 8, "dropout": 0.1, "verl": True, "targets": "all-linear", "format": "fp32"}
FEW: Row = ADAPTERS | {"dropout": 0.0, "verl": False, "targets": "q_proj v_proj"}
IN_16_BITS: Row = {"policy": "none", "dtype": "bf16", "compute": "bf16", "reduce": "bf16"}
IN_32_BITS: Row = {"policy": "none", "dtype": "fp32", "compute": "fp32", "reduce": "fp32"}
ON_HOST: Row = FSDP1 | {"offload": True, "tokens": 64}
LATE: Row = FEW | {"targets": "own", "spec": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [3]}}
# without gradients, the layers stay gathered and the root is resharded
AGAIN: Row = FSDP2 | {"tokens": 40, "head": "logprob_fp32", "reshard": False, "root_reshard": True, "forward_only": True}
SAME: Row = {"dtype": "bf16", "compute": "bf16", "reduce": "bf16"}
OPTIMIZERS = (
    # PyTorch has no fake of SGD's fused kernel
    *(f"{kind}{form}{decay}" for kind in ("adam", "sgd", "sgd_momentum") for form in ("", "_loop") for decay in ("", "_decay")),
    *("adam_fused_decay", "adamw_decay", "adamw_loop_decay", "adamw_fused_decay", "adam_loop_amsgrad_decay"),
    *("sgd_momentum_nesterov", "sgd_momentum_loop_nesterov", "sgd_momentum_loop_nesterov_decay"),
)
CASES: dict[str, tuple[Row, list[Row]]] = {
    "llama, adapters without a param_dtype": (
        small("llama"),
        [
            *({**FSDP2, **IN_16_BITS, "lora": lora, **how} for lora in (ADAPTERS, FEW) for how in ({}, TWO)),
            *({**FSDP1, **IN_16_BITS, **how} for how in ({"lora": ADAPTERS, **TWO}, {"lora": FEW}, {"lora": FEW, **TWO})),
            *({**FSDP2, **IN_16_BITS, "lora": ADAPTERS, **how} for how in (CHECKPOINT, REENTRANT, SDPA)),
            {**FSDP2, **IN_16_BITS, "reduce": "fp32", "lora": ADAPTERS},
            {**FSDP2, **IN_16_BITS, "lora": ADAPTERS, "micro_batches": 3, "deferred": True, "optimizer": "adamw"},
            {**FSDP2, **IN_16_BITS, "lora": ADAPTERS, "reshard": False, "micro_batches": 2},
            {**FSDP2, **IN_16_BITS, "lora": ADAPTERS, "ranks": 8, "kept_over": 2, "root_reshard": True},
            {**FSDP2, **IN_16_BITS, "lora": ADAPTERS, "autocast": True},
            {**FSDP1, **IN_16_BITS, "lora": ADAPTERS, "strategy": "SHARD_GRAD_OP", "micro_batches": 2, "optimizer": "adam_decay"},
            {**FSDP1, **IN_16_BITS, "lora": ADAPTERS, "autocast": True},
            # each adapter is gathered by itself
            *({**FSDP1, **IN_16_BITS, "lora": ADAPTERS, **how} for how in ({}, {"reduce": "fp32"}, CHECKPOINT, REENTRANT)),
            *({**FSDP1, "lora": ADAPTERS, "backward_prefetch": when, **how} for when in ("post", "none") for how in (CHECKPOINT, TWO)),
            {**FSDP1, **IN_16_BITS, "lora": ADAPTERS, "tokens": 17, "optimizer": "adamw_decay", "clip": True},
        ],
    ),
    "llama, autocast without a param_dtype": (
        small("llama"),
        [
            *({**engine, **IN_32_BITS, "autocast": True, **how} for engine in (FSDP1, FSDP2) for how in ({}, CHECKPOINT, REENTRANT)),
            {**FSDP1, **IN_32_BITS, "autocast": True, "use_orig_params": True},
            {**FSDP1, **IN_32_BITS, "autocast": True, "strategy": "NO_SHARD"},
            {**FSDP1, **IN_32_BITS, "autocast": True, "strategy": "SHARD_GRAD_OP", "reduce": "bf16"},
        ],
    ),
    "olmo2, arguments of layers": (
        small("olmo2"),
        [{**FSDP2, "cast_inputs": False}, FSDP2, {**FSDP2, **IN_16_BITS}, {**FSDP2, **IN_16_BITS, "reduce": "fp32"}],
    ),
    "llama on the host": (
        small("llama"),
        [
            *({**ON_HOST, **formats, "strategy": strategy, "use_orig_params": views} for strategy in ("FULL_SHARD", "SHARD_GRAD_OP") for formats in ({}, SAME) for views in (False, True)),
            {**ON_HOST, "strategy": "NO_SHARD"},
            *({**ON_HOST, **SAME, "use_orig_params": True, **how} for how in (CHECKPOINT, REENTRANT, {"backward_prefetch": "post"}, {"backward_prefetch": "none"}, {"forward_prefetch": True})),
            *({**ON_HOST, **SAME, "use_orig_params": True, "strategy": strategy, "micro_batches": 2, "deferred": True} for strategy in ("FULL_SHARD", "SHARD_GRAD_OP")),
            *({**ON_HOST, **SAME, "lora": ADAPTERS, **how} for how in ({}, CHECKPOINT, {"strategy": "SHARD_GRAD_OP"})),
            {**ON_HOST, **IN_16_BITS, "lora": ADAPTERS, **CHECKPOINT},
        ],
    ),
    "llama, every form of optimizer": (small("llama", vocab_size=307), [{"tokens": 17, "optimizer": name} for name in OPTIMIZERS]),
    "llama, every form of optimizer of pieces": (
        small("llama"),
        [{**FSDP1, "tokens": 17, "use_orig_params": views, "optimizer": name} for views in (False, True) for name in ("adam_loop_decay", "adam_decay", "sgd_loop_decay", "sgd_decay", "adamw_loop")],
    ),
    "llama, every form of optimizer of DTensors": (
        small("llama"), [{**FSDP2, "tokens": 17, "optimizer": name} for name in ("adam_loop_decay", "adam_decay", "sgd_loop_decay", "sgd_momentum_decay")]
    ),
    "llama, temperature": (
        small("llama"),
        [{"head": "logprob_temperature", "dtype": dtype, "tokens": 211} for dtype in ("bf16", "fp16", "fp32", "autocast")],
    ),
    "llama, adapters in a late layer": (
        small("llama", num_hidden_layers=5),
        [
            *({**FSDP1, "tokens": 64, "optimizer": "adamw", "lora": LATE, "strategy": strategy, "backward_prefetch": when, **how}
              for strategy, when in (("SHARD_GRAD_OP", "pre"), ("SHARD_GRAD_OP", "post"), ("SHARD_GRAD_OP", "none"), ("FULL_SHARD", "pre"), ("FULL_SHARD", "none"))
              for how in ({}, {**CHECKPOINT, "micro_batches": 2, "deferred": True})),
        ],
    ),
    "granite, gathered once": (
        small("granite"), [{**AGAIN, "wrap_head": head, "wrap_embedding": table} for head in (True, False) for table in (True, False)]
    ),
    "granite with a tied table, gathered once": (small("granite", tie_word_embeddings=True), [AGAIN, {**AGAIN, "sequences": 2}]),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_policies.jsonl")
    options = parser.parse_args()
    import oomplan

    item_of["number"] = 1.0
    fuzz.stand_in()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed without a device"
    lines: list[Row] = []
    for name in options.only:
        config, cases = CASES[name]
        lines.append({"config": name, "fields": config})
        for given in cases:
            case = BASE | given
            peaks, job = fuzz.execute_case(config, case), fuzz.job_of(case)
            lines.append({"id": f"{name}/{fuzz.words_of(case)}", "config": name, "job": job, "source": by, "peaks": peaks})
            write_rows(options.output, lines)
            try:
                off = fuzz.differences(peaks, fuzz.ask(oomplan._core, job, config))
            except ValueError as refusal:
                print("REFUSED", lines[-1]["id"], str(refusal)[:300], flush=True)
                continue
            print(lines[-1]["id"], " ".join(f"{phase} {percent:+.4f} %" for phase, percent in off.items()), flush=True)


if __name__ == "__main__":
    main()
