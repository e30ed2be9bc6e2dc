"""A Transformer Engine whose C++ extension computes nothing: its Python runs, on the meta device.

Functions of `transformer_engine_torch` that modules call for linear layers allocate what the extension allocates and no more
(NVIDIA/TransformerEngine 2.17.1, transformer_engine/pytorch/csrc: quantizer.cpp, extensions/{cast,gemm,normalization,swizzle,
transpose,padding}.cpp). Workspaces of kernels are left out. Collectives are stood in for as well:
they need one rank.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

Shape = list[int]
CAPABILITY = [9, 0]  # of the GPU that is stood in for
DEVICE = ["meta"]  # where tensors of the GPU are: "cpu" for code that reads their numbers


class DType(enum.IntEnum):
    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


TORCH = {4: torch.float32, 5: torch.float16, 6: torch.bfloat16, 0: torch.uint8, 2: torch.int32}
FORWARD = (
    "GEMM1_INPUT",
    "GEMM1_WEIGHT",
    "GEMM1_OUTPUT",
    "GEMM2_INPUT",
    "GEMM2_WEIGHT",
    "GEMM2_OUTPUT",
    "GEMM3_INPUT",
    "GEMM3_WEIGHT",
)
FwdTensors = enum.IntEnum("FwdTensors", [*FORWARD, "GEMM3_OUTPUT"], start=0)
BwdTensors = enum.IntEnum(
    "BwdTensors", ["GRAD_OUTPUT1", "GRAD_INPUT1", "GRAD_OUTPUT2", "GRAD_INPUT2", "GRAD_OUTPUT3", "GRAD_INPUT3"], start=0
)


def empty(shape: Any, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.empty(list(shape), dtype=dtype, device=DEVICE[0])


def transposed(shape: Any) -> Shape:
    """make_transpose_shape: the last axis first."""
    return [shape[-1], *shape[:-1]]


def needs_no_transposes() -> bool:
    """nvte_is_non_tn_fp8_gemm_supported."""
    return CAPABILITY[0] >= 10 and not 12 <= CAPABILITY[0] < 13


def kind_of(quantizer: Any) -> str:
    return type(quantizer).__name__ if quantizer is not None else "None"


def per_tensor(quantizer: Any, shape: Any) -> dict[str, Any]:
    data = empty(shape) if quantizer.rowwise_usage or needs_no_transposes() else None
    turned = empty(transposed(shape)) if quantizer.columnwise_usage and not needs_no_transposes() else None
    return {
        "data": data,
        "data_transpose": turned,
        "fp8_scale_inv": empty([1], torch.float32),
        "fp8_dtype": quantizer.dtype,
        "quantizer": quantizer,
    }


def in_blocks(quantizer: Any, shape: Any, columns_transposed: bool, scales: torch.dtype) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, wanted, column in (
        ("rowwise", quantizer.rowwise_usage, False),
        ("columnwise", quantizer.columnwise_usage, True),
    ):
        whole = transposed(shape) if column and columns_transposed else list(shape)
        parts[f"{name}_data"] = empty(whole) if wanted else None
        parts[f"{name}_scale_inv"] = empty(quantizer.get_scale_shape(list(shape), column), scales) if wanted else None
    return parts | {"fp8_dtype": quantizer.dtype, "quantizer": quantizer}


def create(quantizer: Any, shape: Any, dtype: torch.dtype, parts: dict[str, Any] | None = None) -> Any:
    """Quantizer::create_tensor."""
    from transformer_engine.pytorch import tensor as te

    kind, shape = kind_of(quantizer), list(shape)
    if quantizer is None:
        return empty(shape, dtype)
    if kind in ("Float8Quantizer", "Float8CurrentScalingQuantizer"):
        fields, plain, whole = per_tensor(quantizer, shape), te.Float8TensorStorage, te.Float8Tensor
    elif kind == "Float8BlockQuantizer":
        fields = parts or in_blocks(quantizer, shape, True, torch.float32)
        fields["is_2D_scaled"] = quantizer.block_scaling_dim == 2
        plain, whole = te.Float8BlockwiseQTensorStorage, te.Float8BlockwiseQTensor
    elif kind == "MXFP8Quantizer":
        fields = parts or in_blocks(quantizer, shape, False, torch.uint8)
        fields["with_gemm_swizzled_scales"] = quantizer.optimize_for_gemm
        plain, whole = te.MXFP8TensorStorage, te.MXFP8Tensor
    else:
        raise NotImplementedError(kind)
    if quantizer.internal:
        return plain(**fields, fake_dtype=dtype)
    return whole(shape=shape, stride=list(empty(shape).stride()), dtype=dtype, device=torch.device(DEVICE[0]), **fields)


def create_empty_quantized_tensor(quantizer: Any, shape: Any, dtype: Any, *_: Any, **__: Any) -> Any:
    return create(quantizer, shape, TORCH[int(dtype)] if not isinstance(dtype, torch.dtype) else dtype)


def amax_of(quantizer: Any) -> Any:
    """Float8CurrentScalingQuantizer::quantize_impl: where the largest number goes."""
    return empty([1], torch.float32) if kind_of(quantizer) == "Float8CurrentScalingQuantizer" else None


def quantize(tensor: torch.Tensor, quantizer: Any, output: Any = None, _noop: Any = None) -> Any:
    tensor = tensor.contiguous()
    if output is not None:
        update_columns(quantizer, output)
        return output
    out = create(quantizer, tensor.shape, tensor.dtype)
    _largest = amax_of(quantizer)
    return out


def update_columns(_quantizer: Any, _output: Any) -> None:
    """convert_and_update_tensor: what there is stays, of the same shape."""


def bgrad_quantize(tensor: torch.Tensor, quantizer: Any) -> Any:
    return empty([tensor.shape[-1]], tensor.dtype), quantize(tensor, quantizer)


def bulk(shapes: list[Shape], dtypes: list[torch.dtype], alignments: list[int]) -> list[torch.Tensor]:
    """bulk_allocate: one block for all."""
    offsets, end = [], 0
    for shape, dtype, unit in zip(shapes, dtypes, alignments, strict=True):
        end = -(-end // unit) * unit
        offsets.append(end)
        end += torch.Size(shape).numel() * dtype.itemsize
    block = empty([end])
    out = []
    for shape, dtype, offset in zip(shapes, dtypes, offsets, strict=True):
        part = torch.empty(0, dtype=dtype, device=DEVICE[0])
        if offset % dtype.itemsize == 0:
            part.set_(block.untyped_storage(), offset // dtype.itemsize, shape)
        out.append(part)
    return out


def bulk_parts(quantizers: list[Any], shapes: list[Shape], columns_transposed: bool, scales: torch.dtype) -> list[dict[str, Any]]:
    """bulk_allocate_fp8_blockwise_tensors, bulk_allocate_mxfp8_tensors: rows in one block, columns in another."""
    out: list[dict[str, Any]] = [{"fp8_dtype": q.dtype, "quantizer": q} for q in quantizers]
    for name, wanted, column in (
        ("rowwise", quantizers[0].rowwise_usage, False),
        ("columnwise", quantizers[0].columnwise_usage, True),
    ):
        for fields in out:
            fields[f"{name}_data"] = fields[f"{name}_scale_inv"] = None
        if not wanted:
            continue
        data = [transposed(s) if column and columns_transposed else s for s in shapes]
        numbers = [list(q.get_scale_shape(s, column)) for q, s in zip(quantizers, shapes, strict=True)]
        n = len(shapes)
        parts = bulk(data + numbers, [torch.uint8] * n + [scales] * n, [256] * n + [16] * n)
        for i, fields in enumerate(out):
            fields[f"{name}_data"], fields[f"{name}_scale_inv"] = parts[i], parts[n + i]
    return out


def split_quantize(tensor: torch.Tensor, sections: list[int], quantizers: list[Any], **_: Any) -> list[Any]:
    tensor = tensor.contiguous()
    shapes = [[rows, *tensor.shape[1:]] for rows in sections]
    kind = kind_of(quantizers[0])
    if kind not in ("Float8BlockQuantizer", "MXFP8Quantizer"):
        out = [create(q, shape, tensor.dtype) for q, shape in zip(quantizers, shapes, strict=True)]
        for q in quantizers:
            _largest = amax_of(q)
        return out
    blocks = kind == "Float8BlockQuantizer"
    parts = bulk_parts(quantizers, shapes, blocks, torch.float32 if blocks else torch.uint8)
    out = []
    for q, shape, fields in zip(quantizers, shapes, parts, strict=True):
        internal, q.internal = q.internal, True  # the storage class whatever the quantizer says
        out.append(create(q, shape, tensor.dtype, fields))
        q.internal = internal
    return out


def swizzled(x: Any, rows: bool) -> Any:
    """swizzle_scales_for_gemm of what a product takes; and of 128 x 128 blocks on Blackwell what MXFP8's products want instead."""
    kind = type(x).__name__
    if kind.startswith("MXFP8") and not x._with_gemm_swizzled_scales:
        return empty((x._rowwise_scale_inv if rows else x._columnwise_scale_inv).shape)
    if kind.startswith("Float8Blockwise") and CAPABILITY[0] >= 10:
        data = x._rowwise_data if rows else x._columnwise_data
        flat = data.reshape(-1, data.shape[-1]) if rows else data.reshape(data.shape[0], -1)
        return empty([-(-flat.shape[0] // 128) * 128, -(-flat.shape[1] // 128) * 4])
    return None


def rows_of(x: Any) -> int:
    return int(torch.Size(x.size()[:-1]).numel())


def columns_of(x: Any) -> int:
    turned = getattr(x, "_transpose", None)
    return int(turned.shape[0] if turned is not None else x.size()[-1])


def result_shape(a: Any, transa: bool, b: Any, transb: bool) -> Shape:
    """getGemmOutputShape."""
    a_rows, a_columns, b_columns = rows_of(a), columns_of(a), columns_of(b)
    if transb:
        return [b_columns, a_rows if transa else a_columns]
    return [*b.size()[:-1], a_rows if transa else a_columns]


def generic_gemm(a: Any, transa: bool, b: Any, transb: bool, out: Any, quantizer: Any, dtype: Any, *_: Any, **__: Any) -> Any:
    if out is None:
        out = create(quantizer, result_shape(a, transa, b, transb), TORCH[int(dtype)])
    _scales = swizzled(a, transa), swizzled(b, not transb)
    return out, None, None, None


def te_general_grouped_gemm(a: list[Any], transa: bool, b: list[Any], transb: bool, *rest: Any, **__: Any) -> Any:
    bias = rest[3]  # behind the results, their format and the splits
    if type(a[0]).__name__.startswith("MXFP8"):  # one block for the scales of all
        for tensors, rows in ((a, transa), (b, not transb)):
            if not tensors[0]._with_gemm_swizzled_scales:
                _all = empty([sum(int((t._rowwise_scale_inv if rows else t._columnwise_scale_inv).numel()) for t in tensors)])
        return bias
    _scales = [swizzled(x, transa) for x in a], [swizzled(x, not transb) for x in b]
    return bias


def norm(x: torch.Tensor, quantizer: Any, mean: bool) -> Any:
    rows = rows_of(x)
    mu = empty([rows], torch.float32) if mean else None
    rsigma = empty([rows], torch.float32)
    kind = kind_of(quantizer)
    if kind in ("None", "Float8Quantizer"):  # fully fused
        return create(quantizer, x.shape, x.dtype), mu, rsigma
    out = create(quantizer, x.shape, x.dtype)
    _largest, _wide = amax_of(quantizer), empty(x.shape, x.dtype)
    return out, mu, rsigma


def layernorm_fwd(x: Any, _weight: Any, _bias: Any, _eps: float, _out: Any, quantizer: Any, *_: Any) -> Any:
    return norm(x, quantizer, True)


def rmsnorm_fwd(x: Any, _weight: Any, _eps: float, _out: Any, quantizer: Any, *_: Any) -> Any:
    return norm(x, quantizer, False)


def layernorm_bwd(_dz: Any, x: Any, _mu: Any, _rsigma: Any, gamma: Any, *_: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)


def rmsnorm_bwd(_dz: Any, x: Any, _rsigma: Any, gamma: Any, *_: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(gamma)


def fp8_transpose(x: torch.Tensor, _dtype: Any, out: Any = None) -> torch.Tensor:
    return out if out is not None else empty(transposed(x.shape))


class Anything:
    """Whatever else is asked of the extension: names of enumerations, types in annotations."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Anything()

    def __int__(self) -> int:
        return 0


class Extension(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


FUNCTIONS = (
    create_empty_quantized_tensor,
    quantize,
    bgrad_quantize,
    split_quantize,
    generic_gemm,
    te_general_grouped_gemm,
    layernorm_fwd,
    rmsnorm_fwd,
    layernorm_bwd,
    rmsnorm_bwd,
    fp8_transpose,
)


def on_meta(function: Any) -> Any:
    """Tensors of the GPU are tensors without data."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device == 0 or (device is not None and torch.device(device).type == "cuda"):
            device = DEVICE[0]
        return function(*args, **kwargs) if device is None else function(*args, device=device, **kwargs)

    return made


class Work:
    def wait(self) -> None: ...


def collective(*_: Any, async_op: bool = False, **__: Any) -> Any:
    return Work() if async_op else None


@contextlib.contextmanager
def coalesced(*_: Any, **__: Any) -> Any:
    yield Work()


def package(name: str, place: Path) -> None:
    module = types.ModuleType(name)
    module.__path__ = [str(place)]
    sys.modules[name] = module


def on_gpu(capability: list[int]) -> None:
    """From here on the GPU is of this compute capability."""
    from transformer_engine.pytorch import quantization, utils
    from transformer_engine.pytorch.tensor import float8_tensor

    CAPABILITY[:] = capability
    utils._get_device_compute_capability.cache_clear()
    for module in (utils, float8_tensor, quantization):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    for name in ("_FP8_SUPPORT", "_MXFP8_SUPPORT", "_NVFP4_SUPPORT", "_FP8_BLOCK_SCALING_SUPPORT"):
        setattr(quantization, name, None)


def install(sources: Path) -> None:
    """Makes `transformer_engine.pytorch.module` of the source tree `sources` importable."""
    import torch._dynamo  # before there seems to be a Triton
    import triton_stub

    sys.meta_path.insert(0, triton_stub.Finder())
    sys.modules["transformer_engine.pytorch.onnx_extensions"] = Extension("onnx_extensions")
    tex = Extension("transformer_engine_torch")
    tex.DType, tex.FP8FwdTensors, tex.FP8BwdTensors = DType, FwdTensors, BwdTensors  # type: ignore[attr-defined]
    for function in FUNCTIONS:
        setattr(tex, function.__name__, function)
    tex.get_cublasLt_version = lambda: 130000  # type: ignore[attr-defined]
    tex.get_num_cublas_streams = lambda: 4  # type: ignore[attr-defined]
    tex.is_non_tn_fp8_gemm_supported = needs_no_transposes  # type: ignore[attr-defined]
    sys.modules["transformer_engine_torch"] = tex
    for name in ("transformer_engine", "transformer_engine.common", "transformer_engine.pytorch"):
        package(name, sources / name.replace(".", "/"))
    for name, value in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: SimpleNamespace(
            major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=132, name="stub"
        ),
        "get_device_capability": lambda *_: tuple(CAPABILITY),
        "is_current_stream_capturing": lambda: False,
    }.items():
        setattr(torch.cuda, name, value)
    torch.version.cuda = "13.0"
    for name in ("range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, lambda *_: None)
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
        setattr(dist, name, collective)
    dist._coalescing_manager = coalesced  # type: ignore[attr-defined]
    for name in ("empty", "empty_like", "zeros", "ones", "full", "tensor", "arange"):
        setattr(torch, name, on_meta(getattr(torch, name)))
    torch.Tensor.to = on_meta(torch.Tensor.to)  # type: ignore[method-assign,assignment]
    torch.Tensor.cuda = lambda self, *_, **__: self.to(DEVICE[0])  # type: ignore[method-assign,assignment]
    torch.Tensor.is_cuda = property(lambda self: self.device.type == DEVICE[0])  # type: ignore[assignment]
    importlib.import_module("transformer_engine.pytorch.module")
