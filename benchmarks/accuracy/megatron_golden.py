"""Golden memory values of Megatron-LM's functional tests as native jobs.

The tests print what torch had allocated on the last rank: of a pipeline the last stage. Where a test is deterministic its recipe
sets CUBLAS_WORKSPACE_CONFIG=:4096:8, which makes both cuBLAS workspaces 32 MiB on every card.
"""

from __future__ import annotations

from typing import Any

from corpus import CannotExpress, Row, find_gpu

MIB = 2**20
# flags that change no tensor that is alive at the peak
NO_MEMORY = {
    "seed",
    "deterministic-mode",
    "use-mcore-models",
    "transformer-impl",
    "log-params-norm",
    "log-num-zeros-in-grad",
    "overlap-grad-reduce",
    "overlap-param-gather",
    "overlap-param-gather-with-optimizer-step",
    "calculate-per-token-loss",
    "ddp-average-in-collective",
    "optimizer",
    "tokenizer-type",
    "vocab-file",
    "group-query-attention",
    "no-masked-softmax-fusion",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "context-parallel-size",
    "expert-tensor-parallel-size",
}
# flags that a job or the model says
SAID = {
    "num-layers",
    "hidden-size",
    "ffn-hidden-size",
    "num-attention-heads",
    "num-query-groups",
    "kv-channels",
    "max-position-embeddings",
    "position-embedding-type",
    "rotary-percent",
    "normalization",
    "swiglu",
    "qk-layernorm",
    "disable-bias-linear",
    "untie-embeddings-and-output-weights",
    "vocab-size",
    "hidden-dropout",
    "attention-dropout",
    "attention-backend",
    "no-gradient-accumulation-fusion",
    "use-distributed-optimizer",
    "num-distributed-optimizer-instances",
    "no-create-attention-mask-in-dataloader",
    "no-rope-fusion",
    "cross-entropy-loss-fusion",
    "cross-entropy-fusion-impl",
    "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank",
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
}


def is_golden(row: Row) -> bool:
    return str(row.get("id") or "").startswith("mlm-golden/")


def flags_of(row: Row) -> Row:
    return {**row["arch"], **(row["extra_values"].get("other_flags") or {})}


def check(row: Row, flags: Row) -> None:
    name = str(row["id"]).split("/")[1]
    if name != "gpt":
        raise CannotExpress(f"Megatron's {name} models are not supported yet")
    if flags.get("transformer-impl") == "local":
        raise CannotExpress("Megatron without Transformer Engine is not supported yet")
    unknown = sorted(set(flags) - NO_MEMORY - SAID)
    if unknown:
        raise CannotExpress(f"Megatron's {unknown[0]} is not supported yet")
    if row.get("completeness") != "full":
        raise CannotExpress("the settings of the test are not stated in full")
    if "modelopt_distill" in str(row["id"]):
        raise CannotExpress("the test trains beside a teacher")
    if "reshard" in str(row["id"]):
        raise CannotExpress("the test goes on in another layout")


def golden_config(row: Row) -> Row:
    flags = flags_of(row)
    hidden, heads = flags["hidden-size"], flags["num-attention-heads"]
    gated = bool(flags.get("swiglu"))
    # megatron/training/arguments.py: 8/3 of the hidden size, a multiple of 64, where the activation is gated
    width = flags.get("ffn-hidden-size") or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    return {
        "model_type": "megatron_gpt",
        "num_hidden_layers": flags["num-layers"],
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": flags.get("num-query-groups") or heads,
        "head_dim": flags.get("kv-channels") or hidden // heads,
        "vocab_size": flags.get("vocab-size") or 50257,
        "max_position_embeddings": flags["max-position-embeddings"],
        "position_embedding_type": flags.get("position-embedding-type") or "learned_absolute",
        "rotary_percent": float(flags.get("rotary-percent") or 1),
        "normalization": flags.get("normalization") or "LayerNorm",
        "swiglu": gated,
        "qk_layernorm": bool(flags.get("qk-layernorm")),
        "add_bias_linear": not flags.get("disable-bias-linear"),
        "tie_word_embeddings": not flags.get("untie-embeddings-and-output-weights"),
        "hidden_dropout": float(flags.get("hidden-dropout", 0.1)),
        "attention_dropout": float(flags.get("attention-dropout", 0.1)),
        "torch_dtype": "bfloat16",
    }


def virtual_stages(flags: Row, stages: int) -> int:
    if flags.get("num-virtual-stages-per-pipeline-rank"):
        return int(flags["num-virtual-stages-per-pipeline-rank"])
    each = flags.get("num-layers-per-virtual-pipeline-stage")
    return int(flags["num-layers"]) // stages // int(each) if each else 1


def attention_of(row: Row, flags: Row) -> str:
    """Where a test leaves the choice to Transformer Engine it takes flash-attention, on Hopper cuDNN."""
    stated = flags.get("attention-backend")
    if stated in ("unfused", "flash", "fused"):
        return str(stated)
    return "fused" if "H100" in str(row["gpu"]) else "flash"


def golden_job(row: Row) -> Row:
    flags = flags_of(row)
    check(row, flags)
    parallel: Row = row["parallelism"]
    degrees = {axis: int(parallel.get(axis) or 1) for axis in ("dp", "tp", "pp", "cp")}
    letters = "".join(f"{axis[0]}{n}" for axis, n in degrees.items() if axis == "dp" or n > 1)
    micro_batches = int(row["global_batch"]) // (int(row["micro_batch"]) * degrees["dp"])
    recompute: Any = row["recompute"]
    fused_loss = flags.get("cross-entropy-loss-fusion")
    trainer: Row = {
        "engine": "megatron",
        "layout": letters,
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq_len"],
        "micro_batches": micro_batches,
        "sequence_parallel": bool(parallel.get("sp")) and degrees["tp"] > 1,
        "virtual_stages": virtual_stages(flags, degrees["pp"]),
        "first_stage_layers": flags.get("decoder-first-pipeline-num-layers") or "auto",
        "last_stage_layers": flags.get("decoder-last-pipeline-num-layers") or "auto",
        "embedding_in_split": bool(flags.get("account-for-embedding-in-pipeline-split")),
        "loss_in_split": bool(flags.get("account-for-loss-in-pipeline-split")),
        "attention": attention_of(row, flags),
        "cross_entropy": (flags.get("cross-entropy-fusion-impl") or "native") if fused_loss else "unfused",
        "gradient_accumulation_fusion": not flags.get("no-gradient-accumulation-fusion"),
        "distributed_optimizer": bool(flags.get("use-distributed-optimizer")),
        "optimizer_instances": flags.get("num-distributed-optimizer-instances") or 1,
        "attention_mask": not flags.get("no-create-attention-mask-in-dataloader"),
        "rotary_fusion": not flags.get("no-rope-fusion"),
        "recompute": "none",
    }
    if isinstance(recompute, dict):
        trainer |= {
            "recompute": recompute["granularity"],
            "recompute_method": recompute["method"],
            "recompute_layers": recompute["num_layers"],
        }
    gpu = find_gpu(row["gpu"])
    world = degrees["dp"] * degrees["tp"] * degrees["pp"] * degrees["cp"]
    job: Row = {"framework": "torch", "gpus": f"{world} x {gpu}", "model": "megatron_gpt", "trainer": trainer}
    # two workspaces of 32 MiB; without the variable those of Ampere have 8320 KiB
    if flags.get("deterministic-mode") and gpu.startswith("A100"):
        job["apart"] = {"added_bytes": 2 * (32 * MIB - 8320 * 1024)}
    return job
