"""Makes tests/data/executed_int8.jsonl: training steps of adapters on a base that bitsandbytes keeps in 8 bits, on fake tensors.

    python benchmarks/oracle/execute_int8.py [--output tests/data/executed_int8.jsonl]

The real modules of bitsandbytes and peft run: Linear8bitLt in place of every linear layer but the output layer, MatMul8bitLt with
transformers' threshold of 6, prepare_model_for_kbit_training. Operators are the Python of bitsandbytes' own CUDA backend
(backends/cuda/ops.py, with backends/default/ops.py where that has none), loaded here without its library, whose kernels allocate
nothing; on a CPU bitsandbytes would multiply by an unpacked matrix instead (MatMul8bitFp). Which columns have outliers is data: a
case says how many. Run once for each release (PYTHONPATH), from 0.45 on; rows of other releases in the output are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path
from typing import Any

import bitsandbytes
import execute_packed
import torch
from execute import ROOT, Row
from execute_packed import CONFIGS, RELEASE
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensor

KBIT = {"prepare_kbit": True}
SOME = {"base_outliers": 16}
# name of the case: settings of the adapters, autocast, attention, checkpointing ("", "reentrant", "nonreentrant"), sequences
CASES: dict[str, tuple[Row, bool, str, str, int]] = {
    "plain": ({}, False, "eager", "", 1),
    "two": ({}, False, "eager", "", 2),
    "dropout": ({"dropout": 0.1}, False, "eager", "", 1),
    "two-targets": ({"targets": ["q_proj", "v_proj"]}, False, "eager", "", 1),
    "reentrant": ({}, False, "eager", "reentrant", 1),
    "nonreentrant": ({}, False, "eager", "nonreentrant", 1),
    "autocast": ({}, True, "eager", "", 1),
    "kbit": (KBIT, False, "eager", "", 1),
    "kbit/reentrant": (KBIT, False, "eager", "reentrant", 2),
    "kbit/autocast": (KBIT, True, "eager", "", 1),
    "kbit/autocast/reentrant": (KBIT, True, "eager", "reentrant", 1),
    "kbit/autocast/nonreentrant": (KBIT, True, "eager", "nonreentrant", 2),
    "outliers": (SOME, False, "eager", "", 1),
    "outliers/nonreentrant": (SOME, False, "eager", "nonreentrant", 1),
    "outliers/kbit": ({**KBIT, **SOME}, False, "eager", "", 1),
    "outliers/kbit/autocast": ({**KBIT, **SOME}, True, "eager", "", 1),
    "outliers/kbit/autocast/reentrant": ({**KBIT, **SOME}, True, "eager", "reentrant", 1),
}
outliers = 0  # columns of the case that runs


class Library:
    """In place of bitsandbytes' CUDA library."""

    def __getattr__(self, name: str) -> Any:
        function = types.SimpleNamespace(argtypes=None, restype=None)
        kernel = type("Kernel", (), {"__call__": lambda *_: 0, **vars(function)})()
        setattr(self, name, kernel)
        return kernel


def kernels_of_cuda() -> dict[str, Any]:
    """The Python functions that bitsandbytes registers for CUDA, by operator."""
    found: dict[str, Any] = {}

    def collect(name: str, *_: Any) -> Any:
        return lambda function: found.setdefault(name.partition("::")[2], function)

    register, library = bitsandbytes._ops.register_kernel, bitsandbytes.cextension.lib
    bitsandbytes._ops.register_kernel, bitsandbytes.cextension.lib = collect, Library()
    torch._C._cuda_getCurrentRawStream = lambda *_: 0
    root = Path(bitsandbytes.__file__).parent
    for backend in ("cuda", "default"):
        path = root / "backends" / backend / "ops.py"
        module = types.ModuleType(f"bitsandbytes.backends.{backend}.ops_read")
        module.__package__ = f"bitsandbytes.backends.{backend}"
        sys.modules[module.__name__] = module
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    bitsandbytes._ops.register_kernel, bitsandbytes.cextension.lib = register, library
    found["int8_vectorwise_dequant"] = lambda a, stats: a * stats.view(-1, 1) * 7.874015718698502e-3  # _ops.py, for all
    return found


def columns(mask: torch.Tensor) -> torch.Tensor:
    return torch.empty(outliers, mask.dim(), dtype=torch.int64)


def in_8_bits(layer: torch.nn.Linear, *_: Any) -> Any:
    """A Linear8bitLt in its place, with what int8_vectorwise_quant would have made of its matrix."""
    rows, width = layer.weight.shape
    out = bitsandbytes.nn.Linear8bitLt(width, rows, layer.bias is not None, has_fp16_weights=False, threshold=6.0)
    out.weight = execute_packed.parameter(torch.empty(rows, width, dtype=torch.int8))
    out.weight.CB, out.weight.SCB = out.weight.data, torch.empty(rows)
    out.init_8bit_state()
    if layer.bias is not None:
        out.bias = torch.nn.Parameter(layer.bias.data, requires_grad=False)
    return out


def statistics(model: Any) -> list[torch.Tensor]:
    layers = [module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear8bitLt)]
    return [module.state.SCB for module in layers]


def patch_kernels() -> None:
    if not hasattr(bitsandbytes, "_ops"):  # 0.45: the functions call the library themselves
        functional = bitsandbytes.functional
        functional.lib, functional.is_on_gpu, functional._get_tensor_stream = Library(), lambda *_: True, lambda *_: None
        return
    for name, kernel in kernels_of_cuda().items():
        if name.startswith("int8_"):
            setattr(getattr(torch.ops.bitsandbytes, name.partition(".")[0]), name.partition(".")[2] or "default", kernel)
    # int8_mixed_scaled_mm is called without its overload's name
    torch.ops.bitsandbytes.int8_mixed_scaled_mm = torch.ops.bitsandbytes.int8_mixed_scaled_mm.default


def patch() -> None:
    patch_kernels()
    multiply = bitsandbytes.autograd._functions.MatMul8bitLt
    bitsandbytes.matmul = lambda a, b, out=None, state=None, threshold=0.0, bias=None: multiply.apply(a, b, out, bias, state)
    bitsandbytes.nn.modules.Int8Params = execute_packed.parameter
    execute_packed.packed, execute_packed.statistics = in_8_bits, statistics
    bitsandbytes.functional.CUBLAS_Context.get_context = lambda *_: None
    torch.argwhere = columns
    torch.Tensor.data_ptr = lambda *_: 0  # type: ignore[method-assign,assignment]
    FakeTensor.__bool__ = lambda *_: outliers > 0


def main() -> None:
    global outliers
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_int8.jsonl")
    options = parser.parse_args()
    execute_packed.patch()
    patch()
    by = execute_packed.versions()
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    if options.output.exists():
        old = [json.loads(line) for line in options.output.read_text(encoding="utf-8").splitlines()]
        lines += [row for row in old if "peaks" in row and not row["id"].endswith(f"/bitsandbytes-{RELEASE}")]
    for name, config in CONFIGS.items():
        for case, settings in CASES.items():
            if "base_outliers" in settings[0] and not hasattr(bitsandbytes, "_ops"):
                continue  # 0.45: not described
            outliers = settings[0].get("base_outliers", 0)
            peaks, saved = execute_packed.execute(config, settings, "int8")
            row: Row = {"id": f"{name}/int8/{case}/bitsandbytes-{RELEASE}", "config": name}
            row |= {"job": execute_packed.packed_job(settings, "int8"), "source": by, "peaks": peaks}
            if not settings[3]:
                row |= {"layer": config["num_hidden_layers"] // 2, "saved": saved}
            lines.append(row)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
