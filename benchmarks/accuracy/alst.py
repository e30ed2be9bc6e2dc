"""Rows of ArcticTraining's long-sequence runs (ALST): ZeRO stage 3, Ulysses, tiled MLP, checkpoints on the host."""

from __future__ import annotations

from corpus import CannotExpress, Row, find_gpu

# snowflakedb/ArcticTraining, projects/sequence-parallelism: the runs' own files name the stage, what is offloaded and a bf16 exchange;
# all else of `zero_optimization` is DeepSpeed's default. The README sets expandable_segments.


def words(row: Row, key: str) -> str:
    return str(row.get(key) or "").lower()


def ulysses(row: Row) -> int:
    said = str((row.get("parallelism") or {}).get("sp") or "").split()
    if len(said) != 2 or not said[1].isdigit():
        raise CannotExpress("the degree of Ulysses is not stated")
    return int(said[1])


def alst_job(row: Row) -> Row:
    if not isinstance(row.get("value_gib"), (int, float)):
        raise CannotExpress("no value: a fit or no-fit label")
    if "zero-3" not in str((row.get("parallelism") or {}).get("zero")).lower():
        raise CannotExpress("which stage of ZeRO it was is not stated")
    gpus, context = int(row["n_gpus"]), ulysses(row)
    offload, recompute, notes = words(row, "offload"), words(row, "recompute"), words(row, "notes")
    trainer: Row = {
        "engine": "deepspeed",
        "layout": f"d{gpus // context}" + (f"c{context}" if context > 1 else ""),
        "kernels": "hf_flash",
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "bf16"},
        "recompute": "full" if recompute.startswith("full") else "none",
        "reentrant": True,  # transformers 4's default
        "offload_checkpoints": "checkpoint cpu offload" in recompute,
        "tiled_mlp": "tiledmlp on" in notes,
        "head": "hf_loss",
        "optimizer": "adamw",
        "optimizer_form": "fused",
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq_len"],
        "micro_batches": 1,
        "zero": {
            "stage": 3,
            "offload_optimizer": "optimizer states to cpu" in offload,
            "offload_parameters": "params to cpu" in offload,
        },
    }
    if "liger" in words(row, "loss_kernel"):
        # model type liger: swiglu is left out where the MLP is tiled (arctic_training/model/liger_factory.py)
        operators = ["rope", "rms_norm"] + ([] if trainer["tiled_mlp"] else ["swiglu"])
        trainer |= {"head": "liger_fused_ce", "liger": operators, "liger_version": "0.5.10"}  # that of May 2025
    return {
        "framework": "torch",
        "gpus": f"{gpus} x {find_gpu(row.get('gpu'))}",
        "expandable_segments": True,
        "model": str(row.get("model")),
        "trainer": trainer,
    }
