"""Makes tests/data/executed_mixed.jsonl: LitGPT's LoRA under FullyShardedDataParallel, executed by PyTorch on the meta device.

    python benchmarks/oracle/execute_mixed.py LITGPT [--output tests/data/executed_mixed.jsonl]

A Block is one flat parameter (use_orig_params), which holds what is frozen and what is not. FSDP runs as in execute_fsdp1.py, the
model's code and the loss are those of execute_litgpt.py, checkpoints are Fabric's: inside of FSDP's unit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from execute import ROOT, Row
from execute_fsdp1 import Resized, stand_in
from execute_litgpt import MODELS, PEFT, RANK, RELEASES, chunked_cross_entropy, flash, forward, fused_dropout
from litgpt_code import litgpt_model, unpack
from row_lines import write_rows
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

SOME, HEAD = ["query", "value"], ["query", "value", "mlp", "head"]
# targets, sequences, tokens of one, recomputation, dropout, ranks, micro-batches
PLAIN = (SOME, 1, 512, "none", 0.05, 4, 2)
CHECKPOINTED = (HEAD, 1, 1024, "full", 0.05, 2, 2)
THIRDS = (HEAD, 2, 512, "none", 0.0, 3, 1)
CASES = [
    *[(kernels, "llama, grouped", run) for kernels in RELEASES for run in (PLAIN, CHECKPOINTED, THIRDS)],
    ("litgpt_0_4_5", "llama", PLAIN),
    *[("litgpt_0_4_5", name, THIRDS) for name in ("llama", "gpt_neox", "phi")],
]
# the loss is the highest: autograd takes those of all chunks before any chunk of the output layer, whose gradient is what FSDP waits for
LARGE = [
    *[(kernels, "llama, grouped", run) for kernels in RELEASES for run in (PLAIN, CHECKPOINTED)],
    ("litgpt_0_4_5", "llama", PLAIN),
    ("litgpt", "llama", (SOME, 2, 1024, "full", 0.05, 2, 2)),
]


def sharded(model: Any, case: Any) -> Any:
    block = type(model.transformer.h[0])
    half = torch.bfloat16
    out = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({block}),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half),
        use_orig_params=True,
    )
    if case[3] == "full":
        wrap = functools.partial(checkpoint_wrapper, preserve_rng_state=False)
        apply_activation_checkpointing(out, checkpoint_wrapper_fn=wrap, check_fn=lambda module: isinstance(module, block))
    return out


def micro_batch(model: Any, case: Any, storages: Resized) -> int:
    ids = torch.empty(case[1], case[2], dtype=torch.int64, device="meta")
    labels = torch.empty_like(ids)
    logits = forward(model, ids, True, False)
    logits[-1] = logits[-1][..., :-1, :]
    loss = chunked_cross_entropy(logits, labels[..., 1:])
    highest = storages.highest
    storages.highest = storages.live
    loss.backward()
    return highest


def execute(root: Path, config: Row, case: Any) -> Row:
    """The highest level of forward and backward in the second step, in bytes."""
    targets, _, tokens, _, rate, ranks, micro_batches = case
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with torch.device("meta"):
        plain = litgpt_model(root, config, tokens, RANK, targets, rate, torch.bfloat16)
    model = sharded(plain, case)
    del plain
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], foreach=False)
    unseen = Resized()
    micro_batch(model, case, unseen)  # the first forward pass casts buffers
    optimizer.zero_grad()
    gc.collect()
    gc.disable()
    storages = Resized()
    own = [tensor for tensor in [*model.parameters(), *model.buffers()] if tensor.untyped_storage().nbytes() > 0]
    resident = sum(storages.own(tensor) for tensor in own)
    del own
    Resized.now = storages
    forward_peak = backward_peak = 0
    for _ in range(2):
        with storages:
            forward_peak = backward_peak = 0
            for number in range(micro_batches):
                storages.highest = storages.live
                last = number == micro_batches - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    forward_peak = max(forward_peak, micro_batch(model, case, storages))
                backward_peak = max(backward_peak, storages.highest)
            optimizer.step()
            optimizer.zero_grad()
    Resized.now = None
    gc.enable()
    dist.destroy_process_group()
    return {"forward": resident + forward_peak, "backward": resident + backward_peak}


def job_of(kernels: str, case: Any) -> Row:
    targets, sequences, tokens, mode, rate, ranks, micro_batches = case
    trainer: Row = {
        "engine": "fsdp1",
        "layout": f"d{ranks}",
        "use_orig_params": True,
        "gradient_sync_every_micro_batch": False,
        "kernels": kernels,
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "bf16"},
        "recompute": mode,
        "optimizer": "sgd",
        "head": "litgpt",
        "sequences_per_micro_batch": sequences,
        "sequence_tokens": tokens,
        "micro_batches": micro_batches,
        "kernel_internals": False,
    }
    names = [name for target in targets for name in PEFT[target]]
    trainer["lora"] = {"rank": RANK, "targets": names, "dropout": rate, "format": "storage", "own_units": False}
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("litgpt", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_mixed.jsonl")
    options = parser.parse_args()
    F.scaled_dot_product_attention, F.dropout = flash, fused_dropout
    stand_in()
    lines: list[Row] = []
    fields: Row = {}
    for vocabulary, names in ((256, ("llama, grouped", "llama", "gpt_neox", "phi")), (4096, ("llama, grouped", "llama"))):
        for name in names:
            fields[f"{name}, of {vocabulary} words"] = {**MODELS[name], "vocab_size": vocabulary}
    lines += [{"config": name, "fields": given} for name, given in fields.items()]
    with tempfile.TemporaryDirectory() as folder:
        roots = {kernels: unpack(options.litgpt, release, Path(folder) / release) for kernels, release in RELEASES.items()}
        for kernels, model, case, vocabulary in [*((*one, 256) for one in CASES), *((*one, 4096) for one in LARGE)]:
            config = f"{model}, of {vocabulary} words"
            words = f"{len(case[0])} targets/{case[1]}x{case[2]}/{case[3]}/{case[5]} ranks/{case[6]} micro-batches"
            row: Row = {"id": f"{kernels}/{config}/{words}", "config": config, "job": job_of(kernels, case)}
            row["source"] = f"torch {torch.__version__.split('+')[0]}, litgpt {RELEASES[kernels]} executed on the meta device"
            row["peaks"] = execute(roots[kernels], fields[config], case)
            lines.append(row)
            print(row["id"], row["peaks"], file=sys.stderr)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
