"""Rows of Megatron-core as native jobs: steps executed on fake tensors, and what SimuMax measured on B200s."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corpus import CannotExpress, Case, Row, not_yet

PHASES = ("forward", "backward", "optimizer")


def experts_of(arch: Row) -> Row:
    """Keys of a config.json for the experts. Megatron's softmax behind the choice of the top k is a division by their sum."""
    given = arch["moe"]
    groups = given.get("groups") or 1
    return {
        "num_experts": given["experts"],
        "n_routed_experts": given["experts"],
        "num_experts_per_tok": given["topk"],
        "moe_intermediate_size": given["ffn"],
        "n_shared_experts": (given.get("shared") or 0) // given["ffn"],
        "first_k_dense_replace": given.get("dense_layers") or 0,
        "norm_topk_prob": not given.get("pre_softmax", False),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "n_group": groups,
        "topk_group": given.get("group_topk") or 1,
        "topk_method": "group_limited_greedy" if groups > 1 else "greedy",
    }


def latents_of(arch: Row) -> Row:
    given = arch["mla"]
    return {
        "q_lora_rank": given["q_lora"],
        "kv_lora_rank": given["kv_lora"],
        "qk_nope_head_dim": given["qk_head"],
        "qk_rope_head_dim": given["rope_head"],
        "v_head_dim": given["v_head"],
    }


def config_of(arch: Row, seq: int, dropout: float) -> Row:
    """A config.json from the arguments that a row states."""
    heads = arch["heads"]
    learned = arch.get("position") == "learned_absolute"
    plain = arch.get("gated") is False
    if learned != plain or plain != (arch.get("norm") == "LayerNorm") or plain != bool(arch.get("bias")):
        raise CannotExpress("the model is neither Megatron's own GPT nor one of Llama's kin")
    kind = "megatron_gpt" if plain else "qwen3" if arch.get("qk_norm") else "llama"
    config: Row = {
        "model_type": kind,
        "num_hidden_layers": arch["layers"],
        "hidden_size": arch["hidden"],
        "intermediate_size": arch["ffn"],
        "num_attention_heads": heads,
        "num_key_value_heads": arch.get("groups") or heads,
        "head_dim": arch.get("kv_channels") or arch["hidden"] // heads,
        "vocab_size": arch["vocab"],
        "tie_word_embeddings": bool(arch.get("tied")),
        "torch_dtype": "bfloat16",
        "max_position_embeddings": seq,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
    }
    if arch.get("moe"):
        config |= experts_of(arch)
        config["model_type"] = "deepseek_v2" if arch.get("mla") else "qwen3_moe"
    if arch.get("mla"):
        config |= latents_of(arch)
        del config["head_dim"]
    return config


def layout_of(row: Row) -> str:
    letters = {"d": row["dp"], "t": row["tp"], "p": row["pp"], "c": row["cp"]}
    degrees = "".join(f"{k}{n}" for k, n in letters.items() if k == "d" or n > 1)
    expert = int(row.get("ep") or 1)
    split = int(row.get("etp") or 1)
    if expert == 1 and not row["arch"].get("moe"):
        return degrees
    if split == 1:
        return degrees + (f"e{expert}" if expert > 1 else "")
    pipeline = f"p{row['pp']}" if row["pp"] > 1 else ""
    return f"attn:{degrees}|ffn:{pipeline}t{split}e{expert}"


def recompute_of(given: Any) -> Row:
    if not given:
        return {"recompute": "none"}
    if given["granularity"] == "selective":
        return {"recompute": "selective", "recompute_modules": given["modules"]}
    return {"recompute": "full", "recompute_method": given["method"], "recompute_layers": given["num_layers"]}


def optimizer_of(aware: Row | None) -> Row:
    if not aware:
        return {}
    if aware["main_params_dtype"] != "float32" or aware["main_grads_dtype"] != "float32":
        raise not_yet("masters and gradients of Megatron's optimizer in other formats")
    formats = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8"}
    return {
        "precision_aware_optimizer": True,
        "exp_avg_dtype": formats[aware["exp_avg_dtype"]],
        "exp_avg_sq_dtype": formats[aware["exp_avg_sq_dtype"]],
    }


