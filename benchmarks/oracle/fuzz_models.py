"""Draws small models of every family for fuzz.py: sizes that do not divide one another, and each family's own switches."""

from __future__ import annotations

import random
from typing import Any

Row = dict[str, Any]

# Families whose heads have a width of their own.
OWN_WIDTH = [
    "llama",
    "mistral",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "glm",
    "glm4",
    "ernie4_5",
    "minimax_m2",
    "mixtral",
    "seed_oss",
    "ministral3",
    "hunyuan_v1_dense",
    "qwen3_moe",
    "glm4_moe",
    "qwen3_next",
    "qwen3_5_text",
    "exaone4",
    "cwm",
    "arcee",
    "hyperclovax",
    "exaone_moe",
    "mellum",
    "solar_open",
    "vaultgemma",
]
MULTI_HEAD = ("phi", "gpt2", "gpt_neox", "opt", "bloom", "deepseek_v3", "glm4_moe_lite", "deepseek_v2", "youtu")
EXPERTS = [
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "minimax_m2",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "dots1",
    "glm4_moe",
    "glm4_moe_lite",
    "qwen3_next",
    "exaone_moe",
    "mellum",
    "solar_open",
    "flex_olmo",
]
STATES = ("mamba", "mamba2", "falcon_mamba")


def some(rng: random.Random, *values: Any) -> Any:
    return rng.choice(values)


def flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def windows(rng: random.Random, layers: int) -> Row:
    span = some(rng, 16, 33, 64, 1000)
    types = [some(rng, "sliding_attention", "full_attention") for _ in range(layers)]
    return {"sliding_window": span, "layer_types": types}


def routed(rng: random.Random) -> Row:
    groups = some(rng, 1, 2, 4)
    experts = groups * some(rng, 3, 4, 6)
    return {
        "n_routed_experts": experts,
        "num_experts_per_tok": rng.randint(1, 3),
        "moe_intermediate_size": some(rng, 24, 56, 104, 136),
        "n_shared_experts": rng.randint(1, 2),
        "first_k_dense_replace": rng.randint(0, 2),
        "n_group": groups,
        "topk_group": rng.randint(1, groups),
        "norm_topk_prob": flag(rng),
    }


def latent(rng: random.Random) -> Row:
    return {
        "q_lora_rank": some(rng, None, 40, 72),
        "kv_lora_rank": some(rng, 24, 56, 64),
        "qk_nope_head_dim": some(rng, 24, 40, 48),
        "qk_rope_head_dim": some(rng, 8, 16, 24),
        "v_head_dim": some(rng, 16, 24, 32),
    }


def sparse(rng: random.Random) -> Row:
    return {
        "num_experts": some(rng, 4, 7, 12),
        "num_experts_per_tok": rng.randint(1, 4),
        "moe_intermediate_size": some(rng, 24, 56, 104),
        "norm_topk_prob": flag(rng),
    }


def partial(rng: random.Random) -> Row:
    return {"partial_rotary_factor": some(rng, 0.25, 0.5)}


