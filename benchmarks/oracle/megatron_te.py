"""Megatron-core's GPTModel on Transformer Engine's own modules, on the CPU: what both need a GPU for is stood in for.

Megatron-core 0.16.1 and the Python of Transformer Engine 2.17.1 run as they are, with real autograd and tensors small enough to
be real. Stood in for: Transformer Engine's C++ extension (te_stub.py), its attention (cuDNN's kernel: keeps queries, keys, values, its
output and a number a row), its rotary kernel, functions that torch.compile makes one kernel of (keep their arguments, make their
result), Apex's norm and its kernel of mask and softmax (execute_megatron_local.py), collectives (what is gathered repeats what the
rank has), and the router's product, whose results send every expert equally many tokens.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from pathlib import Path
from typing import Any

import te_stub
import torch
import torch.distributed as dist
from execute import Row
from execute_megatron_local import Kernel, Norm, Resized, Tracker
from torch.utils._python_dispatch import _disable_current_modes

BF16 = torch.bfloat16


class Clock:
    """The storages that are counted now."""

    now: Resized | None = None
    paused = False


def made(tensor: torch.Tensor) -> torch.Tensor:
    """A kernel's result, of which nothing else is seen."""
    if Clock.now is not None and not Clock.paused:
        Clock.now.born(tensor)
    return tensor


def fused(function: Any) -> Any:
    """torch.compile of an element-wise function: one kernel, which keeps its arguments where autograd asks for that."""

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.tensors = [isinstance(a, torch.Tensor) for a in args]
            ctx.save_for_backward(*[a for a in args if isinstance(a, torch.Tensor)])
            return run(args)

        @staticmethod
        def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
            kept = iter(ctx.saved_tensors)
            out = []
            for wanted, is_tensor in zip(ctx.needs_input_grad, ctx.tensors, strict=True):
                tensor = next(kept) if is_tensor else None
                out.append(torch.zeros_like(tensor) if wanted and tensor is not None else None)
            return tuple(out)

    def run(args: Any) -> Any:
        outer, Clock.paused = Clock.paused, True  # what it calls belongs to the same kernel
        try:
            with _disable_current_modes(), torch.no_grad():
                out = function(*args)
        finally:
            Clock.paused = outer
        for one in out if isinstance(out, tuple) else (out,):
            if isinstance(one, torch.Tensor):
                made(one)
        return out

    def called(*args: Any, **named: Any) -> Any:
        if named:  # nothing is made of tensors that want gradients
            with _disable_current_modes(), torch.no_grad():
                return function(*args, **named)
        recorded = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        return Compiled.apply(*args) if recorded else run(args)

    called.__name__ = getattr(function, "__name__", "fused")
    called.__wrapped__ = function  # type: ignore[attr-defined]
    return called


class BiasDropoutAdd(torch.autograd.Function):
    """One kernel; a mask is kept where it drops."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: Any, residual: torch.Tensor, rate: float) -> torch.Tensor:
        ctx.drops, ctx.has_bias = rate > 0, bias is not None
        ctx.drops = ctx.drops and any(ctx.needs_input_grad[:2])  # a compiled function saves what a gradient needs
        if ctx.drops:
            ctx.save_for_backward(torch.ones(x.shape, dtype=torch.bool))
        return torch.zeros_like(residual)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.drops:
            (_mask,) = ctx.saved_tensors
        own = torch.zeros_like(gradient) if ctx.drops else gradient
        return own, own.sum(dim=(0, 1)) if ctx.has_bias else None, gradient, None


class Attention(torch.autograd.Function):
    """cuDNN's kernel. `joint`: queries, keys and values are views of one projection, and so are their gradients."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, joint: bool) -> torch.Tensor:
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
        ctx.joint = joint
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[1], q.shape[2], q.shape[0], 1, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:
        q, k, v, _out, _sums = ctx.saved_tensors
        if not ctx.joint:
            return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), None
        width = q.shape[-1]
        block = torch.zeros(*q.shape[:-1], 3 * width, dtype=q.dtype)
        return block[..., :width], block[..., width : 2 * width], block[..., 2 * width :], None


