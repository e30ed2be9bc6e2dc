"""Makes tests/data/executed_found.jsonl: small models with the settings in which random jobs (fuzz.py) were once predicted wrong.

PYTHONPATH=build/python python benchmarks/oracle/execute_found.py [--only NAME...] [--output tests/data/executed_found.jsonl]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fuzz
import torch
import transformers
from execute import MODELS, ROOT, SMALL, Row
from execute_scaler import item_of
from row_lines import write_rows

BASE: Row = {
    "engine": "single",
    "attention": "eager",
    "dtype": "bf16",
    "sequences": 1,
    "tokens": 300,
    "recompute": "none",
    "every": 1,
    "micro_batches": 1,
    "optimizer": "sgd",
    "clip": False,
    "head": "hf_loss",
    "keep_outputs": False,
    "lora": None,
    "padding": False,
}
SHARDED: Row = {"dtype": "fp32", "compute": "bf16", "reduce": "fp32", "ranks": 4, "deferred": False, "forward_prefetch": False}
FSDP2: Row = SHARDED | {"engine": "fsdp2", "reshard": True, "root_reshard": False, "wrap_embedding": True, "wrap_head": True}
FSDP1: Row = SHARDED | {"engine": "fsdp1", "strategy": "FULL_SHARD", "backward_prefetch": "pre", "use_orig_params": False}
CHECKPOINT: Row = {"recompute": "nonreentrant"}
REENTRANT: Row = {"recompute": "reentrant"}
AUTOCAST: Row = {"dtype": "autocast"}
SDPA: Row = {"attention": "sdpa", "tokens": 320}
TWO: Row = {"sequences": 2}
GPT2: Row = {
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 2048,
    "n_inner": 512,
    "vocab_size": 1001,
    "tie_word_embeddings": False,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.0,
}
NEOX: Row = {
    "model_type": "gpt_neox",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 1001,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "hidden_dropout": 0.1,
}
FALCON: Row = {
    "model_type": "falcon",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 1001,
    "new_decoder_architecture": False,
    "multi_query": True,
    "parallel_attn": True,
    "bias": False,
    "alibi": False,
    "ffn_hidden_size": 512,
}


def small(family: str, **fields: object) -> Row:
    return {"model_type": family, **SMALL, "vocab_size": 2053, **MODELS.get(family, {}), **fields}


FULL = ["full_attention"] * 4
DROPPED = small("phi", resid_pdrop=0.1, embd_pdrop=0.1)
ONE_HEAD = small("llama", num_key_value_heads=1)
MAMBA2: Row = {
    "model_type": "mamba2",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "vocab_size": 1001,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "state_size": 16,
    "head_dim": 16,
    "num_heads": 16,
    "n_groups": 1,
    "chunk_size": 16,
}
STATES: Row = {**FSDP2, "tokens": 33}
OPT: Row = {
    "model_type": "opt",
    "hidden_size": 256,
    "ffn_dim": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1001,
    "max_position_embeddings": 512,
    "word_embed_proj_dim": 256,
    "tie_word_embeddings": False,
    "dropout": 0.0,
    "pad_token_id": 0,
}
NEXT: Row = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 104,
    "shared_expert_intermediate_size": 40,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
PADDED: Row = {"padding": True, "sequences": 2, "tokens": 96, "dtype": "bf16"}
WIDE_HEADS: Row = {
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 520,
    "vocab_size": 1001,
}
ADAPTERS: Row = {"rank": 5, "dropout": 0.0, "verl": False, "targets": "q_proj v_proj", "format": "fp32"}
APART: Row = {**FSDP1, "dtype": "bf16", "lora": ADAPTERS}  # a base that is stored as it computes, adapters that are not
CAST: Row = {"autocast": True}  # around a model that FSDP casts
LOG_PROBS: Row = {"head": "logprob_bf16"}
HALF: Row = {"dtype": "autocast_of_bf16"}
LOOPS = ("adam_loop", "adafactor", "torch_adafactor")  # which hold what the parameter before left
CHUNKS: Row = {"head": "logprob_chunked", "tokens": 300}
WIDE: Row = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 8009}
TWICE: Row = {"micro_batches": 2}
GROUPS: Row = {**FSDP2, "groups": 2}
DDP: Row = {"engine": "ddp", "dtype": "fp32", "tokens": 33, "gradient_as_bucket_view": False, "find_unused_parameters": True}
DDP |= {"static_graph": False, "keep_gradients": False, "deferred": False}
PER_LAYER: Row = {
    "model_type": "gemma3n_text",
    "hidden_size": 128,
    "intermediate_size": [256] * 4,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 4096,
    "vocab_size_per_layer_input": 4096,
    "hidden_size_per_layer_input": 32,
    "laurel_rank": 16,
    "num_kv_shared_layers": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "activation_sparsity_pattern": [0.0] * 4,
    "sliding_window": 64,
}
STORED: Row = {"rank": 5, "dropout": 0.1, "verl": True, "targets": "all-linear", "format": "storage"}
IA3: Row = {"kind": "ia3", "rank": 1, "dropout": 0.0, "verl": False, "targets": "down_proj", "format": "fp32"}
IN_FP32: Row = {"policy": "none", "dtype": "fp32", "compute": "fp32", "reduce": "fp32"}
CASES: dict[str, tuple[Row, list[Row]]] = {
    "gpt_oss": (
        small("gpt_oss"),
        [
            *({**AUTOCAST, **how} for how in ({}, CHECKPOINT, {**REENTRANT, **TWO})),
            *({**FSDP2, **how} for how in ({}, CHECKPOINT, {**REENTRANT, **TWO})),
            *({**FSDP1, **how} for how in (CHECKPOINT, REENTRANT)),
        ],
    ),
    "gpt2": (GPT2, [REENTRANT, {**REENTRANT, "sequences": 3}, {**FSDP2, **CHECKPOINT, "ranks": 2}]),
    "gpt_neox with dropout": (NEOX, [{}, {**TWO, **CHECKPOINT, **SDPA}, {**TWO, **AUTOCAST, **REENTRANT}]),
    "gpt_neox with dropout in turn": ({**NEOX, "use_parallel_residual": False}, [TWO]),
    "phi": (small("phi"), [{**TWO, **AUTOCAST, **REENTRANT}, {**AUTOCAST, **REENTRANT, "head": "logprob_fp32"}]),
    "phi with dropout": (DROPPED, [{**TWO, **SDPA}, REENTRANT, {**TWO, **AUTOCAST}]),
    "seed_oss": (small("seed_oss", head_dim=64), [{**TWO, **AUTOCAST, **REENTRANT, "head": "logprob_fp32"}]),
    "llama with one head of keys": (ONE_HEAD, [{**SDPA, "dtype": "fp32", **how} for how in ({}, TWO, {**TWO, **CHECKPOINT})]),
    "falcon with one head of keys": (FALCON, [{**TWO, **REENTRANT, "attention": "sdpa", "tokens": 64}]),
    "minimax_m2 with one head of keys": (small("minimax_m2", num_key_value_heads=1), [TWO]),
    "cohere2 without rotation": (small("cohere2", layer_types=FULL), [{**SDPA, **TWO}, {**SDPA, **CHECKPOINT}]),
    "exaone4 without rotation": (small("exaone4", layer_types=FULL, sliding_window=64, head_dim=64), [SDPA]),
    "glm4_moe with a dense layer": (
        small("glm4_moe", **WIDE_HEADS, use_qk_norm=True, first_k_dense_replace=1, num_hidden_layers=1),
        [
            {**SDPA, **CHECKPOINT},
            {**SDPA, **FSDP1, **CHECKPOINT, "head": "logprob_fp32", "keep_outputs": True},
            {**FSDP2, **SDPA},
        ],
    ),
    "deepseek_v2": (
        small("deepseek_v2", hidden_size=32, num_hidden_layers=2, vocab_size=307),
        [{**SDPA, **FSDP1, **CHECKPOINT, "sequences": 4}],
    ),
    "mamba2": (
        MAMBA2,
        [
            *({**STATES, **how} for how in ({}, CHECKPOINT, REENTRANT, {"compute": "fp16", "wrap_head": False})),
            {**STATES, **LOG_PROBS, "reshard": False, "root_reshard": True, "forward_prefetch": True},
        ],
    ),
    "falcon with a head of keys for each of queries": (
        {**FALCON, "multi_query": False},
        [{}, {**TWO, "attention": "sdpa", "tokens": 64}, {**FSDP2, **CHECKPOINT}, {**FSDP1, **TWO}],
    ),
    "gpt_neox": ({**NEOX, "hidden_dropout": 0.0}, [{"optimizer": "adamw_loop"}, {**FSDP2, "optimizer": "adamw_loop"}, FSDP2]),
    "gpt2 without dropout": ({**GPT2, "embd_pdrop": 0.0}, [{**FSDP2, **LOG_PROBS, "sequences": 4}]),
    "opt": (OPT, [{**SDPA, **LOG_PROBS, "sequences": 3}, {**FSDP2, **SDPA, **LOG_PROBS, "root_reshard": True}]),
    "opt with norms behind": (
        {**OPT, "do_layer_norm_before": False, "max_position_embeddings": 2048, "num_hidden_layers": 1},
        [{**FSDP2, **SDPA, **LOG_PROBS, "dtype": "bf16", "tokens": 96, "root_reshard": True, "wrap_embedding": False}],
    ),
    "qwen3_next with one head": (
        small("qwen3_next", hidden_size=256, head_dim=64, num_attention_heads=1, num_key_value_heads=1, **NEXT),
        [{**FSDP2, "attention": "flash_attention_2", "tokens": 211}],
    ),
    **{
        f"{family} with padding": (
            small(family, hidden_size=256, head_dim=64, vocab_size=64, num_key_value_heads=2, **NEXT),
            [{**PADDED, **how} for how in ({}, SDPA, CHECKPOINT, {"dtype": "fp32"}, FSDP2, FSDP1, {**FSDP1, **CHECKPOINT})],
        )
        for family in ("qwen3_next", "qwen3_5_text")
    },
    "llama": (
        small("llama", tie_word_embeddings=False),
        [
            *(
                {**GROUPS, **how}
                for how in ({}, {"reduce": "bf16"}, TWICE, {**TWICE, "reduce": "bf16"}, {**TWICE, "deferred": True})
            ),
            {**GROUPS, "dtype": "bf16", "root_reshard": True, **LOG_PROBS},
            {**FSDP1, "groups": 2, "strategy": "HYBRID_SHARD"},
            {**LOG_PROBS, **TWO, "kept": 100},
            {**AUTOCAST, **LOG_PROBS, **TWO, "tokens": 40, "kept": 30},
            {"sequences": 4, **CHECKPOINT},
            *(
                {**APART, **how}
                for how in ({}, {**CHECKPOINT, **CAST}, {**REENTRANT, "reduce": "bf16"}, {**TWICE, "deferred": True})
            ),
            {**APART, "lora": {**ADAPTERS, "targets": "all-linear", "dropout": 0.1}, **CAST},
            *({**engine, **CAST, **LOG_PROBS, **TWO} for engine in (FSDP1, FSDP2)),
            *({**FSDP2, "kept_over": 2, "root_reshard": True, **how} for how in ({}, {**CHECKPOINT, **TWICE})),
        ],
    ),
    "gpt2 under autocast of FSDP": (
        {**GPT2, "embd_pdrop": 0.0},
        [{**e, **CAST, **h} for e in (FSDP1, FSDP2) for h in ({}, CHECKPOINT)],
    ),
    "olmo2": (small("olmo2"), [{**FSDP2, "tokens": n, "wrap_head": False, **how} for n in (17, 77) for how in ({}, CHECKPOINT)]),
    "olmoe": (
        small("olmoe", num_experts=6, num_experts_per_tok=2),
        [{**e, **CAST, **h} for e in (FSDP1, FSDP2) for h in ({}, REENTRANT)],
    ),
    "llama that DDP looks through": (
        small("llama", tie_word_embeddings=False, vocab_size=8009),
        [
            *({**DDP, **how} for how in ({}, {**TWO, "keep_outputs": True}, CHECKPOINT, {"static_graph": True})),
            {**DDP, **TWICE, "deferred": True, "gradient_as_bucket_view": True},
            *({**DDP, **TWO, "head": head} for head in ("logprob_fp32", "logprob_bf16")),
            {**DDP, **LOG_PROBS, "kept": 20, "keep_outputs": True},
        ],
    ),
    "gpt_neox that DDP looks through": ({**NEOX, "hidden_dropout": 0.0, "vocab_size": 8009}, [{**DDP, **TWO}]),
    "starcoder2 with padding": (small("starcoder2"), [{**SDPA, **CHECKPOINT, "padding": True, "sequences": 3, "tokens": 96}]),
    "starcoder2 with a narrow feed-forward": (
        small(
            "starcoder2", hidden_size=384, intermediate_size=72, num_attention_heads=16, num_key_value_heads=4, vocab_size=1001
        ),
        [{**SDPA, **CHECKPOINT, "padding": True, "sequences": 3, "tokens": 96, "keep_outputs": True}],
    ),
    "gpt_oss with adapters": (
        small("gpt_oss", num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]),
        [{**CHECKPOINT, **TWO, "tokens": 64, "head": "logprob_bf16", "lora": ADAPTERS}],
    ),
    "phi with dropout and a narrow feed-forward": (
        small("phi", resid_pdrop=0.1, intermediate_size=72, num_hidden_layers=1, vocab_size=307),
        [{**SDPA, **REENTRANT, **LOG_PROBS}, {**FSDP2, **SDPA, **REENTRANT, **LOG_PROBS, "kept": 137}],
    ),
    **{
        f"{family} under autocast in 16 bits": (config, [{**HALF, **how} for how in ({}, {**TWO, **CHECKPOINT, **SDPA})])
        for family, config in {
            "phi": small("phi"),
            "gpt_neox": {**NEOX, "hidden_dropout": 0.0},
            "gpt2": {**GPT2, "embd_pdrop": 0.0},
            "starcoder2": small("starcoder2"),
            "stablelm": small("stablelm"),
        }.items()
    },
    "falcon under autocast in 16 bits": (FALCON, [HALF, {**HALF, "attention": "sdpa", "tokens": 128}]),
    "opt under autocast in 16 bits": (OPT, [{**HALF, "head": "logprob_lse"}, {**HALF, **TWO, "head": "cross_entropy"}]),
    "phi under autocast in 16 bits, with adapters": (
        small("phi"),
        [{**HALF, **how, "lora": ADAPTERS} for how in ({}, {**REENTRANT, **TWO})],
    ),
    "llama with a wide head": (
        small("llama", **WIDE),
        [
            *({**LOG_PROBS, "head": "logprob_rows", "sequences": n, "tokens": 64} for n in (1, 2, 3, 7)),
            *({**CHUNKS, "sequences": n} for n in (3, 4, 7, 11, 19)),
            {**CHUNKS, **AUTOCAST, "sequences": 5, "tokens": 211},
        ],
    ),
    **{
        f"{family}, steps of one parameter after another": (config, [{"tokens": 33, "optimizer": name} for name in LOOPS])
        for family, config in {
            "mixtral": small("mixtral", intermediate_size=2048, vocab_size=307),
            "qwen3_moe": small("qwen3_moe", num_experts=8, moe_intermediate_size=1024, num_experts_per_tok=2),
            "gemma3n": PER_LAYER,
        }.items()
    },
    "phi3": (
        small("phi3", pad_token_id=0),
        [
            {**CHECKPOINT, **TWO, "lora": IA3},
            {**CHECKPOINT, "lora": IA3, "tokens": 64},
            {**CHECKPOINT, **TWO, "head": "logprob_fp32"},
        ],
    ),
    "phi3 with a feed-forward narrower than the model": (
        small("phi3", intermediate_size=296, pad_token_id=0),
        [{**TWO, **CHECKPOINT}, TWO],
    ),
    "phi3 with one head": (
        small(
            "phi3",
            num_attention_heads=1,
            num_key_value_heads=1,
            hidden_size=48,
            intermediate_size=296,
            vocab_size=307,
            pad_token_id=0,
        ),
        [{**TWO, "tokens": 40}, {**TWO, **CHECKPOINT, "tokens": 40}],
    ),
    "cohere2 whose adapters gather a layer behind them": (
        small("cohere2", hidden_size=256, num_hidden_layers=2, vocab_size=1001, layer_types=FULL[:2]),
        [
            {**FSDP1, "backward_prefetch": "post", "lora": STORED, "tokens": 77, **how}
            for how in ({}, CHECKPOINT, {**CHECKPOINT, **CAST}, {"micro_batches": 3, **REENTRANT})
        ],
    ),
    "gemma2 with adapters and few logits": (
        small("gemma2", head_dim=64, sliding_window=128, layer_types=FULL, query_pre_attn_scalar=64),
        [{**engine, "dtype": "bf16", "lora": STORED, **TWO, "kept": 45, "head": "logprob_fp32"} for engine in (FSDP1, FSDP2)],
    ),
    "llama, 16-bit log-probs under autocast": (
        small("llama", tie_word_embeddings=False, vocab_size=8009),
        [
            {**LOG_PROBS, **TWO, **AUTOCAST, "tokens": 64},
            *({**LOG_PROBS, **TWO, **CAST, **engine, "tokens": 64} for engine in (FSDP1, FSDP2)),
            *(
                {**engine, "head": head, "tokens": 64}
                for engine in (FSDP1, FSDP2)
                for head in ("logprob_temperature", "logprob_lse", "cross_entropy")
            ),
            *(
                {**engine, **IN_FP32, "head": "logprob_temperature", "tokens": 64, **how}
                for engine in (FSDP1, FSDP2)
                for how in ({}, CHECKPOINT, CAST)
            ),
        ],
    ),
    "gpt_oss in 16 bits under autocast": (small("gpt_oss"), [{**FSDP2, **CAST, **how} for how in ({}, {**CHECKPOINT, **TWO})]),
    "glm4_moe_lite": (small("glm4_moe_lite", vocab_size=307), [{"tokens": 17}, {**FSDP2, "tokens": 17, "ranks": 64}]),
    "llama, norms for clipping": (
        small("llama", vocab_size=307),
        [
            {**how, "clip": True, "tokens": 17}
            for how in (
                {},
                {**FSDP1, "ranks": 64},
                {**FSDP1, "ranks": 64, "use_orig_params": True},
                {**FSDP2, "ranks": 64},
                {**FSDP2, "dtype": "bf16", "ranks": 64},
            )
        ],
    ),
    "llama, forward passes alone": (
        small("llama", tie_word_embeddings=False, vocab_size=8009),
        [
            {**how, "head": head, "tokens": 64, "forward_only": True}
            for how in ({}, {"dtype": "fp32"}, FSDP1, FSDP2, {**FSDP2, "reshard": False})
            for head in ("logprob_fp32", "logprob_temperature")
        ],
    ),
    "qwen2_moe": (
        small(
            "qwen2_moe",
            hidden_size=192,
            vocab_size=307,
            num_experts=12,
            num_experts_per_tok=1,
            moe_intermediate_size=56,
            shared_expert_intermediate_size=104,
        ),
        [{**SDPA, **LOG_PROBS}, {**FSDP2, **SDPA, **CHECKPOINT, "head": "logprob_fp32"}],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_found.jsonl")
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
            masked = bool(given.get("padding"))  # nobody reads the mask's values
            transformers.masking_utils.is_tracing = lambda *_, masked=masked: masked
            peaks, job = fuzz.execute_case(config, case), fuzz.job_of(case)
            lines.append({"id": f"{name}/{fuzz.words_of(case)}", "config": name, "job": job, "source": by, "peaks": peaks})
            off = fuzz.differences(peaks, fuzz.ask(oomplan._core, job, config))
            print(lines[-1]["id"], " ".join(f"{phase} {percent:+.4f} %" for phase, percent in off.items()), flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
