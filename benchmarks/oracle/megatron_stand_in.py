"""A Megatron-core GPT whose modules save and make what Transformer Engine's do, without its kernels: tensors of the right shapes.

Order and lifetimes are those of megatron-core 0.16.1 (transformer/attention.py, transformer/mlp.py, transformer/transformer_layer.py) on
Transformer Engine 2.9 (pytorch/module/{layernorm_linear,linear}.py), without gradient accumulation fusion: a weight's gradient is a
16-bit tensor that autograd hands on. RMSNorm, gated feed-forward, rotary positions, fused attention, Transformer Engine's loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

BF16 = torch.bfloat16


class NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gamma: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed = torch.empty_like(x)
        root = torch.empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, normed, root, gamma, weight)
        return x.new_empty(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        x, normed, _root, gamma, weight = ctx.saved_tensors
        product, of_weight = torch.empty_like(normed), torch.empty_like(weight)
        normed.data = torch.empty(0, dtype=normed.dtype)  # clear_tensor_data(ln_out), in front of the norm's kernel
        out = torch.empty_like(x), torch.empty_like(gamma), of_weight
        del product
        return out


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x.new_empty(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        normed = torch.empty_like(x)
        ctx.save_for_backward(x, torch.empty(x.shape[:-1], dtype=torch.float32), gamma)
        return normed

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        x, _root, gamma = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(gamma)


class Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.shape = x.shape
        return torch.empty(x.shape, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        return torch.empty(ctx.shape, dtype=BF16)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        tokens, batch, heads, _width = q.shape
        out = torch.empty(q.shape, dtype=BF16)
        ctx.save_for_backward(q, k, v, out, torch.empty(batch, heads, tokens, 1, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        q, k, v, _out, _sums = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


class Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.empty_like(x)


class Loss(torch.autograd.Function):
    """The gradient is written into the logits in the forward pass."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.logits = logits.detach()
        return torch.empty(logits.shape[:-1], dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        return ctx.__dict__.pop("logits") if "logits" in ctx.__dict__ else ctx.logits


def matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns, dtype=BF16))


def vector(width: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(width, dtype=BF16))


class Projection(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = matrix(rows, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Linear.apply(x, self.weight)


class NormedProjection(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.layer_norm_weight = vector(columns)
        self.weight = matrix(rows, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return NormLinear.apply(x, self.layer_norm_weight, self.weight)


class SelfAttention(nn.Module):
    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        hidden, width = fields["hidden_size"], fields["head_dim"]
        self.heads, self.groups, self.width = fields["num_attention_heads"], fields["num_key_value_heads"], width
        self.linear_proj = Projection(hidden, self.heads * width)
        self.linear_qkv = NormedProjection((self.heads + 2 * self.groups) * width, hidden)

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mixed = self.linear_qkv(x)
        each = self.heads // self.groups
        mixed = mixed.view(*mixed.shape[:2], self.groups, (each + 2) * self.width)
        q, k, v = torch.split(mixed, [each * self.width, self.width, self.width], dim=3)
        return q.reshape(*q.shape[:2], -1, self.width), k, v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = self.project(x)
        q, k, v = projected
        q, k = Rotary.apply(q), Rotary.apply(k)
        out = self.core(q, k, v)
        return self.linear_proj(out.view(*out.shape[:2], -1))

    def core(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return Attention.apply(q, k, v.contiguous())


class Mlp(nn.Module):
    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        self.linear_fc1 = NormedProjection(2 * fields["intermediate_size"], fields["hidden_size"])
        self.linear_fc2 = Projection(fields["hidden_size"], fields["intermediate_size"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.linear_fc1(x)
        inner = Swiglu.apply(inner)
        return self.linear_fc2(inner)


class TransformerLayer(nn.Module):
    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        self.self_attention = SelfAttention(fields)
        self.mlp = Mlp(fields)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.behind(self.before(x))

    def before(self, x: torch.Tensor) -> torch.Tensor:
        out = self.self_attention(x)
        return x + out

    def behind(self, x: torch.Tensor) -> torch.Tensor:
        out = self.mlp(x)
        return x + out


class FinalNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = vector(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Norm.apply(x, self.weight)


class Checkpoint(torch.autograd.Function):
    """CheckpointFunction of megatron/core/tensor_parallel/random.py, without states of random numbers."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.run = run
        with torch.no_grad():
            out = run(x)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        inside = x.detach()
        inside.requires_grad = True
        with torch.enable_grad():
            out = ctx.run(inside)
        torch.autograd.backward((out,), (gradient,))
        return None, inside.grad


class Decoder(nn.Module):
    def __init__(self, fields: dict[str, Any], recomputed: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(fields) for _ in range(fields["num_hidden_layers"]))
        self.final_layernorm = FinalNorm(fields["hidden_size"])
        self.recomputed = recomputed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = Checkpoint.apply(layer, x) if number < self.recomputed else layer(x)
        return self.final_layernorm(x)


class Embedding(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(1, 1)
        self.word_embeddings.weight = matrix(rows, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.word_embeddings(ids).transpose(0, 1).contiguous()


class Output(nn.Module):
    def __init__(self, rows: int, width: int, tied: bool) -> None:
        super().__init__()
        self.weight = None if tied else matrix(rows, width)

    def forward(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return Linear.apply(x, self.weight if weight is None else weight)


class Gpt(nn.Module):
    def __init__(self, fields: dict[str, Any], recomputed: int) -> None:
        super().__init__()
        self.embedding = Embedding(fields["vocab_size"], fields["hidden_size"])
        self.decoder = Decoder(fields, recomputed)
        self.tied = bool(fields.get("tie_word_embeddings"))
        self.output_layer = Output(fields["vocab_size"], fields["hidden_size"], self.tied)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.decoder(self.embedding(ids))
        return self.loss(self.output_layer(hidden, self.embedding.word_embeddings.weight if self.tied else None))

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        return Loss.apply(logits)


class Float16Module(nn.Module):
    """megatron/core/transformer/module.py: what every model is wrapped in."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def to(self, *_: Any) -> Any:  # it is there already
        return self

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.module(ids)
