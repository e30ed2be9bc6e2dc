"""Rows of one operator: what Liger-Kernel's benchmark scripts measured (benchmark/scripts and benchmark/data of the repository).

A script makes the modules of all providers, calls one of them ten times and takes the median of max_memory_allocated; gradients
stay from call to call. What differs from script to script is in SCRIPTS.
"""

from __future__ import annotations

from typing import Any

from corpus import CannotExpress, Row, find_gpu

# kernel of the CSV: operator of oomplan, its settings, axis and configuration keys of the sizes
SCRIPTS: dict[str, Row] = {
    "cross_entropy": {
        "name": "cross_entropy",
        "sizes": {"tokens": ("B", "T"), "vocab": ("V",)},
        "dtype": "fp32",
        "by": {"huggingface": "torch"},
    },
    "geglu": {
        "name": "swiglu",
        "sizes": {"tokens": ("bsz", "T"), "hidden": ("hidden_size",), "width": ("intermediate_size",)},
        "retain_graph": True,
    },
    "swiglu": {
        "name": "swiglu",
        "sizes": {"tokens": ("B", "T"), "hidden": ("hidden_size",), "width": ("intermediate_size",)},
        "retain_graph": True,
    },
    "rms_norm": {
        "name": "rms_norm",
        "sizes": {"tokens": ("M",), "hidden": ("H",)},
        "weights": "fp32",
        "retain_graph": True,
    },
    "layer_norm": {
        "name": "layer_norm",
        "sizes": {"tokens": ("M",), "hidden": ("N|H",)},
        "weights": "fp32",
        "dtype": "fp32",
        "retain_graph": True,
        "by": {"huggingface": "torch"},
        "release": {"0.6.0": "0.6.1"},  # measured with the change that came after the release
    },
    "megatron_rms_norm": {
        "name": "rms_norm",
        "sizes": {"tokens": ("S", "B"), "hidden": ("H",)},
        "gradient_held": False,
        "fixed": {"in_place": 0},
        "by": {"megatron": "torch"},
    },
    "rope": {
        "name": "rope",
        "sizes": {
            "tokens": ("seq_len|T",),
            "hidden": ("hidden_size|H",),
            "heads": ("num_q_heads",),
            "key_heads": ("num_kv_heads",),
        },
        "retain_graph": True,
    },
    "fused_add_rms_norm": {
        "name": "fused_add_rms_norm",
        "sizes": {"tokens": ("M",), "hidden": ("H",)},
        "dtype": "fp32",
        "weights": "fp32",
        "by": {"liger_fused_add_rms_norm": "liger"},
    },
    "megatron_swiglu": {
        "name": "gated_activation",
        "sizes": {"tokens": ("S", "B"), "width": ("ffn_local",)},
        "gradient_held": False,
    },
    "megatron_cross_entropy": {
        "name": "vocab_parallel_cross_entropy",
        "sizes": {"tokens": ("S", "B"), "vocab": ("V",)},
        "gradient_held": False,
        "by": {"megatron-unfused": "megatron"},
    },
    "fused_moe": {
        "name": "fused_moe",
        "sizes": {
            "tokens": ("T",),
            "hidden": ("H",),
            "width": ("intermediate_dim",),
            "experts": ("E",),
            "top_k": ("K",),
        },
        "fixed": {"from_leaves": 0},
        "retain_graph": True,
    },
    "fused_linear_jsd": {
        "name": "fused_linear_jsd",
        "sizes": {"tokens": ("BT",), "hidden": ("H",), "vocab": ("V",)},
    },
    "fused_linear_cross_entropy": {
        "name": "fused_linear_cross_entropy",
        "sizes": {"tokens": ("BT",), "hidden": ("H",), "vocab": ("V",)},
        "modules": 2,
        "by": {"huggingface": "torch"},
    },
}
for tiled in ("tiled_swiglu", "tiled_geglu"):
    SCRIPTS[tiled] = {
        "name": "swiglu",
        "sizes": {
            "tokens": ("bsz", "T"),
            "hidden": ("hidden_size",),
            "width": ("intermediate_size",),
            "shards": ("num_shards",),
        },
        "retain_graph": True,
    }
for level in ("token", "sequence"):
    SCRIPTS[f"fused_linear_grpo_loss_{level}"] = {
        "name": "fused_linear_grpo",
        "sizes": {"sequences": ("B",), "tokens": ("T",), "hidden": ("H",), "vocab": ("V",)},
        "modules": 2,
    }
# Both providers of orpo, cpo and simpo, at all sizes, show the same 2084 MiB above what the call takes; no source says whose it is.
HELD = "the process held 2 GiB above the tensors of the call, which torch.compile may have kept of its first one"
NOT_DESCRIBED = {
    "fused_linear_orpo_loss": HELD,
    "fused_linear_cpo_loss": HELD,
    "fused_linear_simpo_loss": HELD,
    "embedding": "the process held what earlier measurements had left: 12 GiB above the tensors of the call",
    "distill_jsd_loss": "a loss compiled by torch.compile, or a test's reference of it",
    "kto_loss": "a loss compiled by torch.compile, or a test's reference of it",
}


def size_of(row: Row, keys: tuple[str, ...]) -> int:
    arch = row["arch"]
    product = 1
    stated = {**arch.get("config", {}), **arch}
    for key in keys:
        value = next((stated[name] for name in key.split("|") if stated.get(name) is not None), None)
        if value is None:
            raise CannotExpress(f"the size {key} is not stated")
        product *= int(value)
    return product


def provider_of(row: Row) -> str:
    notes = str(row.get("notes") or "")
    if notes.startswith("provider="):
        return notes.removeprefix("provider=").split(";")[0].strip()
    return str(row.get("loss_kernel") or "")


def operator_call(row: Row) -> Row:
    kernel = row.get("model")
    framework = str(row.get("framework") or "")
    if framework == "torch" and kernel is None:
        raise CannotExpress("who holds the logits of this head is not stated")
    if not framework.startswith("Liger-Kernel"):
        raise CannotExpress("one operator of a framework that is not described")
    if kernel in NOT_DESCRIBED:
        raise CannotExpress(NOT_DESCRIBED[str(kernel)])
    script = SCRIPTS.get(str(kernel))
    if script is None:
        raise CannotExpress(f"the operator {kernel} is not supported yet")
    provider = provider_of(row)
    if provider == "megatron-fused":
        raise CannotExpress("TorchScript's fusion of Megatron's loss is not described")
    by = script.get("by", {}).get(provider, provider)
    if by == "liger":
        release = framework.split()[-1]
        by = f"liger {script.get('release', {}).get(release, release)}"
    sizes = {name: size_of(row, keys) for name, keys in script["sizes"].items()}
    sizes |= script.get("fixed", {})
    call: dict[str, Any] = {
        "name": script["name"],
        "by": by,
        "sizes": sizes,
        "dtype": script.get("dtype", "bf16"),
        "weights": script.get("weights", ""),
        "pass_": str(row["phase"]).split(": ")[1],
        "retain_graph": script.get("retain_graph", False),
        "gradient_held": script.get("gradient_held", True),
        "modules": script.get("modules", 1),
    }
    return {**call, "gpu": find_gpu(row["gpu"])}
