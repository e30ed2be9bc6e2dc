"""Makes tests/data/executed_megatron_local.jsonl: steps of Megatron-core's own modules (--transformer-impl local), executed.

    PYTHONPATH=MEGATRON_CORE OMP_NUM_THREADS=1 python benchmarks/oracle/execute_megatron_local.py [--output tests/data/...]

Needs torch and megatron-core 0.16.1 (its source is enough); no GPU. Its own GPTModel of get_gpt_layer_local_spec runs on the CPU as
one rank of PyTorch's fake process group, whose collectives allocate nothing, with its own embedding and loss. Stood in for is what
needs a GPU: Apex's norm (keeps its input and two fp32 numbers a row), its kernel of mask and softmax (keeps its result, its backward
writes into the gradient), dropout as the one operator that it is on a GPU, and functions that torch.compile makes one kernel of
(bias and activation; bias, dropout and sum, which keeps a mask). Every gradient goes as soon as it has been added up.

A line: the settings, `saved` as [dtype, bytes, count] of storages that one layer makes and autograd keeps, `peaks` of forward and
backward above what lives when a step is over, and `buffer`, what the shared one takes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import Row, Storages
from torch.testing._internal.distributed.fake_pg import FakeStore

ROOT = Path(__file__).resolve().parents[2]
BASE: Row = {
    "layers": 3,
    "hidden": 128,
    "heads": 4,
    "groups": 4,
    "ffn": 512,
    "vocab": 512,
    "sequence": 64,
    "sequences": 4,
    "tensor": 1,
    "sequence_parallel": False,
    "swiglu": False,
    "squared_relu": False,
    "rope": False,
    "qk_norm": False,
    "mask": True,
    "softmax_kernel": True,
    "layer_scaling": False,
    "softmax_fp32": False,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "recompute": "none",
    "modules": [],
}
RUNS: list[Row] = [
    {},
    {"attention_dropout": 0.0, "hidden_dropout": 0.0},
    {"tensor": 2},
    {"tensor": 2, "sequence_parallel": True},
    {"tensor": 4, "sequence_parallel": True, "sequences": 8},
    {"softmax_kernel": False},
    {"softmax_kernel": False, "softmax_fp32": True},
    {"softmax_kernel": False, "layer_scaling": True},
    {"softmax_kernel": False, "mask": False},
    {"softmax_kernel": False, "layer_scaling": True, "tensor": 2, "sequence_parallel": True},
    {"layer_scaling": True},
    {"swiglu": True},
    {"swiglu": True, "rope": True, "groups": 2},
    {"swiglu": True, "rope": True, "groups": 2, "tensor": 2, "sequence_parallel": True, "hidden_dropout": 0.0},
    {"squared_relu": True},
    {"groups": 2},
    {"qk_norm": True},
    {"qk_norm": True, "groups": 2, "rope": True},
    {"recompute": "selective", "modules": ["core_attn"]},
    {"recompute": "selective", "modules": ["core_attn"], "softmax_kernel": False, "layer_scaling": True},
    {"recompute": "selective", "modules": ["core_attn"], "tensor": 2, "sequence_parallel": True},
    {"recompute": "selective", "modules": ["mlp"], "swiglu": True},
    {"recompute": "selective", "modules": ["layernorm"]},
    {"recompute": "selective", "modules": ["core_attn", "layernorm"], "tensor": 2, "sequence_parallel": True},
    {"recompute": "full"},
    {"recompute": "full", "tensor": 2, "sequence_parallel": True},
    {"hidden": 256, "heads": 8, "groups": 8, "ffn": 1024, "sequence": 256, "sequences": 1, "vocab": 256},
    {"hidden": 256, "heads": 8, "groups": 2, "ffn": 1024, "sequence": 32, "sequences": 2, "vocab": 2048, "tensor": 2},
]
SHORT = {"bfloat16": "bf16", "float32": "fp32", "int64": "int64", "bool": "bool"}


class NormFunction(torch.autograd.Function):
    """FusedLayerNormAffineFunction (Apex, apex/normalization/fused_layer_norm.py)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows = x.numel() // x.shape[-1]
        mean, deviation = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.float32)
        ctx.save_for_backward(x, weight, bias, mean, deviation)
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight, bias, _mean, _deviation = ctx.saved_tensors
        return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(bias)


class Norm(torch.nn.Module):
    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_more: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))

    def forward(self, x: torch.Tensor) -> Any:
        return NormFunction.apply(x, self.weight, self.bias)


class BiasDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: Any, residual: torch.Tensor, rate: float) -> torch.Tensor:
        ctx.drops, ctx.has_bias = rate > 0, bias is not None
        if ctx.drops:
            ctx.save_for_backward(torch.ones(x.shape, dtype=torch.bool))
        return torch.zeros_like(residual)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.drops:
            (_mask,) = ctx.saved_tensors
        own = torch.zeros_like(gradient) if ctx.drops else gradient
        return own, own.sum(dim=(0, 1)) if ctx.has_bias else None, gradient, None


def bias_dropout_add(given: Any, residual: torch.Tensor, rate: float) -> Any:
    return BiasDropoutAdd.apply(given[0], given[1], residual, rate)


class SquaredRelu(torch.autograd.Function):
    """megatron/core/activations.py, compiled: what torch 2.13 keeps of it is its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.zeros_like(x)


def activation_of(run: Row) -> Any:
    if run["squared_relu"]:
        return SquaredRelu.apply
    return torch.nn.functional.silu if run["swiglu"] else torch.nn.functional.gelu


class Kernel(types.ModuleType):
    """scaled_upper_triang_masked_softmax_cuda (Apex, csrc/megatron)."""

    @staticmethod
    def forward(scores: torch.Tensor, _scale: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(scores)

    @staticmethod
    def backward(gradient: torch.Tensor, _result: torch.Tensor, _scale: torch.Tensor) -> torch.Tensor:
        return gradient

    @staticmethod
    def get_batch_per_block(_rows: int, columns: int, _sequences: int, _heads: int) -> int:
        return 8 if columns <= 128 else 4


class Resized(Storages):
    """Storages that are emptied and filled again where they are (CheckpointWithoutOutput)."""

    def __enter__(self) -> Any:
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            made, before = self.known.get(storage._cdata, ({}, 0))
            if made:
                self.known[storage._cdata] = made, size
                self.live += size - before
                self.highest = max(self.highest, self.live)
            return original(storage, size)

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]
        self.original = original
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        torch.UntypedStorage.resize_ = self.original  # type: ignore[method-assign]
        return super().__exit__(*error)


class Tracker:
    def fork(self, *_name: Any) -> Any:
        return contextlib.nullcontext()

    def get_states(self) -> Row:
        return {}

    def set_states(self, _states: Row) -> None: ...


class NoFp8:
    """Transformer Engine's, which CheckpointWithoutOutput asks."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None:
        return None