class DotProductAttention(torch.nn.Module):
    """Transformer Engine's: blocks of their own but where all three lie in one projection head by head."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.attention_type = "self"

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        joint = len({x.untyped_storage()._cdata for x in (q, k, v)}) == 1 and q.shape == k.shape == v.shape
        if not joint:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = Attention.apply(q, k, v, joint)
        return out.view(*out.shape[:2], -1)


class Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.zeros(gradient.shape, dtype=gradient.dtype)


def rotary(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return Rotary.apply(x)


class Stream:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: self


class NoFp8:
    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None:
        return None


def even_logits(tokens: int, experts: int, top: int) -> torch.Tensor:
    """Token i chooses the experts from i * top on."""
    row = torch.arange(tokens).unsqueeze(1) * top
    return ((torch.arange(experts).unsqueeze(0) - row) % experts < top).float()


class Router:
    """What the model's routers choose; set before a run."""

    top = 1


def gemm(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, layout: str = "TN", **_: Any) -> Any:
    """te_general_gemm: one kernel with one result."""
    shape = {"TN": (b.shape[0], a.shape[0]), "NN": (b.shape[0], a.shape[1]), "NT": (b.shape[1], a.shape[1])}[layout]
    out = torch.zeros(shape, dtype=dtype)
    if layout == "TN":
        with _disable_current_modes(), torch.no_grad():
            out.copy_(even_logits(shape[0], shape[1], Router.top))
    return (out,)


def repeated(output: torch.Tensor, given: torch.Tensor, *_: Any, async_op: bool = False, **__: Any) -> Any:
    """all_gather_into_tensor."""
    with _disable_current_modes(), torch.no_grad():
        output.view(-1, *given.shape).copy_(given.detach())
    return te_stub.Work() if async_op else None


def sent(output: torch.Tensor, given: torch.Tensor, *_: Any, async_op: bool = False, **__: Any) -> Any:
    """all_to_all_single of evenly routed tokens: as many come as go."""
    with _disable_current_modes(), torch.no_grad():
        output.copy_(given.detach())
    return te_stub.Work() if async_op else None


def part(output: torch.Tensor, *_: Any, async_op: bool = False, **__: Any) -> Any:
    with _disable_current_modes(), torch.no_grad():
        output.zero_()
    return te_stub.Work() if async_op else None


def make_package(sources: Path) -> None:
    """`transformer_engine.pytorch` of its modules alone."""
    te_stub.DEVICE[0] = "cpu"
    sys.modules["scaled_upper_triang_masked_softmax_cuda"] = Kernel("scaled_upper_triang_masked_softmax_cuda")
    sys.modules["scaled_masked_softmax_cuda"] = Kernel("scaled_masked_softmax_cuda")
    torch.compile = lambda f=None, *_a, **_k: fused(f) if f is not None else fused  # type: ignore[assignment]
    te_stub.install(sources)
    torch.Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment]
    from transformer_engine.pytorch import module, quantization, utils

    te = sys.modules["transformer_engine"]
    package = sys.modules["transformer_engine.pytorch"]
    te.pytorch, te.common = package, sys.modules["transformer_engine.common"]  # type: ignore[attr-defined]
    te.__version__ = "2.11.0"  # type: ignore[attr-defined]
    for name in ("LayerNormLinear", "Linear", "GroupedLinear", "LayerNorm", "RMSNorm", "Fp8Padding", "Fp8Unpadding"):
        setattr(package, name, getattr(module, name))
    package.DotProductAttention = DotProductAttention  # type: ignore[attr-defined]
    attention = types.ModuleType("transformer_engine.pytorch.attention")
    attention._SplitAlongDim = utils.SplitAlongDim  # type: ignore[attr-defined]
    attention.apply_rotary_pos_emb = rotary  # type: ignore[attr-defined]
    attention.__path__ = []
    rope = types.ModuleType("transformer_engine.pytorch.attention.rope")
    rope.apply_rotary_pos_emb = rotary  # type: ignore[attr-defined]
    sys.modules[attention.__name__], sys.modules[rope.__name__] = attention, rope
    for name in ("permutation", "cross_entropy", "router"):  # kernels that are not run
        sys.modules[f"transformer_engine.pytorch.{name}"] = te_stub.Extension(name)
    fp8 = types.ModuleType("transformer_engine.pytorch.fp8")
    fp8.FP8GlobalStateManager, fp8.fp8_autocast = quantization.FP8GlobalStateManager, quantization.autocast  # type: ignore[attr-defined]
    sys.modules[fp8.__name__] = fp8
    import transformer_engine.common.recipe
    import transformer_engine.pytorch.distributed

    del transformer_engine


