"""Measured rows of torchtitan as native jobs: what its recipes and its code set at the date of a measurement."""

from __future__ import annotations

import re
from typing import Any

from corpus import CannotExpress, Row, find_gpu, not_yet

# When pytorch/torchtitan, or the PyTorch nightly under it, changed what a step holds.
FIRST = "2024-03"  # what is described here
DELETED_OUTPUTS = "2024-06-12"  # torchtitan #391: before it the loop's name kept the fp32 logits
OUTPUTS_IN_16_BITS = "2024-10-22"  # torchtitan e10cb9494: before it the model made them fp32
EXPANDABLE = "2024-10-22"  # torchtitan a5e57e4a9
BLOCKS_COMPILED = "2024-04-10"  # torchtitan #268 and before: torch.compile of the model
FUSED_ADAMW = "2025-02-24"  # torchtitan #881: before it foreach was the default
GROUPED_UNITS = "2025-07-28"  # torchtitan #1094: embedding a unit, norm and output layer another, every layer resharded
FUSED_NORM = "2025-08"  # PyTorch 2.9 brings nn.RMSNorm's kernel; before it, and in torchtitan's own norm, operators in fp32
COMPILED_LOSS = "2025-04-02"  # torchtitan #1033: `compile` means the loss too
NO_REPEATED_KV = "2026-01-27"  # torchtitan #2259
# Up to 512 GPUs, which run_train.sh cannot start (it meets at localhost); multinode_trainer.slurm, which can, sets no options of the
# allocator (torchtitan 3f20451bc). Its runs are met so on 8 and on 128 GPUs, and on neither with expandable segments.
OF_MANY_NODES = "llama3_h100_202412"
# Since torchtitan e629fe58a (2025-08-15) run_train.sh sets PYTORCH_ALLOC_CONF, which PyTorch 2.9 ignores for CUDA (pytorch/pytorch
# #183387). The lines of torchtitan #1690 begin with "[rank" on one host, where that script ran; with "[trainer" elsewhere.
OF_IGNORED_SETTINGS = "#1690"
# benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md: torchrun itself, without that script.
OF_TORCHRUN = "trainy"
FLOATS_OF_8_BITS = re.compile(r"float8|\bf8-|fp8|fp4")
OTHER_FORMATS = re.compile(r"mxfp8|nvfp4")


def said(row: Row, key: str) -> str:
    return str(row.get(key) or "").lower()


def refuse(row: Row) -> None:
    sharding = str((row.get("parallelism") or {}).get("fsdp") or "").lower()
    if row.get("compile") not in (False, None, True):
        raise not_yet("torchtitan's graph trainer")
    if "simplefsdp" in sharding:
        raise not_yet("SimpleFSDP")
    if "fsdp2" not in sharding:
        raise CannotExpress("the sharding is not stated")
    if said(row, "date") < FIRST or DELETED_OUTPUTS <= said(row, "date") < OUTPUTS_IN_16_BITS:
        raise not_yet("torchtitan of this date")
    if row.get("compile") and said(row, "date") < BLOCKS_COMPILED:
        raise not_yet("torch.compile of torchtitan's whole model")
    if "abnormal" in said(row, "notes"):
        raise CannotExpress("a run with a leak")
    if "only step 1" in said(row, "notes"):
        raise CannotExpress("the first step alone, before there are optimizer states")


