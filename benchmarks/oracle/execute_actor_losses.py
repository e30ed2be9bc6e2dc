"""Makes tests/data/executed_actor_losses.jsonl: the losses of verl's and slime's actors behind Megatron's output layer, executed.

    python benchmarks/oracle/execute_actor_losses.py VERL SLIME MEGATRON [--output tests/data/executed_actor_losses.jsonl]

The three are clones with their history (bare ones will do). Their own functions run as they are: verl's vocab_parallel_entropy and
vocab_parallel_log_probs_from_logits (verl/utils/megatron/tensor_parallel.py) in the order of logits_processor
(verl/workers/actor/megatron_actor.py), slime's calculate_log_probs_and_entropy (slime/utils/ppo_utils.py) behind get_log_probs_and_entropy
(slime/backends/megatron_utils/loss.py), Megatron's vocab_parallel_cross_entropy. Before them stands Megatron's fp32 cast of the last
stage's output (megatron/core/transformer/module.py: float16_to_fp32). Tensors are CPU ones that nothing is computed with; collectives
those of PyTorch's fake process group. verl's compiled product with its sum is one kernel and makes the sum alone.

A line: whose loss, its settings; `forward` and `backward`, highest levels above the hidden states in front of the output layer, and
`kept`, what is alive between them.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import ROOT, Row, Storages
from execute_areal_megatron import OutputLayer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

HIDDEN, VOCAB = 8, 4096  # of a rank
TOKENS = (4096, 6144)
VERL, SLIME, MEGATRON = "v0.7.0", "HEAD", "core_v0.9.0"


def source(clone: Path, tag: str, path: str) -> str:
    return subprocess.run(["git", "-C", str(clone), "show", f"{tag}:{path}"], check=True, capture_output=True, text=True).stdout


def module(name: str, text: str = "", **names: Any) -> Any:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules.get(parent) or module(parent), last, made)
    if text:
        exec(compile(text, name, "exec"), made.__dict__)
    return made


class Code:
    def __init__(self, verl: Path, slime: Path, megatron: Path) -> None:
        ranges = types.SimpleNamespace(
            vocab_range_from_per_partition_vocab_size=lambda size, rank, _n: (rank * size, (rank + 1) * size)
        )
        state = {
            "get_tensor_model_parallel_group": lambda: dist.group.WORLD,
            "get_tensor_model_parallel_rank": lambda: 0,
            "get_tensor_model_parallel_world_size": dist.get_world_size,
        }
        module("megatron.core.parallel_state", **state)
        module("megatron.core.tensor_parallel.utils", VocabUtility=ranges)
        own = module("megatron.core.tensor_parallel.cross_entropy")
        own.__package__ = "megatron.core.tensor_parallel"
        text = source(megatron, MEGATRON, "megatron/core/tensor_parallel/cross_entropy.py")
        exec(compile(text, own.__name__, "exec"), own.__dict__)
        sys.modules["megatron.core.tensor_parallel"].vocab_parallel_cross_entropy = own.vocab_parallel_cross_entropy  # type: ignore[attr-defined]
        real = torch.compile

        def one_kernel(*_a: Any, **_k: Any) -> Any:
            return lambda _fn: lambda a, _b: a.new_empty(*a.shape[:-1], 1)

        torch.compile = one_kernel  # type: ignore[assignment]
        self.verl = module("verl_tensor_parallel", source(verl, VERL, "verl/utils/megatron/tensor_parallel.py"))
        text = source(slime, SLIME, "slime/utils/ppo_utils.py").replace("softmax.is_cuda", "True")  # as on a GPU
        torch.compile = lambda *a, **_k: a[0] if a else (lambda fn: fn)  # type: ignore[assignment]
        self.slime = module("slime_ppo_utils", text)
        torch.compile = real
        self.compiled = one_kernel


def verl_loss(code: Code, logits: torch.Tensor, row: Row) -> torch.Tensor:
    """logits_processor, what is packed back, and the policy's loss of one number a token."""

    def processed() -> dict[str, torch.Tensor]:
        logits.div_(row["temperature"])
        out = {}
        if row["entropy"]:
            copied = logits.clone()
            real, torch.compile = torch.compile, code.compiled  # type: ignore[assignment]
            out["entropy"] = code.verl.vocab_parallel_entropy(logits)
            torch.compile = real
        else:
            copied = logits
        out["log_probs"] = code.verl.vocab_parallel_log_probs_from_logits(
            copied, torch.empty(1, logits.shape[1], dtype=torch.int64)
        )
        return out

    out = processed()
    return sum(each.mean() for each in out.values())  # type: ignore[return-value]


