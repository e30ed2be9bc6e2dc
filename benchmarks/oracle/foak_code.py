"""The functions of fms-acceleration's fused operators, of GPTQ's layers and of adapters beside them, as far as memory sees them.

What each allocates, saves and writes over follows foundation-model-stack/fms-acceleration, plugins/fused-ops-and-kernels and
plugins/accelerated-peft (kernels/unsloth, fused_ops/unsloth_lora/bnb and gptq, gptqmodel/nn_modules/triton_utils/dequant.py), and
bitsandbytes 0.43.3 (MatMul4Bit) and peft 0.13.2 (tuners/lora/gptq.py). Kernels are empty tensors: there is nothing to launch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd

Function = torch.autograd.Function
enter, leave = partial(custom_fwd, device_type="cpu"), partial(custom_bwd, device_type="cpu")
WIDEST = 65536


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows, vocab = logits.shape
        parts = -(-vocab // WIDEST)
        losses = torch.empty(rows, dtype=torch.float32)
        if parts == 1:
            total = torch.empty(rows, dtype=torch.float32)
        else:
            total = torch.empty(rows, parts, dtype=torch.float32)
            total = torch.logsumexp(total, dim=1)
            losses += total
            losses.masked_fill_(labels == -100, 0)
        ctx.save_for_backward(logits, total, labels)
        return losses

    @staticmethod
    def backward(ctx: Any, _losses: torch.Tensor) -> tuple[Any, ...]:
        logits, _total, _labels = ctx.saved_tensors
        return logits, None


def causal_loss(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any) -> torch.Tensor:
    logits = logits.float()
    shifted = logits[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous()
    shifted = shifted.view(-1, vocab_size)
    targets = targets.view(-1)
    loss = CrossEntropy.apply(shifted, targets)
    return loss.sum() / torch.count_nonzero(targets != -100)


class Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        x = x.view(-1, shape[-1])
        out = torch.empty(x.shape, dtype=x.dtype)
        ctx.save_for_backward(x, weight, torch.empty(x.shape[0], dtype=torch.float32))
        return out.view(*shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        _x, _weight, _root = ctx.saved_tensors
        return grad.view(-1, grad.shape[-1]).view(*grad.shape), None


class Rope(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.cos, ctx.sin = cos.squeeze(), sin.squeeze()
        sequences, tokens, heads, width = x.shape
        return x.view(sequences * tokens, heads * width).view(sequences, tokens, heads, width)

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        sequences, tokens, heads, width = grad.shape
        return grad.reshape(sequences * tokens, heads * width).view(sequences, tokens, heads, width), None, None


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q = Rope.apply(q.transpose(1, 2), cos, sin).transpose(1, 2)
    k = Rope.apply(k.transpose(1, 2), cos, sin).transpose(1, 2)
    return q, k


# ---- quantised bases


class Packed(nn.Module):
    """Tensors in place of one matrix."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.weight.shape
        self.dtype = layer.weight.dtype
        self.bias = layer.bias

    def matrix(self) -> torch.Tensor:
        """Unpacked, as [out, in]."""
        raise NotImplementedError