def layout(row: Row) -> str:
    given: Row = row.get("parallelism") or {}
    for axis, name in (("pp", "pipeline"), ("ep", "expert")):
        if (given.get(axis) or 1) != 1:
            raise not_yet(f"{name} parallelism of torchtitan")
    tensor = int(given.get("tp") or 1)
    if re.search(r"async tp on", said(row, "notes")):
        raise not_yet("asynchronous tensor parallelism")
    context = int(given.get("cp") or 1)
    data = int(given.get("dp") or int(row["n_gpus"]) // (tensor * context))
    return f"d{data}" + (f"t{tensor}" if tensor > 1 else "") + (f"c{context}" if context > 1 else "")


def every_nth(mode: str) -> int:
    """selective_ac_option of a number: the last of so many layers is checkpointed."""
    stated = re.fullmatch(r"selective,? (?:every )?(\d+)(?:nd|rd|th)?(?: layers?)?", mode)
    return int(stated[1]) if stated else 1


def recompute(row: Row) -> str:
    mode = said(row, "recompute")
    if mode.startswith(("none", "full")):
        return mode[:4]
    if mode == "selective per-op" or (mode == "selective" and said(row, "date") < DELETED_OUTPUTS):
        return "selective"
    if every_nth(mode) > 1:
        return "full"
    raise CannotExpress("recomputation is not stated") if not mode else not_yet("selective recomputation of whole layers")


def head(row: Row) -> str:
    loss = said(row, "loss_kernel")
    if "chunkedceloss" in loss:
        raise not_yet("torchtitan's fused loss of 2026")
    if said(row, "date") < DELETED_OUTPUTS:
        return "cross_entropy"  # train.py had no other
    if not loss:
        raise CannotExpress("the loss is not stated")
    if loss.startswith("compiled") or (row.get("compile") is True and said(row, "date") >= COMPILED_LOSS):
        return "cross_entropy_compiled"
    return "cross_entropy_chunked" if loss.startswith("chunked") else "cross_entropy"


def gpu(row: Row) -> str:
    """torchtitan logs how much a card has: its H100 with 96 GB is not the common one."""
    text = said(row, "gpu")
    return find_gpu("H100 96GB" if "h100" in text and re.search(r"\b9[45](\.\d+)? gib", text) else row.get("gpu"))


def resharding(date: str, notes: str) -> Row:
    grouped = date >= GROUPED_UNITS
    policy = re.search(r"fsdp_reshard_after_forward=(\w+)", notes)
    chosen = policy[1] if policy else "default"
    return {
        "wrap_embedding": grouped,
        "wrap_head": grouped,
        "wrap_norm": grouped,
        "reshard_after_forward": chosen != "never",
        "reshard_last": chosen == "always",
        "root_reshard": False,  # PyTorch kept the root's parameters until it read its own option
    }


def expandable(row: Row) -> bool:
    """run_train.sh sets them."""
    source = said(row, "source")
    if said(row, "date") < EXPANDABLE:
        return False
    if OF_MANY_NODES in source or OF_TORCHRUN in source:
        return False
    return not (OF_IGNORED_SETTINGS in source and int(row["n_gpus"]) <= 8)


def float8(row: Row) -> Row:
    """torchao's way, as the row says it; its configuration without a word is tensorwise."""
    text = f"{row['id']} {said(row, 'notes')}".lower()
    if not FLOATS_OF_8_BITS.search(f"{text} {said(row, 'dtype_policy')}"):
        return {}
    if OTHER_FORMATS.search(text):
        raise not_yet("training in mxfp8 and nvfp4")
    if "abs in the per-op save list" in text:
        raise CannotExpress("a release that kept absolute values of weights, mended two days later")
    gathered = bool(re.search(r"fsdp float8 all-gather(?!, not restated)", text))
    return {"float8": "rowwise" if "rowwise" in text else "tensorwise", "float8_all_gather": gathered}


def titan_job(row: Row) -> Row:
    refuse(row)
    if not isinstance(row.get("micro_batch"), int) or not isinstance(row.get("seq_len"), int):
        raise CannotExpress("the batch or the length is not stated")
    date = said(row, "date")
    trainer: Row = {
        "engine": "fsdp2",
        "layout": layout(row),
        "kernels": "torchtitan",
        "precision": {"storage": "fp32", "compute": "bf16", "reduce": "fp32"},
        "recompute": recompute(row),
        "recompute_every": every_nth(said(row, "recompute")),
        "optimizer": "adamw",
        "optimizer_form": "fused" if date >= FUSED_ADAMW else "foreach",
        "head": head(row),
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq_len"],
        "micro_batches": int(row.get("grad_accum") or 1),
        "rms_norm": "fused" if date >= FUSED_NORM else "by_hand",
        "repeat_kv": date < NO_REPEATED_KV,
        "keep_outputs": date < DELETED_OUTPUTS,
        "compile": row.get("compile") is True,
        **float8(row),
        **resharding(date, said(row, "notes")),
    }
    job: dict[str, Any] = {"framework": "torch", "gpus": f"{row['n_gpus']} x {gpu(row)}", "model": str(row.get("model"))}
    return job | {"expandable_segments": expandable(row), "trainer": trainer}
