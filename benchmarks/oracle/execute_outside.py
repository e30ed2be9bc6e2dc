"""Makes tests/data/executed_outside.jsonl: LoRA pairs and trained copies of embedding and output layer, on one device, under DDP,
FSDP1 and FSDP2.

PYTHONPATH=build/python python benchmarks/oracle/execute_outside.py [--only NAME...] [--output tests/data/executed_outside.jsonl]

peft's own modules run (tuners/lora/layer.py Embedding and Linear, utils/other.py ModulesToSaveWrapper), on fake tensors or the meta
device; DDP is computed on the CPU. Levels are those of the second step, of DDP the fifth.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import fuzz
import fuzz_fsdp
import torch
import transformers
from execute import ROOT, Row
from execute_found import BASE, CHECKPOINT, FSDP1, FSDP2, GPT2, REENTRANT, SDPA, TWO, small
from execute_scaler import item_of
from row_lines import write_rows

USUAL: Row = {"rank": 8, "dropout": 0.0, "verl": False, "targets": "own", "format": "fp32"}


def adapters(spec: Row, **given: object) -> Row:
    return {"lora": USUAL | given | {"spec": spec}}


ATTENTION = ["q_proj", "v_proj"]
TABLE: Row = {"target_modules": [*ATTENTION, "embed_tokens"]}
TABLE_ALONE: Row = {"target_modules": ["embed_tokens"]}
HEAD: Row = {"target_modules": [*ATTENTION, "lm_head"]}
HEAD_ALONE: Row = {"target_modules": ["lm_head"]}
BOTH: Row = {"target_modules": [*ATTENTION, "embed_tokens", "lm_head"]}
SAVE: Row = {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}
SAVE_TABLE: Row = {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"]}
SAVE_BOTH: Row = {"target_modules": ATTENTION, "modules_to_save": ["lm_head", "embed_tokens"]}
SPECS: tuple[Row, ...] = (TABLE, TABLE_ALONE, HEAD, HEAD_ALONE, BOTH, SAVE, SAVE_TABLE, SAVE_BOTH)
WITHOUT_TABLE = (HEAD, HEAD_ALONE, SAVE, SAVE_TABLE, SAVE_BOTH)  # FSDP1 flattens no pair beside a frozen embedding
SINGLE: Row = {"tokens": 128}
DDP: Row = {
    "engine": "ddp",
    "dtype": "fp32",
    "tokens": 33,
    "gradient_as_bucket_view": False,
    "find_unused_parameters": False,
    "static_graph": False,
    "keep_gradients": False,
    "deferred": False,
}
FEW: Row = {"tokens": 128}
ADAMW: Row = {"optimizer": "adamw"}
DEFERRED: Row = {"micro_batches": 3, "deferred": True}
STORED: Row = {"format": "storage"}
HOST: Row = {"offload": True}
GPT2_HEAD: Row = {"target_modules": ["c_attn", "lm_head"]}
GPT2_TABLE: Row = {"target_modules": ["c_attn", "wte"]}
GPT2_SAVE: Row = {"target_modules": ["c_proj"], "modules_to_save": ["lm_head", "wte"]}
PLAIN: Row = {"policy": "none", "dtype": "bf16", "compute": "bf16", "reduce": "bf16"}

CASES: dict[str, tuple[Row, list[Row]]] = {
    "llama": (
        small("llama"),
        [
            *({**SINGLE, **adapters(spec)} for spec in SPECS),
            *({**SINGLE, **adapters(spec, **STORED), **how} for spec in (TABLE, BOTH) for how in ({}, CHECKPOINT)),
            *({**SINGLE, **adapters(spec, dropout=0.1), **how} for spec in (TABLE, BOTH) for how in (REENTRANT, TWO)),
            *({**SINGLE, **adapters(spec), **CHECKPOINT, **ADAMW, "micro_batches": 2} for spec in (TABLE, SAVE_BOTH)),
            *({**SINGLE, **adapters(spec), **CHECKPOINT, **SDPA} for spec in (TABLE_ALONE, HEAD_ALONE, SAVE)),
            *({**SINGLE, **adapters(spec), "dtype": "fp32", "head": "logprob_fp32"} for spec in (TABLE, HEAD)),
            *({**DDP, **adapters(spec)} for spec in SPECS),
            *({**DDP, **adapters(BOTH), **how} for how in (ADAMW, {"gradient_as_bucket_view": True}, DEFERRED)),
            *({**FSDP2, **FEW, **adapters(spec)} for spec in SPECS),
            *({**FSDP2, **FEW, **adapters(spec), "wrap_embedding": False, "wrap_head": False} for spec in (TABLE, BOTH, SAVE_BOTH)),
            *({**FSDP2, **FEW, **adapters(spec), **how} for spec in (BOTH, SAVE_BOTH) for how in (CHECKPOINT, REENTRANT, DEFERRED, PLAIN, {"reshard": False}, {"root_reshard": True}, {"dtype": "bf16"}, {"head": "logprob_fp32"})),
            *({**FSDP2, **FEW, **adapters(spec), **CHECKPOINT} for spec in (TABLE_ALONE, HEAD_ALONE)),
            *({**FSDP1, **FEW, **adapters(spec)} for spec in WITHOUT_TABLE),
            *({**FSDP1, **FEW, **adapters(spec, joint=True), "use_orig_params": True, **how} for spec in (TABLE, BOTH, SAVE_BOTH) for how in ({}, CHECKPOINT)),
            *({**FSDP1, **FEW, **adapters(spec), **how} for spec in (HEAD, SAVE_BOTH) for how in (CHECKPOINT, REENTRANT, DEFERRED, PLAIN, {"strategy": "SHARD_GRAD_OP"}, {"strategy": "NO_SHARD"}, {"backward_prefetch": "post"}, {"backward_prefetch": "none"}, {"dtype": "bf16"}, {**DEFERRED, "strategy": "SHARD_GRAD_OP"}, {"micro_batches": 2}, {"head": "logprob_fp32"}, ADAMW)),
        ],
    ),
    "llama with a tied table": (
        small("llama", tie_word_embeddings=True),
        [
            *({**engine, **FEW, **adapters(spec)} for engine in (SINGLE, FSDP2) for spec in (TABLE, HEAD, SAVE, SAVE_TABLE)),
            *({**FSDP1, **FEW, **adapters(spec)} for spec in (HEAD, SAVE, SAVE_TABLE)),
            *({**DDP, **adapters(spec)} for spec in (TABLE, HEAD, SAVE, SAVE_TABLE)),
        ],
    ),
    "qwen2": (small("qwen2"), [{**engine, **FEW, **adapters(spec), **CHECKPOINT, **TWO} for engine in (SINGLE, FSDP2, FSDP1) for spec in (HEAD, SAVE_BOTH) + ((TABLE, BOTH) if engine is not FSDP1 else ())]),
    "llama, wider engines": (
        small("llama"),
        [
            *({**FSDP1, **FEW, **adapters(spec), **how} for spec in (HEAD, SAVE_BOTH) for how in (HOST, {**HOST, "strategy": "SHARD_GRAD_OP"}, {"groups": 2, "strategy": "HYBRID_SHARD"})),
            *({**FSDP2, **FEW, **adapters(BOTH), **how} for how in ({"groups": 2}, {"ranks": 8, "kept_over": 2, "root_reshard": True})),
            {**FSDP2, **FEW, **adapters(SAVE_BOTH), "forward_prefetch": True},
            {**FSDP2, **FEW, **adapters({"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["embed_tokens"]}), "dtype": "bf16"},
        ],
    ),
    "gpt2": (GPT2, [{**engine, **FEW, **adapters(spec)} for engine in (SINGLE, FSDP2, FSDP1) for spec in (GPT2_HEAD, GPT2_SAVE) + ((GPT2_TABLE,) if engine is not FSDP1 else ())]),
    "phi": (small("phi"), [{**engine, **FEW, **adapters(SAVE)} for engine in (SINGLE, FSDP2, FSDP1)]),
    "qwen3_moe": (small("qwen3_moe"), [{**engine, **FEW, **adapters(BOTH)} for engine in (SINGLE, FSDP2)]),
    "gemma2": (small("gemma2"), [{**engine, **FEW, **adapters(HEAD)} for engine in (SINGLE, FSDP2, FSDP1)]),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_outside.jsonl")
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
            said = f"{name}/{fuzz.words_of(case)}"
            try:
                peaks, job = fuzz.execute_case(config, case), fuzz.job_of(case)
            except Exception as error:
                fuzz_fsdp.clean_up()
                gc.enable()
                print("NOT EXECUTED", said, type(error).__name__, str(error)[:200], flush=True)
                continue
            lines.append({"id": said, "config": name, "job": job, "source": by, "peaks": peaks})
            try:
                got = fuzz.ask(oomplan._core, job, config)
            except ValueError as refusal:
                print("REFUSED", said, str(refusal)[:300], flush=True)
                continue
            off = fuzz.differences(peaks, got)
            print(
                said,
                " ".join(f"{phase} {percent:+.4f} % ({got[phase] - peaks[phase]:+d})" for phase, percent in off.items()),
                flush=True,
            )
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