class Nf4(Packed):
    """bitsandbytes 0.43.3 with nested scales; the table of the scales' own quantisation is one for all layers."""

    def __init__(self, layer: nn.Linear, table: torch.Tensor) -> None:
        super().__init__(layer)
        n = self.out_features * self.in_features
        self.blocks = -(-n // 64)
        self.weight = nn.Parameter(torch.empty((n + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
        self.absmax = torch.empty(self.blocks, dtype=torch.uint8)
        self.nested = torch.empty(-(-self.blocks // 256))
        self.offset, self.code, self.table = torch.empty(()), torch.empty(16), table

    def tensors(self) -> list[torch.Tensor]:
        return [self.weight, self.absmax, self.nested, self.offset, self.code]

    def matrix(self) -> torch.Tensor:  # dequantize_4bit
        scales = torch.empty(self.blocks, dtype=torch.float32)
        scales += self.offset
        return torch.empty(self.out_features, self.in_features, dtype=self.dtype)

    def unpacked(self) -> torch.Tensor:  # fast_dequantize
        out = torch.empty(self.out_features, self.in_features, dtype=self.dtype)
        scales = torch.empty(self.blocks, dtype=torch.float32)
        scales += self.offset
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return MatMul4Bit.apply(x, self)


class MatMul4Bit(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Nf4) -> torch.Tensor:
        ctx.layer = layer
        return nn.functional.linear(x, layer.matrix().to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return torch.matmul(grad, ctx.layer.matrix().to(grad.dtype)), None


class Gptq(Packed):
    def __init__(self, layer: nn.Linear, bits: int = 4, group: int = 128) -> None:
        super().__init__(layer)
        i, o = self.in_features, self.out_features
        groups = -(-i // (group or i))
        self.weight = torch.empty(i // 32 * bits, o, dtype=torch.int32)
        self.zeros = torch.empty(groups, o // 32 * bits, dtype=torch.int32)
        self.scales = torch.empty(groups, o, dtype=torch.float16)
        self.index = torch.empty(i, dtype=torch.int32)

    def tensors(self) -> list[torch.Tensor]:
        return [self.weight, self.zeros, self.scales, self.index]

    def matrix(self) -> torch.Tensor:  # dequant248 gives [in, out]
        return torch.empty(self.in_features, self.out_features, dtype=torch.float16).t()

    unpacked = matrix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:-1], self.out_features)
        out = QuantLinear.apply(x.reshape(-1, x.shape[-1]), self)
        out = out.half().reshape(shape)
        return out + self.bias if self.bias is not None else out


class QuantLinear(Function):
    @staticmethod
    @enter
    def forward(ctx: Any, x: torch.Tensor, layer: Gptq) -> torch.Tensor:
        ctx.layer = layer
        return x @ layer.matrix().t()

    @staticmethod
    @leave
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return (grad @ ctx.layer.matrix() if ctx.needs_input_grad[0] else None), None


# ---- adapters


class Adapted(nn.Module):
    def __init__(self, base: Packed, rank: int, dropout: float) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)
        self.lora_dropout: Any = nn.Dropout(dropout) if dropout else nn.Identity()
        self.scaling = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """peft's own layers of these bases."""
        result = self.base_layer(x)
        if isinstance(self.base_layer, Nf4):
            result = result.clone()
        if not torch.is_autocast_enabled("cpu"):
            x = x.to(self.lora_A.weight.dtype)
        output = self.lora_B(self.lora_A(self.lora_dropout(x)))
        if isinstance(self.base_layer, Nf4):
            output = output * self.scaling
            return result + (output if torch.is_autocast_enabled("cpu") else output.to(result.dtype))
        if not torch.is_autocast_enabled("cpu"):
            output = output.to(result.dtype)
        output = output * self.scaling
        result += output
        return result


def product(x: torch.Tensor, layer: Adapted, matrix: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """matmul_lora: the result, and what dropout left of x."""
    kept = matrix is not None
    if matrix is None:
        matrix = layer.base_layer.unpacked()
    shape = (*x.shape[:-1], -1)
    x = x.view(-1, x.shape[-1])
    out = torch.matmul(x, matrix.t())
    if not kept:
        del matrix
    x = layer.lora_dropout(x)
    a, b = layer.lora_A.weight.t(), layer.lora_B.weight.t()
    out += (x @ a.to(x.dtype)) @ (layer.scaling * b.to(x.dtype))
    return out.view(*shape), x


def pair_gradients(grad: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of lora_A and lora_B, both transposed; so are a and b."""
    for_a = x.t() @ (grad @ b.t())
    for_b = (a.t() @ x.t()) @ grad
    for_a *= 1.0
    for_b *= 1.0
    return for_a, for_b


class LoraQkv(Function):
    @staticmethod
    @enter
    def forward(ctx: Any, x: torch.Tensor, layers: Any, *_weights: Any) -> Any:
        matrices = [layer.base_layer.unpacked() if isinstance(layer.base_layer, Gptq) else None for layer in layers]
        outs, dropped = [], []
        for layer, matrix in zip(layers, matrices, strict=True):
            out, one = product(x, layer, matrix)
            outs.append(out)
            dropped.append(one)
        del out, one
        ctx.layers = layers
        ctx.save_for_backward(x, *_weights, *dropped)
        return tuple(outs)

    @staticmethod
    @leave
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, *saved = ctx.saved_tensors
        count = len(ctx.layers)
        weights, dropped = [weight.t() for weight in saved[: 2 * count]], saved[2 * count :]
        del saved
        shape = x.shape
        grads = tuple(grad.reshape(-1, grad.shape[-1]) for grad in grads)
        x = x.view(-1, x.shape[-1])
        dtype = x.dtype
        pairs = []
        for i, grad in enumerate(grads):
            pairs += list(pair_gradients(grad, dropped[i], weights[2 * i], weights[2 * i + 1]))
        total = None
        for i, grad in enumerate(grads):
            a, b = weights[2 * i], weights[2 * i + 1]
            matrix = ctx.layers[i].base_layer.unpacked()
            if total is not None:
                total += grad @ matrix
            elif isinstance(ctx.layers[i].base_layer, Nf4) and count > 1:
                total = torch.matmul(grad, matrix, out=x)
            else:
                total = torch.matmul(grad, matrix)
            del matrix
            total += (dropped[i] != 0) * (grad @ b.to(dtype).t() @ (1.0 * a.to(dtype).t()))
        return total.view(shape), None, *(pair.t() for pair in pairs)


class FusedQkv:
    """Called as q_proj, k_proj and v_proj; the first call makes all three."""

    def __init__(self, layers: list[Adapted]) -> None:
        self.layers = layers
        self.outs: list[Any] = [None, None, None]

    def call(self, number: int, x: torch.Tensor) -> torch.Tensor:
        if all(out is None for out in self.outs):
            weights = [w for layer in self.layers for w in (layer.lora_A.weight, layer.lora_B.weight)]
            self.outs = list(LoraQkv.apply(x, self.layers, *weights))
        out, self.outs[number] = self.outs[number], None
        return out


def fuse(attention: Any) -> None:
    fused = FusedQkv([attention.q_proj, attention.k_proj, attention.v_proj])
    for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
        getattr(attention, name).forward = partial(fused.call, number)
    layer = attention.o_proj
    layer.forward = lambda x: LoraQkv.apply(x, [layer], layer.lora_A.weight, layer.lora_B.weight)[0]