def of_family(family: str, rng: random.Random, layers: int, heads: int) -> Row:
    """What only this family's config has."""
    bias = {"attention_bias": flag(rng)}
    if family in ("llama",):
        return bias | {"mlp_bias": flag(rng)}
    if family in ("mistral", "ministral3", "phi3"):
        return {"sliding_window": some(rng, None, 33, 1000)}
    if family in ("qwen3", "gemma", "hunyuan_v1_dense", "olmo2", "glm", "glm4"):
        return bias | (partial(rng) if family.startswith("glm") else {})
    if family in ("gemma2", "gemma3_text", "olmo3", "cohere2", "smollm3"):
        own = {"query_pre_attn_scalar": 48} if family.startswith("gemma") else {}
        if family == "smollm3":
            own = {"no_rope_layer_interval": some(rng, 2, 3, 4), "use_sliding_window": False}
            return bias | own
        return bias | own | windows(rng, layers)
    if family == "exaone4":
        return windows(rng, layers) if flag(rng) else {"sliding_window": None, "layer_types": ["full_attention"] * layers}
    if family == "cwm":
        return windows(rng, layers) | {"mlp_bias": flag(rng)}
    if family in ("arcee", "jais2"):
        return bias | {"mlp_bias": flag(rng)}
    if family == "hyperclovax":
        own = {"use_post_norm": flag(rng), "residual_multiplier": 0.22, "logits_scaling": some(rng, 1.0, 8.0)}
        return bias | own | {"mlp_bias": flag(rng)}
    if family == "youtu":
        return latent(rng) | {"q_lora_rank": some(rng, 40, 72), "rope_theta": 10000.0}
    if family == "vaultgemma":
        return bias | {"query_pre_attn_scalar": 48} | windows(rng, layers)
    if family == "exaone_moe":
        own = {"num_shared_experts": rng.randint(1, 2), "first_k_dense_replace": rng.randint(0, 2)}
        return windows(rng, layers) | sparse(rng) | own
    if family == "mellum":
        return windows(rng, layers) | sparse(rng) | bias
    if family == "solar_open":
        own = routed(rng) | bias
        own.pop("first_k_dense_replace")
        return own
    if family == "flex_olmo":
        own = sparse(rng) | bias
        own.pop("moe_intermediate_size")
        return own
    if family == "gpt_oss":
        return windows(rng, layers) | {"num_local_experts": some(rng, 4, 7), "num_experts_per_tok": rng.randint(1, 3)}
    if family == "deepseek_v2":
        greedy = flag(rng)
        return routed(rng) | latent(rng) | {"topk_method": "greedy" if greedy else "group_limited_greedy"}
    if family in ("deepseek_v3", "glm4_moe_lite"):
        return routed(rng) | latent(rng) | {"q_lora_rank": some(rng, 40, 72), "rope_theta": 10000.0, "first_k_dense_replace": 1}
    if family in ("dots1", "glm4_moe"):
        own = {"use_qk_norm": flag(rng), **partial(rng)} if family == "glm4_moe" else {}
        return routed(rng) | own
    if family == "minimax_m2":
        return {"num_local_experts": some(rng, 4, 7), "num_experts_per_tok": rng.randint(1, 3), "rotary_dim": 8}
    if family == "mixtral":
        return {"num_local_experts": some(rng, 4, 7), "num_experts_per_tok": rng.randint(1, 3)}
    if family in ("qwen2_moe", "qwen3_moe", "olmoe"):
        own = {"shared_expert_intermediate_size": some(rng, 40, 104)} if family == "qwen2_moe" else {}
        return sparse(rng) | own
    if family == "falcon":
        new, multi = flag(rng), flag(rng)
        return {
            "new_decoder_architecture": new,
            "multi_query": multi,
            "parallel_attn": flag(rng),
            "bias": flag(rng),
            "num_kv_heads": some(rng, 1, heads) if new else None,
            "alibi": False,
        }
    if family == "bloom":
        return {"apply_residual_connection_post_layernorm": flag(rng)}
    if family == "opt":
        return {"do_layer_norm_before": flag(rng), "dropout": some(rng, 0.0, 0.1), "enable_bias": True}
    if family == "starcoder2":
        rates = some(rng, 0.0, 0.1)
        return {"use_bias": flag(rng), "residual_dropout": rates, "embedding_dropout": rates}
    if family == "stablelm":
        return partial(rng) | {"use_qkv_bias": flag(rng), "use_parallel_residual": flag(rng), "qk_layernorm": flag(rng)}
    if family == "phi":
        return partial(rng) | {"qk_layernorm": flag(rng), "resid_pdrop": some(rng, 0.0, 0.1)}
    if family == "gpt_neox":
        own = {"use_parallel_residual": flag(rng), "attention_bias": flag(rng), "hidden_dropout": some(rng, 0.0, 0.1)}
        return own | {"rotary_pct": some(rng, 0.25, 0.5, 1.0)}
    if family == "gpt2":
        rate = some(rng, 0.0, 0.1)
        return {"resid_pdrop": rate, "embd_pdrop": rate, "attn_pdrop": 0.0}
    if family == "olmo":
        return bias | {"clip_qkv": some(rng, None, 8.0)}
    if family == "ernie4_5":
        return {"use_bias": flag(rng)}
    if family == "seed_oss":
        rate = some(rng, 0.0, 0.1)
        return {
            "attention_dropout": 0.0,
            "residual_dropout": rate,
            "attention_out_bias": flag(rng),
            "mlp_bias": flag(rng),
            **bias,
        }
    if family == "cohere":
        return bias | {"use_qk_norm": flag(rng)}
    if family == "granite":
        return bias | {"mlp_bias": flag(rng), "residual_multiplier": 0.22, "logits_scaling": some(rng, 1.0, 8.0)}
    return {}


