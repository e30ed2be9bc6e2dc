"""Makes tests/data/executed_packed.jsonl: training steps of adapters on a base that bitsandbytes packed, on fake tensors.

    python benchmarks/oracle/execute_packed.py [--output tests/data/executed_packed.jsonl]

The real modules of bitsandbytes and peft run: Linear4bit with a QuantState of fake tensors in place of every linear layer but the
output layer, MatMul4Bit, prepare_model_for_kbit_training. bitsandbytes' operators have shape functions; what a CUDA kernel's Python
wrapper allocates around them is repeated here for 0.50 (backends/cuda/ops.py _dequant_linear_fallback). Tensors are fake CPU ones, for
the sake of autocast, which the meta device has not; what bitsandbytes and autocast do for a CPU alone is left out. Run once for
each release (PYTHONPATH); rows of other releases in the output are kept.
"""

from __future__ import annotations

import argparse
import gc
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import bitsandbytes
import peft
import torch
import transformers
from bitsandbytes.functional import QuantState
from execute import RANK, ROOT, SMALL, Row, SavedByLayer, as_on_cuda, job_of
from execute_parallel import LivesOfParts
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode

RELEASE = metadata.version("bitsandbytes")
NARROW: Row = {**SMALL, "vocab_size": 512}  # so that layers are higher than the loss
CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **NARROW},
    "qwen2": {"model_type": "qwen2", **NARROW, "tie_word_embeddings": True},
}
BF16 = {"base_compute": "bf16"}
DOUBLE = {**BF16, "base_double_quant": True}
KBIT = {**DOUBLE, "prepare_kbit": True}
# name of the case: settings of the adapters, autocast, attention, checkpointing ("", "reentrant", "nonreentrant"), sequences
CASES: dict[str, tuple[Row, bool, str, str, int]] = {
    "nf4": (BF16, False, "eager", "", 1),
    "nf4/double": (DOUBLE, False, "eager", "", 1),
    "nf4/double/two": (DOUBLE, False, "eager", "", 2),
    "nf4/compute-fp32": ({}, False, "eager", "", 1),
    "nf4/dropout": ({**DOUBLE, "dropout": 0.1}, False, "eager", "", 1),
    "nf4/two-targets": ({**DOUBLE, "targets": ["q_proj", "v_proj"]}, False, "eager", "", 1),
    "nf4/kbit": (KBIT, False, "eager", "", 1),
    "nf4/kbit/autocast": (KBIT, True, "eager", "", 1),
    "nf4/kbit/autocast/compute-fp32": ({**KBIT, "base_compute": "fp32"}, True, "eager", "", 1),
    "nf4/kbit/autocast/reentrant": (KBIT, True, "eager", "reentrant", 1),
    "nf4/kbit/autocast/nonreentrant": (KBIT, True, "eager", "nonreentrant", 2),
    "nf4/double/reentrant": (DOUBLE, False, "eager", "reentrant", 1),
    "nf4/double/nonreentrant": (DOUBLE, False, "eager", "nonreentrant", 1),
    "nf4/double/autocast": (DOUBLE, True, "eager", "", 1),
}
TOKENS = 512
LINEAR = torch.nn.functional.linear


def by_hand(
    a: Any,
    b: Any,
    shape: Any,
    absmax: Any,
    blocksize: Any,
    kind: Any,
    bias: Any = None,
    absmax_8bit: Any = None,
    *rest: Any,
    **named: Any,
) -> Any:
    """What gemm_4bit does with many rows (0.50)."""
    absmax_8bit = named.get("absmax_8bit", absmax_8bit)
    if absmax_8bit is not None:
        scales = torch.empty_like(absmax_8bit, dtype=torch.float32)
        absmax = scales + named["absmax_offset"]  # noqa: F841 (held, as there)
    whole = torch.empty(shape, dtype=a.dtype, device=a.device)
    return LINEAR(a, whole, bias)


def parameter(data: torch.Tensor, **_: Any) -> Any:
    """In place of Params4bit, which no fake tensor can become."""
    return torch.nn.Parameter(data.detach(), requires_grad=False)


