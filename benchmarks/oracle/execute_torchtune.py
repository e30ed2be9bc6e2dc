"""Makes tests/data/executed_torchtune.jsonl: torchtune's models, executed by PyTorch on fake tensors.

    python benchmarks/oracle/execute_torchtune.py TORCHTUNE [--output tests/data/executed_torchtune.jsonl]

TORCHTUNE is a clone of pytorch/torchtune with its tags: modules and losses are read from it and run as they are, under its recipes'
_loss_step. What only a CUDA build has is replaced: SDPA by its flash operator, dropout by its fused one. A packed batch brings its
positions; flex_attention, which is compiled on a GPU, is replaced by the same flash operator, so what it keeps is not judged here.
Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from execute import ROOT, SMALL, Row, half_to_float
from execute_litgpt import Lives, flash, fused_dropout
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torchtune_code import torchtune_model, unpack

RELEASE = "v0.4.0"
SIZES: Row = {**SMALL, "num_hidden_layers": 5, "vocab_size": 8192, "max_position_embeddings": 4096}
MODELS: dict[str, Row] = {
    "llama, tied": {"model_type": "llama", **SIZES, "tie_word_embeddings": True},
    "llama": {"model_type": "llama", **SIZES, "num_key_value_heads": 8, "tie_word_embeddings": False},
}
RANK = 16
SOME = ["q_proj", "v_proj"]
ALL = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
HEADS = ["torchtune", "torchtune_chunked"]
# targets (none: everything is trained), sequences, tokens of one, recomputation, dropout, packed
SHAPES = [
    ([], 1, 1024, "none", 0.0, False),
    ([], 2, 1024, "none", 0.0, True),
    ([], 2, 1024, "full", 0.0, True),
    (SOME, 1, 1024, "none", 0.05, False),
    (ALL, 2, 1024, "none", 0.0, True),
    (ALL, 2, 2048, "full", 0.05, False),
]


def execute(config: Row, head: str, run: Any, around: Callable[[Any], Any] = contextlib.nullcontext) -> Row:
    """`around` makes of the model what its forward passes run in."""
    targets, sequences, tokens, mode, rate, packed = run
    lives, fake = Lives(), FakeTensorMode(allow_non_fake_inputs=True)
    losses = importlib.import_module("torchtune.modules.loss")
    with fake:
        model = torchtune_model(config, RANK if targets else 0, targets, rate)
        if mode == "full":
            for number, layer in enumerate(list(model.layers)):
                model.layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False)
        loss_fn: Any = torch.nn.CrossEntropyLoss()
        if head == "torchtune_chunked":
            loss_fn = losses.CEWithChunkedOutputLoss()
            model.set_num_output_chunks(loss_fn.num_output_chunks)
    context = around(model)
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    resident = sum(lives.own(tensor) for tensor in [*model.parameters(), *model.buffers()])

    def loss_step(batch: Row) -> torch.Tensor:
        labels = batch.pop("labels")
        with context:
            logits = model(**batch)
        labels = torch.hstack((labels[..., 1:], torch.full((sequences, 1), -100)))
        if not isinstance(logits, list):
            labels = labels.reshape(-1)
            logits = logits.reshape(-1, logits.size(-1))
        loss = loss_fn(logits, labels)
        del logits
        return loss

    with fake, lives:
        batch = {"tokens": torch.empty(sequences, tokens, dtype=torch.int64)}
        batch["labels"] = torch.empty_like(batch["tokens"])
        if packed:
            batch["input_pos"] = torch.empty_like(batch["tokens"])
        loss = loss_step(batch)
        highest = lives.highest
        lives.highest = lives.live
        lives.engine = True
        loss.backward()
        lives.engine = False
    gc.enable()
    return {"forward": resident + highest, "backward": resident + lives.highest}


def job_of(head: str, run: Any) -> Row:
    targets, sequences, tokens, mode, rate, packed = run
    trainer: Row = {
        "engine": "single",
        "kernels": "torchtune_packed" if packed else "torchtune",
        "precision": {"storage": "bf16"},
        "recompute": mode,
        "optimizer": "sgd",
        "head": head,
        "sequences_per_micro_batch": sequences,
        "sequence_tokens": tokens,
        "kernel_internals": False,
    }
    if targets:
        trainer["lora"] = {"rank": RANK, "targets": targets, "dropout": rate, "format": "storage"}
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torchtune", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_torchtune.jsonl")
    options = parser.parse_args()
    F.scaled_dot_product_attention, F.dropout = flash, fused_dropout
    F.softmax = half_to_float(F.softmax)
    lines: list[Row] = [{"config": name, "fields": fields} for name, fields in MODELS.items()]
    by = f"torch {torch.__version__.split('+')[0]}, torchtune {RELEASE} executed on fake tensors"
    with tempfile.TemporaryDirectory() as folder:
        unpack(options.torchtune, RELEASE, Path(folder))
        for name, config in MODELS.items():
            for head in HEADS:
                for run in SHAPES:
                    peaks = execute(config, head, run)
                    what = f"{len(run[0])} targets" if run[0] else "everything"
                    what += ", packed" if run[5] else ""
                    row: Row = {"id": f"{head}/{name}/{what}/{run[1]}x{run[2]}/{run[3]}", "config": name}
                    lines.append(row | {"job": job_of(head, run), "source": by, "peaks": peaks})
                    print(row["id"], peaks)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
