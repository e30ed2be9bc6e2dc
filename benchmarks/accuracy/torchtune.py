"""Measured rows of torchtune as native jobs: its recipes on one device, without torch.compile."""

from __future__ import annotations

from corpus import CannotExpress, Row, find_gpu, not_yet

# torchtune's switches by the names of transformers' modules
TARGETS = {"q": ["q_proj"], "k": ["k_proj"], "v": ["v_proj"], "o": ["o_proj"], "all mlp": ["gate_proj", "up_proj", "down_proj"]}


def said(row: Row, key: str) -> str:
    return str(row.get(key) or "").lower()


def is_torchtune(row: Row) -> bool:
    return "torchtune" in said(row, "framework")


def refuse(row: Row) -> None:
    if not isinstance(row.get("value_gib"), (int, float)):
        raise CannotExpress("no value: a fit or no-fit label")
    if row.get("compile") is True or "compile" in said(row, "notes"):
        raise not_yet("torch.compile of torchtune's layers")
    if (row.get("lora") or {}).get("quant") or "qlora" in said(row, "phase"):
        raise not_yet("a base that torchao packed")
    if int(row.get("n_gpus") or 1) > 1:
        raise not_yet("torchtune on several devices")
    if row.get("offload"):
        raise not_yet("offload under torchtune")
    optimizer = said(row, "optimizer")
    if any(word in optimizer for word in ("fused into backward", "4-bit", "ao 8-bit", "bnb", "paged")):
        raise not_yet("the optimizer")
    if not optimizer.startswith("adamw"):
        raise CannotExpress("the optimizer is not stated")
    if not isinstance(row.get("micro_batch"), int) or not isinstance(row.get("seq_len"), int):
        raise CannotExpress("the batch or the length is not stated")
    if not said(row, "recompute").startswith(("none", "full")):
        raise CannotExpress("recomputation is not stated")
    if not said(row, "seq_note").startswith("packed"):
        raise CannotExpress("the length of a batch depends on the data")


def lora(row: Row) -> Row | None:
    given = row.get("lora")
    if not given:
        if "lora" in said(row, "phase"):
            raise CannotExpress("the rank of the adapters is not stated")
        return None
    words = str(given["targets"]).lower().replace("+", ",").split(",")
    try:
        names = [name for word in words for name in TARGETS[word.strip()]]
    except KeyError as word:
        raise CannotExpress("the modules with adapters are not stated by name") from word
    return {"rank": given["r"], "targets": names, "dropout": given.get("dropout") or 0, "format": "storage"}


def torchtune_job(row: Row) -> Row:
    refuse(row)
    adapters = lora(row)
    trainer: Row = {
        "engine": "single",
        "layout": "d1",
        "kernels": "torchtune_packed",
        "precision": {"storage": "bf16"},
        "recompute": "full" if said(row, "recompute").startswith("full") else "none",
        "optimizer": "adamw",
        # the same table's run of short samples fits into less than parameters, gradients, states and foreach's copy
        "optimizer_form": "fused",
        "head": "torchtune_chunked" if "chunk" in said(row, "loss_kernel") else "torchtune",
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq_len"],
        "micro_batches": int(row.get("grad_accum") or 1),
    }
    if adapters is not None:
        trainer["lora"] = adapters
    return {"framework": "torch", "gpus": f"1 x {find_gpu(row.get('gpu'))}", "model": str(row.get("model")), "trainer": trainer}