def executed_job(row: Row) -> Row:
    if set(row.get("overrides") or {}) - {"bias_dropout_fusion"}:  # without dropout the kernel's inputs are the same
        raise not_yet("an override of Megatron's configuration")
    if row.get("overrides") and row["dropout"] > 0:
        raise not_yet("Megatron without fused bias and dropout")
    trainer: Row = {
        "engine": "megatron",
        "kernels": "transformer_engine",
        "kernel_internals": False,  # fake tensors have none
        "layout": layout_of(row),
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": row["grads"]},
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq"],
        "micro_batches": row["micro_batches"],
        "sequence_parallel": row["sp"],
        "virtual_stages": row["vpp"] or 1,
        "attention": row["attention"],
        "cross_entropy": row["cross_entropy"] or "unfused",
        **({"jit_fuser": False} if row["cross_entropy"] == "native" else {}),  # fake tensors ran uncompiled
        "gradient_accumulation_fusion": row["gradient_accumulation_fusion"],
        "distributed_optimizer": row["distributed_optimizer"],
        "deallocate_outputs": row.get("deallocate_outputs", True),
        "context_exchange": row.get("cp_comm", "p2p"),
        "router_dtype": row.get("router_dtype") or "bf16",
        "permute_fusion": bool(row.get("permute_fusion")) or not row["arch"].get("moe"),
        "expert_capacity": row.get("moe_capacity") or "auto",
        "expert_imbalance": row.get("imbalance") or 1,
        "rotary_fusion": row.get("rope_fusion", True),
        "attention_mask": bool(row.get("attention_mask")),
        "mtp_layers": row.get("mtp") or 0,
        "te_release": "2.9" if row.get("te") == "2.9" else "2.11",
        **optimizer_of(row.get("precision_aware")),
        **recompute_of(row["recompute"]),
    }
    return {"framework": "torch", "model": row["model"], "trainer": trainer, "apart": {"stage": row["stage"] + 1}}


def simumax_job(row: Row) -> Row:
    """SimuMax's measurements on B200s: the highest of all ranks, of which a row lists each."""
    parallel = row["parallelism"]
    experts = bool(row["arch"].get("experts"))
    ranks = row["extra_values"]["per_rank_max_alloc_gib"]
    stage = ranks.index(max(ranks)) * int(parallel["pp"]) // len(ranks)
    degrees = {axis: parallel[axis] for axis in ("dp", "tp", "pp", "cp", "ep")} | {"arch": {"moe": experts}}
    trainer: Row = {
        "engine": "megatron",
        "kernels": "transformer_engine",
        "layout": layout_of(degrees),
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "fp32"},
        "recompute": "none",
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq_len"],
        "micro_batches": row["grad_accum"],
        "sequence_parallel": bool(parallel["sp"]),
        "cross_entropy": "te",
        "context_exchange": "a2a",
        "expert_capacity": 1 if experts else "auto",  # as the notes of the rows with experts say
    }
    return {"framework": "torch", "model": row["model"], "trainer": trainer, "apart": {"stage": stage + 1}}


def simumax_config(row: Row) -> Row:
    """Of the models with experts, whose sizes a row states."""
    given = row["arch"]
    latents = {
        "q_lora": "q_lora",
        "kv_lora": "kv_lora",
        "qk_head": "qk_head_dim",
        "rope_head": "qk_rope_dim",
        "v_head": "v_head_dim",
    }
    moe = {"experts": "experts", "topk": "topk", "ffn": "moe_ffn", "shared": "shared_ffn", "dense_layers": "dense_layers"}
    arch = {key: given[key] for key in ("layers", "hidden", "heads", "vocab")} | {"ffn": given["dense_ffn"]}
    arch["mla"] = {name: given[key] for name, key in latents.items()}
    arch["moe"] = {name: given[key] for name, key in moe.items()} | {"pre_softmax": True}
    return config_of(arch, int(row["seq_len"]), 0.0)


def megatron_cases(row: Row, _corpus: Path) -> list[Case]:
    measured = {
        name: figure if isinstance(figure, int) else figure.get("bytes")
        for name, figure in row["peaks_by_phase"].items()
        if name in PHASES
    }
    measured["peak"] = row.get("peak_bytes")
    why, job, config = "", {}, ""
    try:
        config = json.dumps(config_of(row["arch"], int(row["seq"]), float(row["dropout"])))
        job = executed_job(row)
    except CannotExpress as reason:
        why, job, config = str(reason), {}, ""
    return [Case(row["id"], name, int(value), "training", job, config, name, why) for name, value in measured.items() if value]
