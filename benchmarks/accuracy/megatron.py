"""Models and layouts of Megatron-core as config.json files and jobs, and what SimuMax measured on B200s."""

from __future__ import annotations

from corpus import CannotExpress, Row


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
    return {
        "framework": "torch",
        "gpus": f"{len(ranks)} x B200-180GB",
        "model": row["model"],
        "trainer": trainer,
        "apart": {"stage": stage + 1},
    }


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
