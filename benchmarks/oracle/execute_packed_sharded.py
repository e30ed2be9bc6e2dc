"""Makes tests/data/executed_packed_sharded.jsonl: QLoRA steps under FSDP2, executed by PyTorch on fake tensors.

    python benchmarks/oracle/execute_packed_sharded.py [--output tests/data/executed_packed_sharded.jsonl]

fully_shard's own code over bitsandbytes' Linear4bit and peft's adapters; packed layers are those of execute_packed.py, models, FSDP2
and the step those of fuzz.py. A packed matrix is stored in 16 bits (bnb_4bit_quant_storage) and cut with the rest of its layer,
or in bytes, which accelerate has fully_shard ignore (`base_whole`). FSDP2 gives plain parameters back, which Linear4bit makes Params4bit
of again in each forward pass: the same bytes under another name. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import bitsandbytes
import execute_packed
import fuzz
import fuzz_fsdp
import peft
import torch
from bitsandbytes.functional import QuantState
from execute import ROOT, SMALL, Row
from execute_packed import RELEASE
from execute_scaler import item_of
from row_lines import write_rows
from torch.distributed.fsdp import fully_shard

CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **SMALL, "vocab_size": 512, "num_hidden_layers": 6},
    "qwen2": {"model_type": "qwen2", **SMALL, "vocab_size": 512, "num_hidden_layers": 5, "tie_word_embeddings": True},
}
ALL = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
USUAL: Row = {
    **{"engine": "fsdp2", "attention": "flash_attention_2", "sequences": 1, "tokens": 512, "recompute": "none"},
    **{"micro_batches": 1, "optimizer": "adamw", "clip": False, "head": "hf_loss", "keep_outputs": False, "every": 1},
    **{"padding": False, "dtype": "bf16", "compute": "bf16", "reduce": "fp32", "ranks": 4, "deferred": False},
    **{"forward_prefetch": False, "reshard": True, "root_reshard": True, "wrap_embedding": False, "wrap_head": False},
    **{"double": True, "whole": False, "kbit": False, "autocast": False},
}
LORA: Row = {"rank": 16, "dropout": 0.0, "verl": False, "targets": ALL, "format": "fp32"}
CASES: list[Row] = [
    {"lora": LORA},
    {"lora": LORA, "double": False, "ranks": 3},
    {"lora": LORA, "recompute": "nonreentrant"},
    {"lora": LORA, "recompute": "reentrant", "sequences": 2},
    {"lora": LORA | {"targets": "q_proj v_proj"}, "ranks": 2, "micro_batches": 2},
    {"lora": LORA | {"format": "storage"}, "reduce": "bf16"},
    {"lora": LORA | {"dropout": 0.1}, "recompute": "nonreentrant"},
    {"lora": LORA, "reshard": False},
    {"lora": LORA, "wrap_embedding": True, "wrap_head": True, "recompute": "nonreentrant"},
    {"lora": LORA, "kbit": True, "recompute": "nonreentrant"},
    {"lora": LORA, "kbit": True},
    {"lora": LORA, "autocast": True},
    {"lora": LORA, "autocast": True, "recompute": "nonreentrant", "kbit": True},
    {"lora": LORA, "autocast": True, "recompute": "reentrant", "reshard": False},
    {"lora": LORA, "whole": True},
    {"lora": LORA, "whole": True, "autocast": True, "recompute": "nonreentrant"},
    {"lora": LORA, "whole": True, "kbit": True, "recompute": "nonreentrant", "ranks": 2},
]


class OfBytes:
    """In place of Params4bit, which no fake tensor can become."""

    def __new__(cls, data: Any, **_: Any) -> Any:  # type: ignore[misc]
        return data if isinstance(data, torch.nn.Parameter) else execute_packed.parameter(data)


def pack(model: Any, case: Row) -> list[torch.Tensor]:
    """Linear4bit in place of all linear layers but the output layer. What they need to unpack, which are no parameters."""
    beside = []
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        with torch.device("cpu"):
            layer = execute_packed.packed(module, "nf4", case["double"], torch.bfloat16)
        n = module.weight.numel()
        kind = torch.uint8 if case["whole"] else torch.bfloat16
        data = torch.empty((n + 1) // (2 * kind.itemsize), 1, dtype=kind, device="meta")
        state = layer.quant_state
        layer.weight = torch.nn.Parameter(data, requires_grad=False)
        layer.weight.compress_statistics, layer.weight.quant_type = case["double"], "nf4"  # which peft asks for
        beside += [state.absmax, state.code]
        if isinstance(state, QuantState) and state.nested:
            beside += [state.offset, state.state2.absmax, state.state2.code]
        model.get_submodule(name.rpartition(".")[0]).add_module(name.rpartition(".")[2], layer)
    model.is_loaded_in_4bit = True
    return beside


def make_model(config: Row, case: Row, beside: list[torch.Tensor]) -> Any:
    model = fuzz.make_model(config, case | {"lora": None, "recompute": "none"})
    beside += pack(model, case)
    checkpoints = {"use_reentrant": case["recompute"] == "reentrant"}
    if case["kbit"]:
        model.quantization_method = "bitsandbytes"
        for parameter in model.parameters():
            if parameter.dtype == torch.bfloat16 and parameter.shape[-1:] != (1,):  # peft: all but Params4bit
                parameter.data = parameter.data.to(torch.float32)
            parameter.requires_grad = False
    lora = case["lora"]
    words = lora["targets"].split()
    given = peft.LoraConfig(task_type="CAUSAL_LM", r=lora["rank"], target_modules=words, lora_dropout=lora["dropout"])
    with torch.device("meta"):
        model = peft.get_peft_model(model, given)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32 if lora["format"] == "fp32" else torch.bfloat16)
    if case["recompute"] != "none":
        model.get_base_model().gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpoints)
        model.enable_input_require_grads()
    return model


def shard(unit: Any, **settings: Any) -> Any:
    """accelerate 1.15 (utils/fsdp_utils.py, fsdp2_prepare_model): a frozen matrix in bytes is an ignored parameter."""
    ignored = {p for p in unit.parameters() if not p.is_floating_point()}
    return fully_shard(unit, **settings, **({"ignored_params": ignored} if ignored else {}))


def packed_job(case: Row) -> Row:
    job = fuzz.job_of(case)
    lora = job["trainer"]["lora"]
    lora |= {"base": "nf4", "base_compute": "bf16", "bitsandbytes": RELEASE}
    names = {"double": "base_double_quant", "kbit": "prepare_kbit", "whole": "base_whole"}
    lora |= {name: True for key, name in names.items() if case[key]}
    job["trainer"]["autocast"] = case["autocast"]
    return job


def loss_of(model: Any, case: Row, given: Row, labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
    with torch.autocast("cpu", torch.bfloat16, enabled=case["autocast"]):
        return fuzz.loss_of(model, case, given, labels)


def execute(config: Row, case: Row) -> Row:
    beside: list[torch.Tensor] = []
    peaks = fuzz_fsdp.execute(config, case, lambda c, k: make_model(c, k, beside), loss_of, fuzz.optimizer_of, fuzz.inputs_of)
    statistics = sum(tensor.untyped_storage().nbytes() for tensor in beside)
    return {phase: level + statistics for phase, level in peaks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_packed_sharded.jsonl")
    options = parser.parse_args()
    execute_packed.patch()
    bitsandbytes.nn.modules.Params4bit = OfBytes
    fuzz.stand_in()
    item_of["number"] = 1.0
    fuzz_fsdp.fully_shard = shard
    fuzz_fsdp.formats_of = lambda case: {
        "param_dtype": torch.bfloat16,
        "reduce_dtype": fuzz.FORMATS[case["reduce"]],
    }
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        lines.append({"config": name, "fields": config})
        for changes in CASES:
            case = USUAL | changes
            lora = {key: value for key, value in changes["lora"].items() if value != LORA[key]}
            words = {**{key: value for key, value in changes.items() if key != "lora"}, **lora}
            said = "/".join(f"{key}={str(value).replace(' ', '+')}" for key, value in words.items())
            row = {"id": f"{name}/nf4/fsdp2/{said or 'usual'}", "config": name, "job": packed_job(case)}
            lines.append({**row, "source": execute_packed.versions(), "peaks": execute(config, case)})
            print(lines[-1]["id"], lines[-1]["peaks"])
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
