"""Makes tests/data/executed_litgpt.jsonl: LitGPT's models, executed by PyTorch on fake tensors.

    python benchmarks/oracle/execute_litgpt.py LITGPT BITSANDBYTES [--output tests/data/executed_litgpt.jsonl]

LITGPT is a clone of Lightning-AI/litgpt with its tags: model code is read from it at two releases and run as it is. BITSANDBYTES is
one of bitsandbytes-foundation/bitsandbytes: a packed model multiplies by the MatMul4Bit of the release that LitGPT asks for. What only a
CUDA build has is replaced: SDPA by its flash operator, dropout by its fused one. Around the model stands what the fine-tuning loops
do: Fabric makes every output fp32, the loop's name holds the logits through the backward pass, and the loss is
chunked_cross_entropy (litgpt/utils.py), whose greatest of one and a count is left out, as a fake count has no value. Lines are
those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from execute import ROOT, SMALL, Row, Storages, half_to_float
from litgpt_code import litgpt_model, pack, product_of_packed, unpack
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# As UNSHARED of execute.py, seen through fake tensors: a tensor, and a view of one that is gone.
UNSHARED = {(4, 2, 3), (4, 3, 3)}
RELEASES = {"litgpt_0_4_5": "v0.3.1", "litgpt": "v0.4.13"}
SIZES: Row = {**SMALL, "num_hidden_layers": 5, "vocab_size": 8192}
MODELS: dict[str, Row] = {
    "llama, grouped": {"model_type": "llama", **SIZES, "tie_word_embeddings": True},
    "llama": {"model_type": "llama", **SIZES, "num_key_value_heads": 8, "tie_word_embeddings": False},
    "gpt_neox": {"model_type": "gpt_neox", **SIZES, "num_key_value_heads": 8, "rotary_pct": 0.25, "use_parallel_residual": True},
    "phi": {"model_type": "phi", **SIZES, "num_key_value_heads": 8, "partial_rotary_factor": 0.5},
    "gemma": {"model_type": "gemma", **SIZES, "num_key_value_heads": 1, "head_dim": 128},
}
MODELS["gemma2"] = {
    "model_type": "gemma2",
    **SIZES,
    "head_dim": 64,
    "num_hidden_layers": 4,
    "sliding_window": 128,
    "query_pre_attn_scalar": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "tie_word_embeddings": True,
}
RANK = 16
SOME, ALL = ["query", "value"], ["query", "key", "value", "projection", "mlp", "head"]
PEFT: dict[str, list[str]] = {
    "query": ["q_proj"],
    "key": ["k_proj"],
    "value": ["v_proj"],
    "projection": ["o_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
    "head": ["lm_head"],
}
BITSANDBYTES = "0.42.0"
# targets (none: everything is trained), sequences, tokens of one, recomputation, dropout, how the model is packed; "mixed" is
# precision bf16-mixed
SHAPES = [
    (SOME, 1, 512, "none", 0.05, ""),
    (ALL, 2, 1024, "none", 0.05, ""),
    (ALL, 1, 1024, "none", 0.0, ""),
    ([], 1, 512, "none", 0.0, ""),
    ([], 2, 1024, "full", 0.0, ""),
    (SOME, 1, 512, "none", 0.05, "nf4"),
    (ALL, 2, 1024, "none", 0.05, "nf4-dq"),
    (ALL, 1, 1024, "none", 0.0, "nf4"),
    (SOME, 2, 1024, "none", 0.05, "nf4-dq"),
    (SOME, 1, 1024, "none", 0.05, "mixed"),
    ([], 2, 1024, "none", 0.0, "mixed"),
]


class Lives(Storages):
    """Storages, with the engine's sums in place where nobody else holds the first gradient."""

    engine = False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.engine and not torch.is_grad_enabled():
            both = func is aten.add.Tensor and all(isinstance(x, torch.Tensor) for x in args[:2])
            if both and args[0].shape == args[1].shape and args[0].dtype == args[1].dtype:
                storage = torch._C._storage_Use_Count(args[0].untyped_storage()._cdata)
                if (args[0]._use_count(), storage, sys.getrefcount(args[0])) in UNSHARED:
                    func = aten.add_.Tensor
        out = func(*args, **kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.born(leaf)
        return out


def flash(q: Any, k: Any, v: Any, **_options: Any) -> Any:
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[0]


def fused_dropout(x: Any, p: float = 0.5, training: bool = True, _inplace: bool = False) -> Any:
    return aten.native_dropout(x, p, True)[0] if training and p > 0 else x


def chunked_cross_entropy(logits: Any, targets: torch.Tensor) -> torch.Tensor:
    if isinstance(logits, list):
        rows = [part.reshape(-1, part.size(-1)) for part in logits]
        wanted = [part.reshape(-1) for part in targets.split(logits[0].size(1), dim=1)]
    else:
        logits = logits.reshape(-1, logits.size(-1))
        rows, wanted = logits.split(128), targets.reshape(-1).split(128)
    losses = [F.cross_entropy(a, b, reduction="none") for a, b in zip(rows, wanted, strict=True)]
    return torch.cat(losses).sum() / (targets != -100).sum()


def forward(model: Any, ids: torch.Tensor, adapters: bool, mixed: bool) -> Any:
    """Fabric's: the default format is the model's inside, or autocast is on, and what comes out is made fp32."""
    torch.set_default_dtype(torch.float32 if mixed else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        output = model(ids, lm_head_chunk_size=128) if adapters else model(ids)
    torch.set_default_dtype(torch.float32)
    output = [part.float() for part in output] if adapters else output.float()
    return output


def execute(root: Path, config: Row, run: Any, product: Any) -> Row:
    targets, sequences, tokens, mode, rate, base = run
    mixed = base == "mixed"
    lives, fake = Lives(), FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = litgpt_model(
            root, config, tokens, RANK if targets else 0, targets, rate, torch.float32 if mixed else torch.bfloat16
        )
        if base and not mixed:
            pack(model, base.endswith("-dq"), product)
        if mode == "full":
            for number, block in enumerate(list(model.transformer.h)):
                model.transformer.h[number] = checkpoint_wrapper(block, preserve_rng_state=False)
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    resident = sum(lives.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    with fake, lives:
        ids = torch.empty(sequences, tokens, dtype=torch.int64)
        labels = torch.empty_like(ids)
        logits = forward(model, ids, bool(targets), mixed)
        if targets:
            logits[-1] = logits[-1][..., :-1, :]
            loss = chunked_cross_entropy(logits, labels[..., 1:])
        else:
            loss = chunked_cross_entropy(logits[..., :-1, :], labels[..., 1:])
        highest = lives.highest
        lives.highest = lives.live
        lives.engine = True
        loss.backward()
        lives.engine = False
    gc.enable()
    return {"forward": resident + highest, "backward": resident + lives.highest}


def job_of(kernels: str, run: Any) -> Row:
    targets, sequences, tokens, mode, rate, base = run
    trainer: Row = {
        "engine": "single",
        "kernels": kernels,
        "precision": {"storage": "bf16"},
        "recompute": mode,
        "optimizer": "sgd",
        "head": "litgpt",
        "sequences_per_micro_batch": sequences,
        "sequence_tokens": tokens,
        "kernel_internals": False,
    }
    if targets:
        names = [name for target in targets for name in PEFT[target]]
        trainer["lora"] = {"rank": RANK, "targets": names, "dropout": rate, "format": "storage"}
    if base == "mixed":
        trainer |= {"precision": {"storage": "fp32", "compute": "fp32"}, "autocast": True}
    elif base:
        packed = {"base": "nf4", "base_double_quant": base.endswith("-dq"), "base_compute": "bf16"}
        trainer["lora"] |= packed | {"bitsandbytes": BITSANDBYTES}
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("litgpt", type=Path)
    parser.add_argument("bitsandbytes", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_litgpt.jsonl")
    options = parser.parse_args()
    F.scaled_dot_product_attention, F.dropout = flash, fused_dropout
    F.softmax = half_to_float(F.softmax)
    product = product_of_packed(options.bitsandbytes, BITSANDBYTES)
    lines: list[Row] = [{"config": name, "fields": fields} for name, fields in MODELS.items()]
    with tempfile.TemporaryDirectory() as folder:
        for kernels, release in RELEASES.items():
            root = unpack(options.litgpt, release, Path(folder) / release)
            for name, config in MODELS.items():
                if name == "gemma2" and kernels != "litgpt":
                    continue  # came with 0.4.6
                for run in SHAPES:
                    peaks = execute(root, config, run, product)
                    what = f"{len(run[0])} targets" if run[0] else "everything"
                    what += f", {run[5]}" if run[5] else ""
                    row: Row = {"id": f"{kernels}/{name}/{what}/{run[1]}x{run[2]}/{run[3]}", "config": name}
                    row |= {"job": job_of(kernels, run)}
                    by = f"torch {torch.__version__.split('+')[0]}, litgpt {release} executed on fake tensors"
                    by += f", bitsandbytes {BITSANDBYTES}" if run[5].startswith("nf4") else ""
                    lines.append(row | {"source": by, "peaks": peaks})
                    print(row["id"], peaks)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
