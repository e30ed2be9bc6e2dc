"""Golden memory values of Megatron-LM's functional tests as native jobs.

The tests print what torch had allocated on the last rank: of a pipeline the last stage. Where a test is deterministic its recipe
sets CUBLAS_WORKSPACE_CONFIG=:4096:8, which makes both cuBLAS workspaces 32 MiB on every card. Experts are taken as evenly routed.

Some things a row's arguments leave open; megatron_golden_recipes.json has them from the suite's repository. Recipes that set the
variable without deterministic mode, and those that divide the scores by the number of the layer; and the day on which a file of golden
values was recorded: PyTorch before that of NGC's image 26.04 has Ampere's workspaces on Blackwell, and for seven weeks of 2026 the
loader of the batches kept those of a whole step.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from corpus import CannotExpress, Row, find_gpu
from megatron_golden_experts import EXPERTS_SAID, experts_settings, layout_with_experts, with_experts

MIB = 2**20
# pytorch/cpp_extensions/gemm.py of Transformer Engine 2.17.1: get_cublas_workspace, for products that overlap with communication
OVERLAP_STREAMS = 3
# flags that change no tensor that is alive at the peak
NO_MEMORY = {
    "seed",
    "deterministic-mode",
    "use-mcore-models",
    "transformer-impl",
    "log-params-norm",
    "log-num-zeros-in-grad",
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
    "apply-layernorm-1p",
    "overlap-p2p-communication-warmup-flush",
    "no-check-for-nan-in-loss-and-grad",
    "expert-model-parallel-size",
    "no-bias-gelu-fusion",
    "moe-aux-loss-coeff",
    "moe-router-bias-update-rate",
    "moe-router-topk-scaling-factor",
    "mtp-loss-scaling-factor",
    # buffers of overlapped tensor parallelism are not PyTorch's: what is gathered there is counted as if it were
    "tp-comm-overlap",
    "tp-comm-overlap-cfg",
    "fp8-format",
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
    "squared-relu",
    "qk-layernorm",
    "disable-bias-linear",
    "untie-embeddings-and-output-weights",
    "vocab-size",
    "hidden-dropout",
    "attention-dropout",
    "attention-backend",
    "no-gradient-accumulation-fusion",
    "defer-embedding-wgrad-compute",
    "use-distributed-optimizer",
    "overlap-grad-reduce",
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
    "microbatch-group-size-per-virtual-pipeline-stage",
    "make-vocab-size-divisible-by",
    "fp8-recipe",
    "fp8-param-gather",
    "first-last-layers-bf16",
    "num-layers-at-start-in-bf16",
    "num-layers-at-end-in-bf16",
    "moe-router-padding-for-quantization",
    "use-megatron-fsdp",
}


def is_golden(row: Row) -> bool:
    return str(row.get("id") or "").startswith("mlm-golden/")


def test_of(row: Row) -> str:
    """Family, test and machine: gpt/gpt3_mcore_te_tp2_pp2/dev_dgx_h100."""
    return str(row["id"]).removeprefix("mlm-golden/")


def flags_of(row: Row) -> Row:
    return {**row["arch"], **(row["extra_values"].get("other_flags") or {})}


def lacks_gpus_alone(row: Row) -> bool:
    """Tests that the snapshot's recipes no longer list: those of all others have one node."""
    kind = str(row.get("notes")).partition("TEST_TYPE=")[2].partition(";")[0]
    usual = kind in ("regular", "ckpt-resume", "frozen-resume") and str(row["id"]).split("/")[1] in ("gpt", "moe")
    return row.get("n_gpus") is None and row.get("global_batch") is not None and usual


