"""Makes tests/data/executed_parallel.jsonl: torchtitan's models, and transformers' under tensor parallelism, executed by PyTorch.

    python benchmarks/oracle/execute_parallel.py TORCHTITAN [--output tests/data/executed_parallel.jsonl]

TORCHTITAN is a clone of pytorch/torchtitan with its history: model code is read from it at three commits and run as it is.
Tensors are fake CPU ones; DTensor runs on PyTorch's fake process group, as rank 0. What only a CUDA build has is replaced: SDPA by
its flash operator, nn.RMSNorm's kernel by a node that saves and makes what it does. The plan of tensor parallelism is that of
AReaL (areal/engine/fsdp_utils/parallel.py, 1.0.4) or of torchtitan (models/llama3/infra/parallelize.py, 0.2.2; experiments/qwen3,
September 2025). Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import sys
import tempfile
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
import transformers
import transformers.masking_utils
from execute import IN_PLACE, ROOT, Row, Storages, half_to_float
from row_lines import write_rows
from titan_code import titan_model, unpack
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from triton_stub import Finder

aten = torch.ops.aten
# As UNSHARED of execute.py, seen through fake tensors: a tensor, and a view of one that is gone. DTensors' parts look otherwise.
UNSHARED = {(4, 2, 3), (4, 3, 3)}
KEPT = {
    aten.mm.default,
    aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}

COMMITS = {"2024-06": "40f8fd007", "2025-02": "5940ddeb5", "2025-09": "be2c83df4", "0.2.2": "v0.2.2"}
NAMED = "2024-06"  # the loop's name keeps the model's fp32 output until it has the next one
SIZES: Row = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64}
WIDTHS = {"llama": 2816, "qwen3": 3072}

# source, family, vocabulary, ranks, recomputation, sequences, tokens of one, head
RUNS = [
    *(("2025-02", "llama", 1024, 1, mode, 1, 4096, "cross_entropy") for mode in ("none", "full", "selective")),
    *(("0.2.2", "llama", 1024, 1, mode, 1, 4096, "cross_entropy") for mode in ("none", "full", "selective")),
    *(("2025-09", "qwen3", 1024, 1, mode, 1, 4096, "cross_entropy") for mode in ("none", "full", "selective")),
    *(("0.2.2", "llama", 1024, 2, mode, 1, 4096, "cross_entropy") for mode in ("none", "full", "selective")),
    *(("2025-09", "qwen3", 1024, 4, mode, 2, 2048, "cross_entropy") for mode in ("none", "full", "selective")),
    *(("2024-06", "llama", 32768, 1, mode, 1, 4096, "cross_entropy") for mode in ("none", "full", "selective")),
    ("2025-02", "llama", 32768, 2, "full", 1, 4096, "cross_entropy"),
    ("0.2.2", "llama", 32768, 1, "full", 1, 4096, "cross_entropy"),
    ("0.2.2", "llama", 32768, 1, "selective", 1, 4096, "cross_entropy_chunked"),
    ("0.2.2", "llama", 32768, 1, "full", 2, 2048, "cross_entropy_chunked"),
    ("0.2.2", "llama", 32768, 4, "selective", 2, 2048, "cross_entropy"),
    *(("transformers", family, 1024, 2, mode, 1, 4096, "cross_entropy") for family in WIDTHS for mode in ("none", "full")),
    *(("transformers", "qwen3", 1024, 4, mode, 2, 4096, "cross_entropy") for mode in ("none", "full")),
]


class LivesOfParts(Storages):
    """Storages of plain tensors and of the local parts of DTensors."""

    paused = 0
    unshared = UNSHARED

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # the same tensor; the fake kernel makes another
        kwargs = kwargs or {}
        if not torch.is_grad_enabled() and torch._C._current_graph_task_id() >= 0 and not self.paused:
            func = IN_PLACE.get(func, func)
            both = func is aten.add.Tensor and all(isinstance(x, torch.Tensor) for x in args[:2])
            if both and args[0].shape == args[1].shape and args[0].dtype == args[1].dtype:
                storage = torch._C._storage_Use_Count(args[0].untyped_storage()._cdata)
                if (args[0]._use_count(), storage, sys.getrefcount(args[0])) in self.unshared:
                    func = aten.add_.Tensor
        out = func(*args, **kwargs)
        if func is aten.native_layer_norm.default:  # statistics of 16-bit rows: CUDA keeps them in fp32 (layer_norm_kernel.cu)
            out = (out[0], out[1].float(), out[2].float())
        if not self.paused:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor):
                    self.born(leaf)
        return out

    def pause_propagation(self) -> None:
        """DTensor learns the shapes of each new operator on tensors of the whole size, once."""
        learn = ShardingPropagator._propagate_tensor_meta_non_cached

        def quietly(propagator: Any, *args: Any, **kwargs: Any) -> Any:
            self.paused += 1
            try:
                return learn(propagator, *args, **kwargs)
            finally:
                self.paused -= 1

        ShardingPropagator._propagate_tensor_meta_non_cached = quietly


class FusedNorm(torch.autograd.Function):
    """aten::_fused_rms_norm and its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out, root = torch.empty_like(x), torch.empty(*x.shape[:-1], 1, dtype=torch.float32)
        ctx.save_for_backward(x, weight, root)
        return out

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, _root = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def rms_norm(x: Any, _shape: Any, weight: Any = None, _eps: Any = None) -> Any:
    if not isinstance(x, DTensor):
        return FusedNorm.apply(x, weight)
    part = FusedNorm.apply(x.to_local(), weight.to_local() if isinstance(weight, DTensor) else weight)
    return DTensor.from_local(part, x.device_mesh, x.placements, run_check=False)


