"""torchao's blockwise products under AReaL's Archon: its autograd function from its own file, kernels by what they make.

A wheel of torchao has the file. What its Triton kernels allocate is written here (torchao/prototype/blockwise_fp8_training/kernels.py,
0.15.0): a tensor in 8 bits and fp32 scales, one for 128 numbers or for a square of 128; a product in 16 bits. For execute_archon.py.
"""

from __future__ import annotations

import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import torch

PACKAGE = "torchao.prototype.blockwise_fp8_training"
BLOCK = 128
FP8 = torch.float8_e4m3fn


def scales(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.float32)


def by_rows(x: torch.Tensor, _block: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, dtype=FP8), scales(x.shape[0], x.shape[1] // BLOCK)


def by_columns(x: torch.Tensor, _block: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, dtype=FP8), scales(x.shape[0] // BLOCK, x.shape[1])


def turned(x: torch.Tensor, _block: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(x.shape[1], x.shape[0], dtype=FP8), scales(x.shape[1], x.shape[0] // BLOCK)


def by_squares(x: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, dtype=FP8), scales(x.shape[0] // block_size, x.shape[1] // block_size)


def turned_by_squares(x: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(x.shape[1], x.shape[0], dtype=FP8), scales(x.shape[1] // block_size, x.shape[0] // block_size)


def product(a: torch.Tensor, b: torch.Tensor, *_scales: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1], dtype=out_dtype)


KERNELS = {
    "triton_fp8_blockwise_act_quant_lhs": by_rows,
    "triton_fp8_blockwise_act_quant_rhs": by_columns,
    "triton_fp8_blockwise_act_quant_transposed_lhs": turned,
    "triton_fp8_blockwise_weight_quant_rhs": by_squares,
    "triton_fp8_blockwise_weight_quant_transposed_rhs": turned_by_squares,
    "triton_fp8_gemm_1x128_128x1": product,
    "triton_fp8_gemm_1x128_128x128": product,
}


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    made.__path__ = []
    sys.modules[name] = made
    return made


def torchao_modules(wheel: Path) -> None:
    for name in ("torchao", "torchao.core", "torchao.quantization", "torchao.prototype", PACKAGE):
        module(name)
    module("torchao.core.config", AOBaseConfig=object)
    module("torchao.quantization.transform_module", register_quantize_module_handler=lambda _config: lambda function: function)
    module("torchao.utils", is_sm_at_least_90=lambda: True)
    module(f"{PACKAGE}.kernels", **KERNELS)
    path = f"{PACKAGE.replace('.', '/')}/linear.py"
    with zipfile.ZipFile(wheel) as packed:
        exec(compile(packed.read(path), path, "exec"), module(f"{PACKAGE}.linear").__dict__)