def slime_loss(code: Code, logits: torch.Tensor, row: Row) -> torch.Tensor:
    logits = logits.squeeze(0)
    if row["temperature"] != 1.0:
        logits = logits / row["temperature"]
    logits = logits.contiguous()
    labels = torch.empty(len(logits), dtype=torch.int64)
    log_probs, entropy = code.slime.calculate_log_probs_and_entropy(
        logits,
        labels,
        dist.group.WORLD,
        with_entropy=row["entropy"],
        with_entropy_grad=row["entropy_gradient"],
        chunk_size=row["chunk"],
        log_prob_keep_mask=None,
    )
    loss = log_probs.squeeze(-1).mean()
    return loss - entropy.mean() if row["entropy_gradient"] else loss


def run(code: Code, row: Row, storages: Any) -> Row:
    hidden = torch.empty(row["tokens"], 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    out: Row = {}
    loss_of = verl_loss if row["loss"] == "verl" else slime_loss
    with storages:
        storages.own(hidden)

        def model() -> torch.Tensor:
            def gpt() -> torch.Tensor:
                return OutputLayer.apply(hidden, VOCAB).transpose(0, 1).contiguous()

            outputs = gpt()
            outputs = outputs.float()
            return outputs

        def step() -> torch.Tensor:
            output = model()
            if row["checkpoint"]:
                return checkpoint(loss_of, code, output, row, use_reentrant=True)
            return loss_of(code, output, row)

        with torch.set_grad_enabled(not row["forward_only"]):
            loss = step()
        out["forward"] = storages.highest
        if not row["forward_only"]:
            out["kept"] = storages.live
            storages.highest = storages.live
            loss.backward()
            out["backward"] = storages.highest
    return row | out


def rows() -> list[Row]:
    out: list[Row] = []
    for tokens in TOKENS:
        base: Row = {
            "tokens": tokens,
            "vocab": VOCAB,
            "hidden": HIDDEN,
            "checkpoint": False,
            "chunk": -1,
            "entropy_gradient": False,
        }
        for entropy in (False, True):
            for forward_only in (False, True):
                out.append(
                    base
                    | {
                        "loss": "verl",
                        "entropy": entropy,
                        "entropy_gradient": entropy,
                        "temperature": 1.0,
                        "forward_only": forward_only,
                    }
                )
        for forward_only in (False, True):
            for temperature in (1.0, 0.8):
                for chunk in (-1, 1024, 2048):
                    for entropy, gradient in ((False, False), (True, False), (True, True)):
                        for again in (False, True):
                            if forward_only and (again or gradient):
                                continue
                            out.append(
                                base
                                | {"loss": "slime", "entropy": entropy, "entropy_gradient": gradient, "temperature": temperature}
                                | {"chunk": chunk, "forward_only": forward_only, "checkpoint": again}
                            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("verl", "slime", "megatron"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_actor_losses.jsonl")
    options = parser.parse_args()
    by = f"torch {torch.__version__.split('+')[0]}"
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    code = Code(options.verl, options.slime, options.megatron)
    commit = source_commit(options.slime)
    with options.output.open("w", encoding="utf-8") as file:
        for row in rows():
            gc.collect()
            gc.disable()
            with FakeTensorMode(allow_non_fake_inputs=True):
                line = run(code, row, Storages())
            gc.enable()
            line["source"] = f"{by}, verl {VERL.removeprefix('v')}" if row["loss"] == "verl" else f"{by}, slime {commit[:8]}"
            unit = 4 * line["tokens"] * VOCAB
            print(
                {k: v for k, v in row.items() if k not in ("vocab", "hidden")},
                *(f"{k} {line[k] / unit:.4f}" for k in ("forward", "kept", "backward") if k in line),
            )
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def source_commit(clone: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(clone), "rev-parse", SLIME], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