def flash_sdpa(q: Any, k: Any, v: Any, **_options: Any) -> Any:
    if not isinstance(q, DTensor):
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[0]
    part = flash_sdpa(q.to_local(), k.to_local(), v.to_local())
    return DTensor.from_local(part, q.device_mesh, (Shard(1),), run_check=False)


class FlashAttention(torch.autograd.Function):
    """flash-attention 2: log-sum-exp and the state of the generator are saved too."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, out, lse, torch.empty(2, dtype=torch.int64, device=q.device))
        return out

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


def attend(_module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _mask: Any, **_options: Any) -> tuple[Any, None]:
    return FlashAttention.apply(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)), None


class Whole(ParallelStyle):
    """A module whose parameters are replicated; `local`: plain tensors come in and go out."""

    def __init__(self, local: bool) -> None:
        super().__init__()
        self.local = local

    def _apply(self, module: Any, mesh: DeviceMesh) -> Any:
        def enter(_module: Any, inputs: Any, mesh: DeviceMesh) -> Any:
            return (DTensor.from_local(inputs[0], mesh, (Replicate(),), run_check=False), *inputs[1:]) if self.local else inputs

        def leave(_module: Any, out: Any, _mesh: DeviceMesh) -> Any:
            return out.to_local() if self.local else out

        return distribute_module(module, mesh, None, enter, leave)


def split_transformers(model: Any, mesh: DeviceMesh) -> None:
    """AReaL's plan: hidden states are DTensors, split by tokens between the halves of a layer."""

    def row() -> RowwiseParallel:
        return RowwiseParallel(output_layouts=Shard(1), use_local_output=False)

    enter: Row = {"input_kwarg_layouts": {"hidden_states": Shard(1)}}
    enter["desired_input_kwarg_layouts"] = {"hidden_states": Replicate()}
    layer: dict[str, ParallelStyle] = {
        "self_attn": PrepareModuleInput(**enter),
        "self_attn.o_proj": row(),
        "mlp.down_proj": row(),
    }
    layer["mlp"] = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    layer |= {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    layer |= {f"self_attn.{name}_norm": Whole(local=True) for name in "qk"}
    layer |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    layer |= {f"{name}_layernorm": SequenceParallel() for name in ("input", "post_attention")}
    table = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False)
    parallelize_module(model.model, mesh, {f"layers.*.{name}": style for name, style in layer.items()})
    parallelize_module(model.model, mesh, {"embed_tokens": table, "norm": SequenceParallel()})
    parallelize_module(model, mesh, {"lm_head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False)})


def split_titan(model: Any, family: str, mesh: DeviceMesh, styles: Any = None) -> None:
    """torchtitan's plan: plain tensors between modules, but DTensors inside of Qwen3's attention."""
    qwen = family == "qwen3"
    output = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    table = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    parallelize_module(model, mesh, {"tok_embeddings": table, "norm": SequenceParallel(), "output": output})
    column, row, enters = styles or (ColwiseParallel, RowwiseParallel, PrepareModuleInput)
    for block in model.layers.values():
        others = len(inspect.signature(block.attention.forward).parameters) - 2
        position = (Replicate() if qwen else None,)
        enter = enters(
            input_layouts=(Shard(1), *position, *(None,) * others),
            desired_input_layouts=(Replicate(), *position, *(None,) * others),
        )
        plan: dict[str, ParallelStyle] = {f"attention.w{name}": column(use_local_output=not qwen) for name in "qkv"}
        plan |= {f"attention.{name}_norm": Whole(local=False) for name in "qk" if qwen}
        plan |= {"feed_forward.w1": column(), "feed_forward.w3": column(), "attention": enter}
        plan |= {name: row(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")}
        plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        plan["feed_forward"] = enters(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        parallelize_module(block, mesh, plan)


def selective_contexts() -> Any:
    """torchtitan's choice: attention, reductions over ranks and every second matrix product are kept."""
    products: dict[bool, int] = defaultdict(int)

    def policy(ctx: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if func is aten.mm.default:
            products[ctx.is_recompute] += 1
        again = func is aten.mm.default and products[ctx.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if func in KEPT and not again else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def transformers_model(config: Row) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16, attn_implementation="executed")
    model.train()
    return model


def chunked_loss(logits: Any, labels: torch.Tensor) -> torch.Tensor:
    pieces = list(zip(list(logits.chunk(8, dim=1)), list(labels.chunk(8, dim=1)), strict=True))
    total: Any = 0.0
    for part, wanted in pieces:
        total += cross_entropy(part, wanted)
    return total / 8


def cross_entropy(logits: Any, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def execute(model: Any, titan: bool, run: Any, lives: LivesOfParts, fake: FakeTensorMode) -> Row:
    source, _family, vocabulary, ranks, _mode, sequences, tokens, head = run
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    tensors = [*model.parameters(), *model.buffers()]
    resident = sum(lives.own(t.to_local() if isinstance(t, DTensor) else t) for t in tensors)
    loss_of = chunked_loss if head == "cross_entropy_chunked" else cross_entropy
    with fake, lives, loss_parallel() if ranks > 1 else nullcontext():
        ids = torch.empty(sequences, tokens, dtype=torch.int64)
        labels = torch.empty_like(ids)
        logits: Any = torch.empty(sequences, tokens, vocabulary) if source == NAMED else None
        if titan:
            wants_masks = "attention_masks" in inspect.signature(type(model).forward).parameters
            logits = model(ids, attention_masks=None) if wants_masks else model(ids)
        else:
            logits = model(input_ids=ids).logits
        loss = loss_of(logits, labels)
        forward = lives.highest
        if source != NAMED:
            del logits
        lives.highest = lives.live
        loss.backward()
    gc.enable()
    return {"forward": resident + forward, "backward": resident + lives.highest}


def execute_run(run: Any, sources: dict[str, Path], mesh: DeviceMesh | None) -> Row:
    source, family, vocabulary, _ranks, mode, _sequences, tokens, _head = run
    config = config_of(family, vocabulary)
    titan = source in COMMITS
    lives, fake = LivesOfParts(), FakeTensorMode(allow_non_fake_inputs=True)
    lives.pause_propagation()
    with fake:
        model = titan_model(sources[source], config, tokens) if titan else transformers_model(config)
        if mesh is not None and titan:
            split_titan(model, family, mesh)
        elif mesh is not None:
            split_transformers(model, mesh)
        if titan and mode != "none":
            contexts = {"context_fn": selective_contexts} if mode == "selective" else {}
            for name, block in list(model.layers.named_children()):
                model.layers.register_module(name, checkpoint_wrapper(block, preserve_rng_state=False, **contexts))
        elif mode == "full":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return execute(model, titan, run, lives, fake)


def config_of(family: str, vocabulary: int) -> Row:
    fixed: Row = {"max_position_embeddings": 131072, "tie_word_embeddings": False}
    return {"model_type": family, **SIZES, "intermediate_size": WIDTHS[family], "vocab_size": vocabulary, **fixed}


def job_of(run: Any) -> Row:
    source, _family, _vocabulary, ranks, mode, sequences, tokens, head = run
    trainer: Row = {
        "engine": "single",
        "layout": f"d1t{ranks}" if ranks > 1 else "d1",
        "kernels": "torchtitan" if source in COMMITS else "hf_flash",
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "bf16"},
        "recompute": mode,
        "optimizer": "sgd",
        "head": head,
        "sequences_per_micro_batch": sequences,
        "sequence_tokens": tokens,
        "kernel_internals": False,
    }
    if source in COMMITS:
        trainer |= {"rms_norm": "by_hand" if source in (NAMED, "2025-02") else "fused", "repeat_kv": source != "0.2.2"}
    if source == NAMED:
        trainer["keep_outputs"] = True
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torchtitan", type=Path)
    parser.add_argument("--only", default="", help="runs of this source")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_parallel.jsonl")
    options = parser.parse_args()
    F.rms_norm, F.scaled_dot_product_attention = rms_norm, flash_sdpa
    F.softmax = half_to_float(F.softmax)
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # reads data: nothing is packed
    transformers.AttentionInterface.register("executed", attend)
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["executed"] = lambda *_, **__: None
    sys.meta_path.insert(0, Finder())  # a norm of 2024 that is not used
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        sources = {name: unpack(options.torchtitan, commit, Path(folder) / name) for name, commit in COMMITS.items()}
        for run in sorted((run for run in RUNS if options.only in run[0]), key=lambda run: run[3]):
            ranks = run[3]
            torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
            peaks = execute_run(run, sources, init_device_mesh("cpu", (ranks,)) if ranks > 1 else None)
            torch.distributed.destroy_process_group()
            config = {"config": f"{run[1]} {run[2]}", "fields": config_of(run[1], run[2])}
            if config not in lines:
                lines.append(config)
            whose = f"torchtitan {COMMITS[run[0]]}" if run[0] in COMMITS else f"transformers {transformers.__version__}"
            row = {"id": "/".join(map(str, run)), "config": config["config"], "job": job_of(run)}
            by = f"torch {torch.__version__.split('+')[0]}, {whose} executed on fake tensors"
            lines.append(row | {"source": by, "peaks": peaks})
            print(row["id"], peaks)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
