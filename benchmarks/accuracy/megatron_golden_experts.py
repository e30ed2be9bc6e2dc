"""Experts of Megatron-LM's functional tests: the keys of a config.json and the settings of the trainer, from a test's arguments.

Which expert a token goes to follows from weights that no test states: all experts are taken as equally full.
"""

from __future__ import annotations

from corpus import CannotExpress, Row

EXPERTS_SAID = {
    "num-experts",
    "moe-router-topk",
    "moe-grouped-gemm",
    "moe-token-dispatcher-type",
    "moe-router-load-balancing-type",
    "moe-ffn-hidden-size",
    "moe-shared-expert-intermediate-size",
    "moe-layer-freq",
    "moe-router-dtype",
    "moe-permute-fusion",
    "moe-router-pre-softmax",
    "moe-router-score-function",
    "moe-router-enable-expert-bias",
    "moe-router-num-groups",
    "moe-router-group-topk",
    "mtp-num-layers",
    "multi-latent-attention",
    "q-lora-rank",
    "kv-lora-rank",
    "qk-head-dim",
    "qk-pos-emb-head-dim",
    "v-head-dim",
}


def layout_with_experts(letters: str, parallel: Row) -> str:
    """--expert-tensor-parallel-size is the tensor-parallel size unless it is stated."""
    expert, split = int(parallel.get("ep") or 1), int(parallel.get("etp") or parallel.get("tp") or 1)
    if split == 1:
        return letters + (f"e{expert}" if expert > 1 else "")
    pipeline = int(parallel.get("pp") or 1)
    stages = f"p{pipeline}" if pipeline > 1 else ""
    return f"attn:{letters}|ffn:{stages}t{split}e{expert}"


def dense_layers(flags: Row) -> int:
    """--moe-layer-freq as "([0]*3+[1]*5)": layers without experts in front."""
    stated = flags.get("moe-layer-freq")
    if stated in (None, 1, "1"):
        return 0
    counts = [part.strip("[]() ").split("]*") for part in str(stated).split("+")]
    kinds = [kind for kind, _ in counts]
    if kinds != ["0", "1"]:
        raise CannotExpress("Megatron's moe-layer-freq is not supported yet")
    return int(counts[0][1])


def with_experts(config: Row, flags: Row) -> Row:
    sigmoid = flags.get("moe-router-score-function") == "sigmoid"
    config |= {
        "num_experts": flags["num-experts"],
        "num_experts_per_tok": flags["moe-router-topk"],
        # transformer_config.py: experts are as wide as a dense block unless it is stated
        "moe_intermediate_size": flags.get("moe-ffn-hidden-size") or config["intermediate_size"],
        "moe_shared_expert_intermediate_size": flags.get("moe-shared-expert-intermediate-size") or 0,
        "first_k_dense_replace": dense_layers(flags),
        "norm_topk_prob": not flags.get("moe-router-pre-softmax"),
        "moe_router_score_function": "sigmoid" if sigmoid else "softmax",
        "moe_router_enable_expert_bias": bool(flags.get("moe-router-enable-expert-bias")),
    }
    return with_latents(config, flags) if flags.get("multi-latent-attention") else config


def with_latents(config: Row, flags: Row) -> Row:
    """Latent attention with a router of sigmoids, groups and a bias is DeepSeek V3's model."""
    if not flags.get("moe-router-enable-expert-bias") or flags.get("normalization") != "RMSNorm" or not flags.get("swiglu"):
        raise CannotExpress("Megatron's latent attention in other models than DeepSeek's is not supported yet")
    width = int(config["moe_intermediate_size"])
    config |= {
        "model_type": "deepseek_v3",
        "n_routed_experts": config["num_experts"],
        "n_shared_experts": int(flags.get("moe-shared-expert-intermediate-size") or 0) // width,
        "n_group": flags.get("moe-router-num-groups") or 1,
        "topk_group": flags.get("moe-router-group-topk") or 1,
        "q_lora_rank": flags.get("q-lora-rank"),
        "kv_lora_rank": flags["kv-lora-rank"],
        "qk_nope_head_dim": flags["qk-head-dim"],
        "qk_rope_head_dim": flags["qk-pos-emb-head-dim"],
        "v_head_dim": flags["v-head-dim"],
    }
    del config["head_dim"]
    return config


def experts_settings(flags: Row) -> Row:
    """Megatron's defaults: the allgather dispatcher, experts one after another, no loss that balances them."""
    balance = str(flags.get("moe-router-load-balancing-type") or "aux_loss")
    if balance not in ("aux_loss", "seq_aux_loss", "sinkhorn", "none"):
        raise CannotExpress(f"Megatron's {balance} is not supported yet")
    coefficient = float(flags.get("moe-aux-loss-coeff") or 0)
    return {
        "dispatcher": flags.get("moe-token-dispatcher-type") or "allgather",
        "grouped_experts": bool(flags.get("moe-grouped-gemm")),
        "permute_fusion": bool(flags.get("moe-permute-fusion")),
        "router_dtype": flags.get("moe-router-dtype") or "bf16",
        "sinkhorn": balance == "sinkhorn",
        "router_aux_loss": balance in ("aux_loss", "seq_aux_loss") and coefficient > 0,
        "mtp_layers": flags.get("mtp-num-layers") or 0,
    }