def stand_in(sources: Path) -> None:
    """Before megatron-core is imported by anything else."""
    make_package(sources)
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.Stream = torch.cuda.Event = Stream  # type: ignore[assignment,misc]
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()  # type: ignore[assignment]
    torch.cuda.current_stream = Stream  # type: ignore[assignment]
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]
    torch.nn.functional.dropout = lambda x, p=0.5, training=True, inplace=False: (  # type: ignore[assignment]
        torch.native_dropout(x, p, True)[0] if p > 0 else x
    )
    for name in ("all_gather_into_tensor", "_all_gather_base"):
        setattr(dist, name, repeated)
    for name in ("reduce_scatter_tensor", "_reduce_scatter_base"):
        setattr(dist, name, part)
    dist.all_to_all_single = sent
    import fused_weight_gradient_mlp_cuda  # noqa: F401
    from megatron.core import tensor_parallel
    from megatron.core.fusions import fused_bias_dropout, fused_softmax
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer import utils as transformer_utils
    from megatron.core.transformer.moe import moe_utils

    def add(given: Any, residual: torch.Tensor, rate: float) -> Any:
        return BiasDropoutAdd.apply(given[0], given[1], residual, rate)

    fused_bias_dropout.bias_dropout_add_fused_train = add
    with contextlib.suppress(ImportError):  # not there before 0.13
        from megatron.core.models import backends

        backends.LNImpl = Norm
    if transformer_block.LayerNormImpl.__name__ != "TENorm":
        transformer_block.LayerNormImpl = Norm
    for module in (tensor_parallel, random):
        module.get_cuda_rng_tracker = Tracker
    random._get_all_rng_states = lambda: (None, None, None)
    random._set_all_rng_states = lambda *_states: None
    random._fork_rng = contextlib.nullcontext
    random.FP8GlobalStateManager = NoFp8
    random.activation_recompute_forward = random.fp8_autocast = lambda **_k: contextlib.nullcontext()
    rope_utils.fused_apply_rotary_pos_emb = rotary
    moe_utils.te_general_gemm = gemm
    ones = torch.ones

    def causal(size: int) -> torch.Tensor:  # the device is named in it
        return torch.triu(ones(size, size), diagonal=1).bool()

    transformer_utils.get_default_causal_mask = fused_softmax.get_default_causal_mask = causal


class Accumulates(types.ModuleType):
    """Apex's products that add weight gradients up."""

    @staticmethod
    def wgrad_gemm_accum_fp32(*_: Any) -> None: ...

    wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


sys.modules["fused_weight_gradient_mlp_cuda"] = Accumulates("fused_weight_gradient_mlp_cuda")


class Step:
    """A forward and a backward pass of a stage that is alone, with gradients that go into buffers as DistributedDataParallel's do."""

    def __init__(self, run: Row, model: Any, storages: Resized) -> None:
        self.run, self.model, self.storages = run, model, storages

    def __call__(self) -> Row:
        run, storages = self.run, self.storages
        shape = run["micro_batch_size"], run["seq_length"]
        base = storages.live
        tokens, labels, positions = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
        weights = torch.ones(shape, dtype=torch.float32)
        mask = torch.ones(shape[0], 1, shape[1], shape[1], dtype=torch.bool)
        storages.highest = storages.live
        loss = self.model(tokens, positions, mask, labels=labels)
        forward = storages.highest - base
        total = loss.sum()
        del tokens, labels, positions, weights, loss, mask
        storages.highest = storages.live
        total.backward()
        backward = storages.highest - base
        del total
        gc.collect()
        return {"forward": forward, "backward": backward, "left": storages.live - base}
