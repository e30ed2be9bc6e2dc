"""What Megatron-Bridge published of its own runs on H100s, as native jobs.

A row names a recipe and what was changed in it; the rest is the recipe's (NVIDIA-NeMo/Megatron-Bridge 600d069b8 of 2026-08-11,
which locks Transformer Engine 2.17.1: uv.lock). What a recipe sets is cited beside each function. Routing is taken as even.
"""

from __future__ import annotations

from corpus import CannotExpress, Row, not_yet


def is_bridge(row: Row) -> bool:
    return row.get("group") == "megatron-bridge"


def moonlight(row: Row) -> Row:
    """src/megatron/bridge/recipes/moonlight/h100/moonlight_16b.py, moonlight_16b_pretrain_8gpu_h100_bf16_config, on
    models/deepseek/deepseek_v3_bridge.py (router in fp32, no fused rotary positions, shared experts beside the exchange).

    Fp8 is off, but training/mixed_precision.py has fp8_recipe "tensorwise" and hands it to the optimizer, so that Megatron keeps
    fp32 masters itself (megatron/core/optimizer/optimizer_config.py, use_precision_aware_optimizer_no_fp8_or_ds_fp8).
    """
    parallel = row["parallelism"]
    modules = str(row["recompute"]).removeprefix("selective modules ").strip()
    recompute: Row = {"recompute": "none"}
    if modules != "[]":
        recompute = {"recompute": "selective", "recompute_modules": modules.split("+")}
    return {
        "layout": f"d{parallel['dp']}t{parallel['tp']}e{parallel['ep']}",
        "sequence_parallel": True,
        "sequences_per_micro_batch": row["micro_batch"],
        "sequence_tokens": row["seq_len"],
        "micro_batches": int(row["global_batch"]) // (int(row["micro_batch"]) * int(parallel["dp"])),
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "bf16"},
        "precision_aware_optimizer": True,
        "fp32_masters": True,
        "exp_avg_dtype": "bf16",
        "exp_avg_sq_dtype": "bf16",
        "te_release": "2.14",
        "overlap_grad_reduce": True,
        "cross_entropy": "te",
        "router_dtype": "fp32",
        "rotary_fusion": False,
        "shared_expert_overlap": True,
        **recompute,
    }


def qwen3_adapters(row: Row) -> Row:
    """recipes/qwen/qwen3.py at 33655ef84 (2026-07-01, the change that measured it; Transformer Engine 2.16), qwen3_8b_peft_config, with
    the row's tensor parallelism and sequence. models/qwen/qwen3_bridge.py leaves bias_activation_fusion off.

    With everything frozen but adapters the number of data-parallel ranks, which is not stated, changes nothing: the optimizer is
    not distributed.
    """
    parallel = row["parallelism"]
    return {
        "layout": f"d1t{parallel['tp']}",
        "sequence_parallel": True,
        "sequences_per_micro_batch": 1,
        "sequence_tokens": row["seq_len"],
        "micro_batches": 1,
        "te_release": "2.14",
        "cross_entropy": "native",
        "activation_fusion": False,
        "distributed_optimizer": False,
        "recompute": "none",
        "lora": {"rank": 32, "alpha": 32, "format": "storage"},
        "sequence_parallel_input_regather": row["lora"]["sequence_parallel_input_regather"],
    }


def bridge_trainer(row: Row) -> Row:
    name = str(row["id"]).split("/")[1]
    if name == "moonlight16b":
        return moonlight(row)
    if name == "llama3-70b-sft-fp8":
        # scripts/performance/configs/llama/llama3_workload_base_configs.py at 0026ec187, the change that published it: its feed-forwards
        # are CUDA graphs (cuda_graph_impl transformer_engine, scope mlp)
        raise not_yet("a step in CUDA graphs")
    if name == "nemotron3nano":
        raise not_yet("layers of state spaces under Megatron")
    if row.get("lora") and row.get("seq_len"):
        return qwen3_adapters(row)
    if row.get("lora"):
        raise CannotExpress("the length of the sequences is not stated")
    if "not stated" in str(row.get("metric_kind")):
        raise CannotExpress("the metric is not named")
    raise not_yet("a step in CUDA graphs")


def bridge_job(row: Row) -> Row:
    return {
        "framework": "torch",
        "gpus": f"{row.get('n_gpus') or row['parallelism']['tp']} x H100-80GB",
        "model": str(row["model"]).replace("Qwen3-", "Qwen/Qwen3-"),
        "trainer": {"engine": "megatron", "kernels": "transformer_engine", **bridge_trainer(row)},
    }