def packed(layer: torch.nn.Linear, kind: str, double: bool, compute: torch.dtype) -> Any:
    """A Linear4bit in its place, with the tensors that quantize_4bit would have made."""
    rows, width = layer.weight.shape
    n = rows * width
    blocks = -(-n // 64)
    code = torch.empty(16)
    state = QuantState(torch.empty(blocks), layer.weight.shape, code, 64, kind, layer.weight.dtype)
    if double:
        second = QuantState(torch.empty(-(-blocks // 256)), code=torch.empty(256), blocksize=256, dtype=torch.float32)
        state = QuantState(
            torch.empty(blocks, dtype=torch.uint8),
            layer.weight.shape,
            code,
            64,
            kind,
            layer.weight.dtype,
            torch.empty(()),
            second,
        )
    out = bitsandbytes.nn.Linear4bit(width, rows, layer.bias is not None, compute, double, kind)
    out.weight = parameter(torch.empty((n + 1) // 2, 1, dtype=torch.uint8))
    out.weight.quant_state, out.weight.compress_statistics, out.weight.quant_type = state, double, kind
    out.quant_state = state
    if layer.bias is not None:
        out.bias = torch.nn.Parameter(layer.bias.data, requires_grad=False)
    return out


def statistics(model: Any) -> list[torch.Tensor]:
    out = []
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        if isinstance(state, QuantState):
            out += [state.absmax, state.code]
            if state.nested:
                out += [state.offset, state.state2.absmax, state.state2.code]
    return out


def make_model(config: Row, lora: Row, kind: str, attention: str, checkpointing: str) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    with torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16, attn_implementation=attention)
    compute = {"bf16": torch.bfloat16, "fp32": torch.float32}[lora.get("base_compute", "fp32")]
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], packed(module, kind, bool(lora.get("base_double_quant")), compute))
    setattr(model, "is_loaded_in_8bit" if kind == "int8" else "is_loaded_in_4bit", True)
    model.quantization_method = "bitsandbytes"
    model.train()
    reentrant = {"use_reentrant": checkpointing == "reentrant"}
    if lora.get("prepare_kbit"):
        model = peft.prepare_model_for_kbit_training(model, bool(checkpointing), reentrant)
    elif checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)
    if checkpointing:
        model.enable_input_require_grads()
    targets = lora.get("targets", "all-linear")
    with torch.device("cpu"):
        return peft.get_peft_model(
            model,
            peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules=targets, lora_dropout=lora.get("dropout", 0.0)),
        )


def execute(config: Row, case: tuple[Row, bool, str, str, int], kind: str) -> tuple[Row, list[list[Any]]]:
    lora, autocast, attention, checkpointing, sequences = case
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = make_model(config, lora, kind, attention, checkpointing)
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == config["num_hidden_layers"])
    gc.collect()
    gc.disable()
    storages = LivesOfParts()
    saved = SavedByLayer(storages, layers[len(layers) // 2])
    owned = [*model.parameters(), *model.buffers(), *statistics(model)]
    resident = sum(storages.own(tensor) for tensor in owned)
    held = [tensor.untyped_storage() for tensor in owned]  # a bias is rebound: its address must not be taken by another
    with fake, storages:
        ids = torch.empty(sequences, TOKENS // sequences, dtype=torch.int64)
        labels = torch.empty_like(ids)
        with saved.hooks(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=labels).loss
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    del held
    return {"forward": resident + forward, "backward": resident + storages.highest}, saved.counted()


def packed_job(case: tuple[Row, bool, str, str, int], kind: str) -> Row:
    lora, autocast, attention, checkpointing, sequences = case
    job = job_of(sequences, TOKENS // sequences, bool(checkpointing))
    targets = lora.get("targets")
    kept = {key: value for key, value in lora.items() if key != "targets"}
    job["trainer"] |= {
        "kernels": f"hf_{attention}",
        "autocast": autocast,
        "reentrant": checkpointing == "reentrant",
        "lora": {"rank": RANK, "base": kind, "bitsandbytes": RELEASE, **kept, **({"targets": targets} if targets else {})},
    }
    return job


def patch() -> None:
    """What a CPU and a fake tensor would do otherwise than a GPU."""
    as_on_cuda()
    if hasattr(torch.ops.bitsandbytes, "gemm_4bit"):
        torch.ops.bitsandbytes.gemm_4bit.default = by_hand
    bitsandbytes.nn.modules.Params4bit = parameter
    # CUDA's dropout is one operator with a mask of bytes
    torch.nn.functional.dropout = lambda x, p=0.5, training=True, _inplace=False: (
        torch.ops.aten.native_dropout(x, p, training)[0] if training and p > 0 else x
    )
    torch.nn.Module.to = lambda module, *_, **__: module  # type: ignore[method-assign,assignment]
    peft.tuners.tuners_utils.BaseTunerLayer._move_adapter_to_device_of_base_layer = lambda *_, **__: None
    multiply = bitsandbytes.autograd._functions.MatMul4Bit
    bitsandbytes.matmul_4bit = lambda a, b, quant_state, out=None, bias=None: multiply.apply(a, b, out, bias, quant_state)
    asked = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: asked(*(device or ("cpu",)))  # without an argument it means CUDA's


def versions() -> str:
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, peft {metadata.version('peft')}"
    return by + f", bitsandbytes {RELEASE} executed on fake tensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_packed.jsonl")
    options = parser.parse_args()
    patch()
    by = versions()
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    if options.output.exists():
        old = [json.loads(line) for line in options.output.read_text(encoding="utf-8").splitlines()]
        lines += [row for row in old if "peaks" in row and not row["id"].endswith(f"/bitsandbytes-{RELEASE}")]
    for name, config in CONFIGS.items():
        for case, settings in CASES.items():
            kind = case.split("/")[0]
            peaks, saved = execute(config, settings, kind)
            row: Row = {"id": f"{name}/{case}/bitsandbytes-{RELEASE}", "config": name, "job": packed_job(settings, kind)}
            row |= {"source": by, "peaks": peaks}
            if not settings[3]:
                row |= {"layer": config["num_hidden_layers"] // 2, "saved": saved}
            lines.append(row)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
