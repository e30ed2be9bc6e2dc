"""Why there is no prediction of a measured training row: what it does not state comes first, then what is not supported."""

from __future__ import annotations

import fms
from corpus import CannotExpress, Row, not_yet


def unnamed(row: Row) -> bool:
    kind = str(row.get("metric_kind") or "").lower()
    named = ("max_memory_allocated", "max_memory_reserved", "nvidia-smi", "allocated after")
    return not any(word in kind for word in named) or "not stated" in kind or kind.startswith("unstated")


def text(row: Row, key: str) -> str:
    return str(row.get(key) or "").lower()


def refuse_megatron(row: Row) -> None:
    """Kits on Megatron: none of their rows states what its figure depends on."""
    framework = text(row, "framework")
    if "megatron" not in framework and "simumax" not in framework:
        return
    if any(kit in framework for kit in ("verl", "areal")):
        raise CannotExpress("the batch or the length is not stated")
    if row.get("lora") or "lora" in text(row, "phase"):
        raise not_yet("adapters under Megatron")
    if "fp8" in text(row, "dtype_policy"):
        raise not_yet("fp8 under Megatron")
    if unnamed(row):
        raise CannotExpress("the metric is not named")
    if row.get("completeness") != "full":
        raise CannotExpress("the settings are not stated in full")
    raise CannotExpress("the release of Transformer Engine and the routing are not stated")


# what a row says of its batches where their length is that of the samples
OF_THE_DATA = ("unpacked", "padded", "variable", "longest", "dynamic", "depend", "packing=false")


def refuse_unstated(row: Row) -> None:
    """What a row leaves open comes before what is not supported: of no such row could there be a prediction."""
    if "screenshot" in text(row, "metric_kind"):
        raise CannotExpress("a figure read off a screenshot, whose releases are not stated")
    if unnamed(row):
        raise CannotExpress("the metric is not named")
    if any(word in text(row, "seq_note") for word in OF_THE_DATA):
        raise CannotExpress("the length of a batch depends on the data")


def refuse_framework(row: Row) -> None:
    refuse_megatron(row)
    refuse_unstated(row)
    framework = text(row, "framework")
    for word, name in (
        ("deepspeed stage 0", "DeepSpeed without ZeRO"),
        ("deepspeed", "DeepSpeed"),
        ("nemo", "the kernel set of NeMo Automodel"),
        ("timm", "the kernel set of timm"),
        ("unsloth", "the kernel set of Unsloth"),
        ("axolotl", "the patched kernel set of Axolotl"),
    ):
        if word in framework:
            raise not_yet(name)


def refuse_settings(row: Row) -> None:
    parallel = row.get("parallelism") or {}
    sharding = str(parallel.get("fsdp") or "").lower()
    if parallel.get("zero"):
        raise not_yet("DeepSpeed")
    if sharding and "fsdp1" not in sharding and "fsdp2" not in sharding:
        raise CannotExpress("which FSDP it was is not stated")
    if any((parallel.get(axis) or 1) != 1 for axis in ("tp", "pp", "cp", "ep")):
        raise CannotExpress("tensor, pipeline, context or expert parallelism of a trainer is not supported yet")
    if row.get("compile") is True:
        raise not_yet("torch.compile of the model")
    offload = text(row, "offload")
    if offload not in ("", "none") and not ("fsdp1" in sharding and offload.startswith("fsdp cpu offload")):
        raise not_yet("this offload")
    loss = text(row, "loss_kernel")
    known = fms.is_fms(row) and fms.head(row) is not None
    if not known and any(word in loss for word in ("liger", "foak", "fused", "cut", "chunk", "apple")):
        raise not_yet("a fused or chunked loss kernel")
    if "scattermoe" in text(row, "notes"):
        raise not_yet("ScatterMoE")