FAMILIES = [
    "gemma3_text",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "falcon",
    "bloom",
    "opt",
    "starcoder2",
    "stablelm",
    "glm",
    "glm4",
    "olmo",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "smollm3",
    "granite",
    "ernie4_5",
    "minimax_m2",
    "cohere",
    "cohere2",
    "gpt2",
    "gpt_neox",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "dots1",
    "glm4_moe",
    "glm4_moe_lite",
    "seed_oss",
    "ministral3",
    "hunyuan_v1_dense",
    "gemma",
    "gemma2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mamba",
    "mamba2",
    "falcon_mamba",
    "qwen3_next",
    "exaone4",
    "cwm",
    "arcee",
    "jais2",
    "hyperclovax",
    "youtu",
    "vaultgemma",
    "exaone_moe",
    "mellum",
    "solar_open",
    "flex_olmo",
]


def of_states(family: str, rng: random.Random, config: Row) -> Row:
    hidden = some(rng, 64, 96, 136)
    out = {"model_type": family, "hidden_size": hidden, "num_hidden_layers": config["num_hidden_layers"]}
    out |= {"vocab_size": config["vocab_size"], "tie_word_embeddings": flag(rng), "pad_token_id": 0}
    out |= {"state_size": some(rng, 8, 12, 16), "conv_kernel": 4, "expand": 2, "use_bias": flag(rng), "use_conv_bias": flag(rng)}
    if family == "mamba2":
        width = some(rng, 8, 16)
        groups = some(rng, 1, 2)
        out |= {"head_dim": width, "num_heads": 2 * hidden // width, "n_groups": groups, "chunk_size": some(rng, 16, 64)}
    else:
        out |= {"time_step_rank": some(rng, 4, 6), "use_mambapy": False, "use_associative_scan": False}
    return out


def draw_model(family: str, rng: random.Random) -> Row:
    layers = rng.randint(1, 6)
    kv = rng.randint(1, 4)
    heads = kv * rng.randint(1, 4)
    if family in MULTI_HEAD:
        kv = heads = some(rng, 2, 3, 4, 6)
    width = some(rng, 8, 16, 24, 32, 48, 64)
    hidden = heads * width
    own: Row = {}
    if family in OWN_WIDTH:
        hidden = heads * some(rng, 16, 24, 40)  # a multiple of the heads all the same, as some configs want it
        own["head_dim"] = width
    elif family not in ("phi", "gpt2", "gpt_neox", "opt", "bloom"):
        own = {}
    config: Row = {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": some(rng, 72, 168, 296, 344, 520),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": some(rng, 307, 1001, 2053, 4099),
        "max_position_embeddings": 2048,
        "tie_word_embeddings": flag(rng),
        "pad_token_id": 0,
    }
    if family in STATES:
        return of_states(family, rng, config)
    config |= own | of_family(family, rng, layers, heads)
    if family in (
        "glm4_moe",
        "glm",
        "glm4",
        "phi",
        "stablelm",
        "minimax_m2",
        "qwen3_next",
        "gpt_neox",
    ):  # half a head must be even
        key = "head_dim" if "head_dim" in config else "hidden_size"
        config[key] = 32 * heads if key == "hidden_size" else some(rng, 16, 32, 64)
    if family == "qwen3_next":
        config |= sparse(rng) | {"shared_expert_intermediate_size": 40, "partial_rotary_factor": 0.25}
        config |= {"linear_num_key_heads": 2, "linear_num_value_heads": some(rng, 2, 4), "linear_key_head_dim": some(rng, 8, 16)}
        config |= {"linear_value_head_dim": some(rng, 8, 24), "linear_conv_kernel_dim": 4}
        config["layer_types"] = [some(rng, "linear_attention", "full_attention") for _ in range(layers)]
    if family == "opt":
        config["ffn_dim"] = config.pop("intermediate_size")
        config["word_embed_proj_dim"] = config["hidden_size"] if flag(rng) else 40
        config.pop("num_key_value_heads")
    if family == "bloom":
        config |= {"n_layer": layers, "n_head": heads}
        for key in ("num_key_value_heads", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
            config.pop(key)
    if family == "falcon":
        config["ffn_hidden_size"] = config.pop("intermediate_size")
        config.pop("num_key_value_heads")
    if family == "gpt2":
        config |= {"n_embd": config.pop("hidden_size"), "n_layer": layers, "n_head": heads, "n_positions": 2048}
        config["n_inner"] = config.pop("intermediate_size")
        for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"):
            config.pop(key)
    if family in ("phi", "gpt_neox"):
        config.pop("num_key_value_heads") if family == "gpt_neox" else None
    return config
