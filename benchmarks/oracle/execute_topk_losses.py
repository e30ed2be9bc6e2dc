"""Makes tests/data/executed_topk_losses.jsonl: verl's loss over its teachers' most likely tokens behind Megatron's output layer.

    python benchmarks/oracle/execute_topk_losses.py VERL MEGATRON [--output tests/data/executed_topk_losses.jsonl]

Both are clones with their history (bare ones will do). verl's own functions run as they are: compute_forward_kl_topk with
_VocabParallelKLDivergence (verl/trainer/distillation/megatron/losses.py), in the order of _lm_head_logits_processor
(verl/workers/engine/megatron/transformer_impl.py), and what execute_actor_losses.py runs for the entropy and the log-probs. The
teachers' rows arrive packed, as preprocess_thd_engine makes them. A line is one of execute_actor_losses.py: `topk` tokens a row, `only`
where verl asks for no log-probs (distillation_only).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import ROOT, Row, Storages
from execute_actor_losses import HIDDEN, MEGATRON, VERL, levels, module, source
from execute_areal_megatron import OutputLayer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

RELEASE, RELEASE_NAME = "1dda039b9", "0.10.0"
TOKENS, VOCAB = (2048, 3072), 4096


class Code:
    def __init__(self, verl: Path, megatron: Path) -> None:
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
        module("megatron.core.jit", jit_fuser=lambda f: f)
        fused = module("megatron.core.fusions.fused_cross_entropy")
        fused.__package__ = "megatron.core.fusions"
        fused.VocabParallelCrossEntropy = own.VocabParallelCrossEntropy
        text = source(megatron, MEGATRON, "megatron/core/fusions/fused_cross_entropy.py")
        exec(compile(text, fused.__name__, "exec"), fused.__dict__)
        real = torch.compile

        def one_kernel(*_a: Any, **_k: Any) -> Any:
            return lambda _fn: lambda a, _b: a.new_empty(*a.shape[:-1], 1)

        torch.compile = one_kernel  # type: ignore[assignment]
        self.verl = module("verl_tensor_parallel", source(verl, VERL, "verl/utils/megatron/tensor_parallel.py"))
        torch.compile = real
        self.compiled = one_kernel

        def packed(rows: Any, pre_process: bool) -> tuple[torch.Tensor]:
            return (torch.zeros(1, *rows.shape, dtype=rows.dtype),)

        module("verl.models.mcore.util", preprocess_thd_engine=packed, preprocess_bshd_engine=packed)
        module("verl.workers.config", DistillationConfig=object, DistillationLossConfig=object)
        self.topk = module("topk_losses", source(verl, RELEASE, "verl/trainer/distillation/megatron/losses.py"))


def loss_of(code: Code, logits: torch.Tensor, row: Row, teacher: tuple[Any, Any]) -> torch.Tensor:
    """_lm_head_logits_processor, and losses of one number a token."""

    def processed() -> dict[str, torch.Tensor]:
        logits.div_(1.0)
        out = {}
        if row["entropy"]:
            copied = logits.clone()
            real, torch.compile = torch.compile, code.compiled  # type: ignore[assignment]
            out["entropy"] = code.verl.vocab_parallel_entropy(logits)
            torch.compile = real
        else:
            copied = logits
        clamp = types.SimpleNamespace(log_prob_min_clamp=-10.0 if row["clamp"] else None)
        config = types.SimpleNamespace(distillation_loss=clamp)
        given = [types.SimpleNamespace(is_nested=True, shape=one.shape, dtype=one.dtype) for one in teacher]
        out |= code.topk.compute_forward_kl_topk(copied, given[0], given[1], config, "thd")
        if not row["only"]:
            out["log_probs"] = code.verl.vocab_parallel_log_probs_from_logits(
                copied, torch.empty(1, logits.shape[1], dtype=torch.int64)
            )
        return out

    out = processed()
    kept = [name for name in ("log_probs", "entropy", "distillation_losses") if name in out]
    return sum(out[name].mean() for name in kept)  # type: ignore[return-value]


def run(code: Code, row: Row, storages: Any) -> Row:
    hidden = torch.empty(row["tokens"], 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    teacher = (
        torch.empty(row["tokens"], row["topk"]),
        torch.empty(row["tokens"], row["topk"], dtype=torch.int32),
    )
    with storages:
        for mine in (hidden, *teacher):
            storages.own(mine)

        def model() -> torch.Tensor:
            def gpt() -> torch.Tensor:
                return OutputLayer.apply(hidden, VOCAB).transpose(0, 1).contiguous()

            outputs = gpt()
            outputs = outputs.float()
            return outputs

        return row | levels(lambda: loss_of(code, model(), row, teacher), row, storages)


def rows() -> list[Row]:
    out: list[Row] = []
    for tokens in TOKENS:
        for topk in (16, 64):
            for clamp in (True, False):
                for entropy, only in ((False, True), (False, False), (True, False), (True, True)):
                    out.append(
                        {"loss": "verl_topk", "tokens": tokens, "vocab": VOCAB, "hidden": HIDDEN, "topk": topk, "clamp": clamp}
                        | {"entropy": entropy, "only": only, "forward_only": False}
                    )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("verl", "megatron"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_topk_losses.jsonl")
    options = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    code = Code(options.verl, options.megatron)
    with options.output.open("w", encoding="utf-8") as file:
        for row in rows():
            gc.collect()
            gc.disable()
            with FakeTensorMode(allow_non_fake_inputs=True):
                line = run(code, row, Storages())
            gc.enable()
            line["source"] = f"torch {torch.__version__.split('+')[0]}, verl {RELEASE_NAME}"
            unit = 4 * line["tokens"] * VOCAB
            print(
                {k: v for k, v in row.items() if k not in ("vocab", "hidden", "loss", "forward_only")},
                *(f"{k} {line[k] / unit:.4f}" for k in ("forward", "kept", "backward") if k in line),
            )
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