def stand_in() -> None:
    """Before megatron-core is imported by anything else."""
    sys.modules["scaled_upper_triang_masked_softmax_cuda"] = Kernel("scaled_upper_triang_masked_softmax_cuda")
    sys.modules["scaled_masked_softmax_cuda"] = Kernel("scaled_masked_softmax_cuda")
    torch.compile = lambda f=None, *_a, **_k: f if f is not None else (lambda inner: inner)  # type: ignore[assignment]
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.nn.functional.dropout = lambda x, p=0.5, training=True, inplace=False: (  # type: ignore[assignment]
        torch.native_dropout(x, p, True)[0] if p > 0 else x
    )
    from megatron.core import tensor_parallel
    from megatron.core.fusions import fused_bias_dropout, fused_bias_gelu, fused_bias_swiglu
    from megatron.core.models import backends
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import transformer_block, transformer_layer
    from megatron.core.transformer import utils as transformer_utils

    fused_bias_gelu.bias_gelu = lambda _bias, y: torch.zeros_like(y)
    fused_bias_gelu.bias_gelu_back = lambda _g, _bias, y: torch.zeros_like(y)
    fused_bias_swiglu.swiglu = lambda y: torch.zeros(*y.shape[:-1], y.shape[-1] // 2, dtype=y.dtype)
    fused_bias_swiglu.swiglu_back = lambda _g, y: torch.zeros_like(y)
    fused_bias_dropout.bias_dropout_add_fused_train = bias_dropout_add
    backends.LNImpl = transformer_block.LayerNormImpl = Norm
    for module in (tensor_parallel, random):
        module.get_cuda_rng_tracker = Tracker
    random._get_all_rng_states = lambda: (None, None, None)
    random._set_all_rng_states = lambda *_states: None
    random._fork_rng = contextlib.nullcontext
    random.FP8GlobalStateManager = NoFp8
    random.activation_recompute_forward = random.fp8_autocast = lambda **_k: contextlib.nullcontext()
    ones = torch.ones

    def causal(size: int) -> torch.Tensor:  # the device is named in it
        return torch.triu(ones(size, size), diagonal=1).bool()

    transformer_utils.get_default_causal_mask = causal
    from megatron.core.fusions import fused_softmax

    fused_softmax.get_default_causal_mask = causal
    _ = transformer_layer


def config_of(run: Row) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    full = run["recompute"] == "full"
    return TransformerConfig(
        num_layers=run["layers"],
        hidden_size=run["hidden"],
        num_attention_heads=run["heads"],
        num_query_groups=run["groups"],
        ffn_hidden_size=run["ffn"],
        tensor_model_parallel_size=run["tensor"],
        sequence_parallel=run["sequence_parallel"],
        params_dtype=torch.bfloat16,
        bf16=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        add_bias_linear=not run["swiglu"] and not run["squared_relu"],
        gated_linear_unit=run["swiglu"],
        activation_func=activation_of(run),
        bias_activation_fusion=not run["squared_relu"],
        bias_dropout_fusion=True,
        masked_softmax_fusion=run["softmax_kernel"],
        attention_softmax_in_fp32=run["softmax_fp32"] or run["layer_scaling"],
        apply_query_key_layer_scaling=run["layer_scaling"],
        attention_dropout=run["attention_dropout"],
        hidden_dropout=run["hidden_dropout"],
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        qk_layernorm=run["qk_norm"],
        recompute_granularity=None if run["recompute"] == "none" else run["recompute"],
        recompute_method="uniform" if full else None,
        recompute_num_layers=1 if full else None,
        recompute_modules=run["modules"] or None,
    )


def model_of(run: Row) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    model = GPTModel(
        config_of(run),
        get_gpt_layer_local_spec(qk_layernorm=run["qk_norm"], normalization="LayerNorm"),
        vocab_size=run["vocab"],
        max_sequence_length=run["sequence"],
        position_embedding_type="rope" if run["rope"] else "learned_absolute",
        share_embeddings_and_output_weights=False,
    )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return model.train()


class Step:
    """A forward and a backward pass, with the tensors that the middle layer's autograd keeps."""

    def __init__(self, run: Row, model: Any, storages: Storages) -> None:
        self.run, self.model, self.storages = run, model, storages
        self.saved: dict[int, Row] = {}
        layer = model.decoder.layers[1]
        layer.register_forward_pre_hook(lambda *_a: self.inside(True))
        layer.register_forward_hook(lambda *_a: self.inside(False))

    def inside(self, now: bool) -> None:
        if torch.is_grad_enabled() or self.run["recompute"] == "full":
            self.storages.in_layer = now

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        key = x.untyped_storage()._cdata
        made, bytes_ = self.storages.known.get(key, ({}, 0))
        on_host = x.dim() <= 1 and x.numel() == 1  # the factor of the kernel of mask and softmax
        if made.get("in_layer") and self.forward and not on_host:
            self.saved[key] = {"dtype": made["dtype"], "bytes": bytes_}
        return x

    def __call__(self) -> Row:
        run, storages = self.run, self.storages
        shape = run["sequences"], run["sequence"]
        self.forward = True
        base = storages.live
        tokens, labels, positions = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
        weights = torch.ones(shape, dtype=torch.float32)
        mask = torch.ones(run["sequences"], 1, run["sequence"], run["sequence"], dtype=torch.bool) if run["mask"] else None
        storages.highest = storages.live
        loss = self.model(tokens, positions, mask, labels=labels)
        forward = storages.highest - base
        total = loss.sum()
        self.forward = False
        kept = [*self.saved.values()]
        if run["recompute"] == "none" or run["modules"] != ["core_attn"] or run["softmax_kernel"]:
            del mask  # otherwise what masks the scores keeps it all the same
        else:
            mask = None
        del tokens, labels, positions, weights, loss
        storages.highest = storages.live
        total.backward()
        backward = storages.highest - base
        del total
        gc.collect()
        counted = Counter((one["dtype"], one["bytes"]) for one in kept)
        saved = sorted([dtype, bytes_, count] for (dtype, bytes_), count in counted.items())
        return {"saved": saved, "peaks": {"forward": forward, "backward": backward}, "left": storages.live - base}


def execute(changes: Row) -> Row:
    from megatron.core import parallel_state

    run = {**BASE, **changes}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=run["tensor"])
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=run["tensor"], create_gloo_process_groups=False)
    model = model_of(run)
    storages = Resized()
    for tensor in [*model.parameters(), *model.buffers()]:
        storages.own(tensor)
    gc.collect()
    with storages:
        step = Step(run, model, storages)
        with torch.autograd.graph.saved_tensors_hooks(step.pack, lambda x: x):
            step()
            step.saved.clear()
            figures = step()
    buffer = sum(int(one.untyped_storage().nbytes()) for one in parallel_state.get_global_memory_buffer().buffer.values())
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    assert figures.pop("left") == 0, changes
    return {"run": run, **figures, "buffer": buffer}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_local.jsonl")
    given = parser.parse_args()
    stand_in()
    lines = [json.dumps(execute(changes), separators=(",", ":")) for changes in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