def data_parallel(row: Row) -> int:
    """tests/test_utils/recipes/*/{gpt,moe}.yaml: nodes 1, gpus 8 (two nodes of 4 with GB200); *-1node.yaml: 4."""
    parallel = row["parallelism"]
    if not lacks_gpus_alone(row):
        return int(parallel.get("dp") or 1)
    gpus = 4 if "_1node/" in str(row["id"]) else 8
    others = [int(parallel.get(axis) or 1) for axis in ("tp", "pp", "cp")]
    return max(1, gpus // (others[0] * others[1] * others[2]))


def check(row: Row, flags: Row) -> None:
    name = str(row["id"]).split("/")[1]
    if flags.get("use-megatron-fsdp") and flags.get("num-experts"):
        raise CannotExpress("Megatron-FSDP of experts is not supported yet")
    if name not in ("gpt", "moe", "mixtral"):
        raise CannotExpress(f"Megatron's {name} models are not supported yet")
    unknown = sorted(set(flags) - NO_MEMORY - SAID - (EXPERTS_SAID if flags.get("num-experts") else set()))
    if unknown:
        raise CannotExpress(f"Megatron's {unknown[0]} is not supported yet")
    if row.get("completeness") != "full" and not lacks_gpus_alone(row):
        raise CannotExpress("the settings of the test are not stated in full")
    if "modelopt_distill" in str(row["id"]):
        raise CannotExpress("the test trains beside a teacher")
    if "reshard" in str(row["id"]):
        raise CannotExpress("the test goes on in another layout")
    if "op_fuser" in str(row["id"]):
        raise CannotExpress("Megatron's fused operations of Transformer Engine are not supported yet")


def golden_config(row: Row) -> Row:
    flags = flags_of(row)
    hidden, heads = flags["hidden-size"], flags["num-attention-heads"]
    gated = bool(flags.get("swiglu"))
    # megatron/training/arguments.py: 8/3 of the hidden size, a multiple of 64, where the activation is gated
    width = flags.get("ffn-hidden-size") or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    config: Row = {
        "model_type": "megatron_gpt",
        "num_hidden_layers": flags["num-layers"],
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": flags.get("num-query-groups") or heads,
        "head_dim": flags.get("kv-channels") or hidden // heads,
        "vocab_size": padded_vocab(row, flags),
        "max_position_embeddings": flags["max-position-embeddings"],
        "position_embedding_type": flags.get("position-embedding-type") or "learned_absolute",
        "rotary_percent": float(flags.get("rotary-percent") or 1),
        "normalization": flags.get("normalization") or "LayerNorm",
        "swiglu": gated,
        **({"squared_relu": True} if flags.get("squared-relu") else {}),
        "qk_layernorm": bool(flags.get("qk-layernorm")),
        "add_bias_linear": not flags.get("disable-bias-linear"),
        "tie_word_embeddings": not flags.get("untie-embeddings-and-output-weights"),
        "hidden_dropout": float(flags.get("hidden-dropout", 0.1)),
        "attention_dropout": float(flags.get("attention-dropout", 0.1)),
        "torch_dtype": "bfloat16",
    }
    return with_experts(config, flags) if flags.get("num-experts") else config


def padded_vocab(row: Row, flags: Row) -> int:
    """As megatron/training pads it: a multiple of --make-vocab-size-divisible-by for every tensor-parallel rank."""
    unit = int(flags.get("make-vocab-size-divisible-by") or 128) * int(row["parallelism"].get("tp") or 1)
    return -(-int(flags.get("vocab-size") or 50257) // unit) * unit


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


@cache
def recipes() -> Row:
    told: Row = json.loads(Path(__file__).with_name("megatron_golden_recipes.json").read_text(encoding="utf-8"))
    told["recorded"] = {test: day for day, tests in told["recorded"].items() for test in tests}
    return told


def workspaces(row: Row, flags: Row, gpu: str, day: str) -> int:
    """What both cuBLAS workspaces have more than the card's own: 32 MiB, or 8320 KiB before Hopper; and those of overlapped products.

    PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize knew Hopper alone before Blackwell was added.
    """
    overlapped = OVERLAP_STREAMS * (32 * MIB + 1024) if flags.get("tp-comm-overlap") else 0
    difference = 2 * (32 * MIB - 8320 * 1024)
    if flags.get("deterministic-mode") or test_of(row).rsplit("/", 1)[0] in recipes()["large_workspaces"]:
        return (difference if gpu.startswith("A100") else 0) + overlapped
    return (-difference if "B200" in gpu and day < "2026-05-07" else 0) + overlapped


def kept_batches(row: Row, flags: Row, day: str, micro_batches: int) -> tuple[int, int]:
    """What all other batches of a step take at the peak, and all of them when it is over.

    From 5e4fc931 (2026-05-21) to bf32f441 (2026-07-06; tests recorded until 07-08) get_batch put its tensors into the very dict that
    RerunDataIterator keeps until the next step; the first tensor-parallel rank reads the data.
    """
    parallel = row["parallelism"]
    if not "2026-05-21" <= day <= "2026-07-08" or int(parallel.get("tp") or 1) > 1:
        return 0, 0
    sequence, sequences = int(row["seq_len"]), int(row["micro_batch"])
    mask = 0 if flags.get("no-create-attention-mask-in-dataloader") else sequence * sequence
    batch = sequences * (sequence * (3 * 8 + 4) + mask)
    return (micro_batches - 1) * batch, micro_batches * batch


def fp8_settings(flags: Row) -> Row:
    """--fp8-recipe is delayed unless said (megatron/training/arguments.py)."""
    wide = bool(flags.get("first-last-layers-bf16"))
    return {
        "fp8_recipe": flags.get("fp8-recipe") or "delayed",
        "fp8_param_gather": bool(flags.get("fp8-param-gather")),
        "bf16_layers_at_start": int(flags.get("num-layers-at-start-in-bf16", 1)) if wide else 0,
        "bf16_layers_at_end": int(flags.get("num-layers-at-end-in-bf16", 1)) if wide else 0,
        "router_padding": bool(flags.get("moe-router-padding-for-quantization")),
    }


def fsdp_settings(row: Row) -> Row:
    """parallelism.fsdp: "megatron-fsdp optim_grads_params (ZeRO-3)"."""
    return {"megatron_fsdp": str(row["parallelism"]["fsdp"]).split()[1]}


def local_settings(row: Row, flags: Row) -> Row:
    """Megatron's own modules. fp16 is as wide as bf16, but its gradients are not added up in fp32 unless a flag says so."""
    out: Row = {
        "transformer_impl": "local",
        "attention": "fused",
        "masked_softmax_fusion": not flags.get("no-masked-softmax-fusion"),
        "query_key_layer_scaling": test_of(row).rsplit("/", 1)[0] in recipes()["query_key_layer_scaling"],
    }
    if str(row.get("dtype_policy")).startswith("fp16"):
        out["precision"] = {"reduce": "bf16"}
    return out


def golden_job(row: Row) -> Row:
    flags = flags_of(row)
    check(row, flags)
    parallel: Row = row["parallelism"]
    degrees = {"dp": data_parallel(row)} | {axis: int(parallel.get(axis) or 1) for axis in ("tp", "pp", "cp")}
    letters = "".join(f"{axis[0]}{n}" for axis, n in degrees.items() if axis == "dp" or n > 1)
    if flags.get("num-experts"):
        letters = layout_with_experts(letters, parallel)
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
        "virtual_group": flags.get("microbatch-group-size-per-virtual-pipeline-stage") or "auto",
        "first_stage_layers": flags.get("decoder-first-pipeline-num-layers") or "auto",
        "last_stage_layers": flags.get("decoder-last-pipeline-num-layers") or "auto",
        "embedding_in_split": bool(flags.get("account-for-embedding-in-pipeline-split")),
        "loss_in_split": bool(flags.get("account-for-loss-in-pipeline-split")),
        "attention": attention_of(row, flags),
        "cross_entropy": (flags.get("cross-entropy-fusion-impl") or "native") if fused_loss else "unfused",
        "gradient_accumulation_fusion": not flags.get("no-gradient-accumulation-fusion"),
        "distributed_optimizer": bool(flags.get("use-distributed-optimizer")),
        "overlap_grad_reduce": bool(flags.get("overlap-grad-reduce")),
        "optimizer_instances": flags.get("num-distributed-optimizer-instances") or 1,
        "attention_mask": not flags.get("no-create-attention-mask-in-dataloader"),
        "rotary_fusion": not flags.get("no-rope-fusion"),
        "recompute": "none",
    }
    if flags.get("use-megatron-fsdp"):
        trainer |= fsdp_settings(row)
    if flags.get("transformer-impl") == "local":
        trainer |= local_settings(row, flags)
    if flags.get("defer-embedding-wgrad-compute"):
        limit = recipes()["wgrad_deferral_limit"].get(test_of(row).rsplit("/", 1)[0]) or "auto"
        trainer |= {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": limit}
    if flags.get("fp8-format"):
        trainer |= fp8_settings(flags)
    if isinstance(recompute, dict):
        trainer |= {
            "recompute": recompute["granularity"],
            "recompute_method": recompute["method"],
            "recompute_layers": recompute["num_layers"],
        }
    if flags.get("num-experts"):
        trainer |= experts_settings(flags)
    gpu = find_gpu(row["gpu"])
    world = degrees["dp"] * degrees["tp"] * degrees["pp"] * degrees["cp"]
    job: Row = {"framework": "torch", "gpus": f"{world} x {gpu}", "model": "megatron_gpt", "trainer": trainer}
    day = recipes()["recorded"].get(test_of(row), "")
    at_peak, left = kept_batches(row, flags, day, micro_batches)
    added = workspaces(row, flags, gpu, day) + at_peak
    job["apart"] = {"added_bytes": added, "left_bytes": left - at_peak}
    return job
