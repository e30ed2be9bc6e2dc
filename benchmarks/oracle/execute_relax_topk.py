"""Makes tests/data/executed_relax_topk.jsonl: Relax's loss over the most likely tokens of teacher or student, executed.

    python benchmarks/oracle/execute_relax_topk.py RELAX VERL SLIME MEGATRON [--output tests/data/executed_relax_topk.jsonl]

RELAX is a folder with relax/utils/opd/opd_utils.py of redai-studio/Relax 92106a46 (what is run is the same in 02bf712a and 05149ae1, but
for the gate); the others are clones with their history. Its compute_opd_topk_log_probs and compute_policy_opd_loss run as they are, in
the order of get_log_probs_and_entropy and policy_loss_function (relax/backends/megatron/loss.py), around what execute_actor_losses.py
runs of every sample's rows: slime's present function (2026.08) or that of 0.2.4 (2026.07). A line is one of execute_actor_losses.py:
`topk` tokens a row, `divergence` and `norm` of --opd-kl-type and --opd-norm-mode, `gate` of --opd-fkl-entropy-gate, `union` where rows
are padded, `advantages` where --opd-kl-coef alone is there: then the loss has nothing of them. `context` is not run: rows are then one
tensor more, as in executed_actor_losses.jsonl.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import ROOT, Row, Storages
from execute_actor_losses import HIDDEN, VOCAB, Code, levels, samples_of
from execute_areal_megatron import OutputLayer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

TOKENS = (2048, 3072)


def relax_of(folder: Path, megatron: Any) -> Any:
    """Relax's functions; `mpu` is Megatron's state as execute_actor_losses.py has it."""
    sys.modules["megatron.core"].mpu = sys.modules["megatron.core.parallel_state"]  # type: ignore[attr-defined]
    mappings = sys.modules["megatron.core.tensor_parallel.mappings"]
    mappings.get_tensor_model_parallel_group_if_none = lambda *_a, **_k: dist.group.WORLD  # type: ignore[attr-defined]
    megatron.mappings = mappings
    spec = importlib.util.spec_from_file_location("opd_utils", folder / "relax/utils/opd/opd_utils.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def arguments_of(row: Row) -> Any:
    return types.SimpleNamespace(
        opd_loss_coef=0.0 if row["advantages"] else 1.0,
        opd_kl_type=row["divergence"],
        opd_jsd_alpha=0.5,
        opd_norm_mode=row["norm"],
        opd_log_prob_min_clamp=-10.0 if row["clamp"] else None,
        opd_token_selection="union" if row["union"] else "student_topk",
        opd_fkl_entropy_gate=row["gate"],
    )


def log_probs_of(code: Code, part: torch.Tensor, row: Row) -> tuple[torch.Tensor, Any]:
    targets = torch.empty(len(part), dtype=torch.int64)
    if row["loss"] == "slime_sliced":
        return code.slime.calculate_log_probs_and_entropy(  # type: ignore[no-any-return]
            part,
            targets,
            dist.group.WORLD,
            with_entropy=True,
            with_entropy_grad=False,
            chunk_size=-1,
            log_prob_keep_mask=None,
        )
    real, torch.compile = torch.compile, code.compiled  # type: ignore[assignment]
    older = code.older["slime_samples"]
    out = older.calculate_log_probs_and_entropy(part, targets, dist.group.WORLD, with_entropy=True, chunk_size=-1)
    torch.compile = real
    return out  # type: ignore[no-any-return]


def loss_of(code: Code, relax: Any, logits: torch.Tensor, row: Row, batch: Row) -> torch.Tensor:
    """policy_loss_function; its own loss is one number a token."""
    args = arguments_of(row)

    def log_probs_and_entropy(given: torch.Tensor) -> Row:
        ids = relax.resolve_opd_gather_topk_token_ids(args, batch)
        out: Row = {"log_probs": [], "entropy": [], "topk_log_probs": []}
        given = given.squeeze(0)
        if row["temperature"] != 1.0 and row["loss"] == "slime_samples":
            given = given.div(row["temperature"])
        for number, part in enumerate(divided(given)):
            log_prob, entropy = log_probs_of(code, part, row)
            out["log_probs"].append(log_prob.squeeze(-1))
            out["entropy"].append(entropy)
            out["topk_log_probs"].append(relax.compute_opd_topk_log_probs(part, ids, number))
        return out

    def divided(given: torch.Tensor) -> Any:
        for rows in samples_of(given, row):
            if row["temperature"] != 1.0 and row["loss"] == "slime_sliced":
                rows = rows / row["temperature"]
            yield rows

    made = log_probs_and_entropy(logits)
    log_probs = torch.cat(made["log_probs"])
    loss = log_probs.mean()
    entropy = torch.cat(made["entropy"]).mean()
    if row["loss"] == "slime_samples":
        loss = loss - 0.0 * entropy
    added, _ = relax.compute_policy_opd_loss(
        args=args, batch=batch, log_probs=log_probs, old_log_probs=log_probs.detach(), log_probs_and_entropy=made
    )
    return loss if added is None else loss + added


def batch_of(row: Row) -> Row:
    """What lies on the GPU before the loss: of every sample a tensor, padded where it is a union."""
    width = row["topk"]
    each = row["tokens"] // row["samples"] - 1
    out: Row = {"response_lengths": [each] * row["samples"], "loss_masks": [], "opd_topk_token_ids": []}
    out |= {"opd_topk_teacher_log_probs": [], "opd_topk_ksz": []}
    for _ in range(row["samples"]):
        out["loss_masks"].append(torch.empty(each, dtype=torch.int32))
        out["opd_topk_token_ids"].append(torch.empty(each, width, dtype=torch.int64))
        out["opd_topk_teacher_log_probs"].append(torch.empty(each, width))
        out["opd_topk_ksz"].append(torch.empty(each, dtype=torch.int64))
    return out


def run(code: Code, relax: Any, row: Row, storages: Any) -> Row:
    hidden = torch.empty(row["tokens"], 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    batch = batch_of(row)
    with storages:
        storages.own(hidden)
        for held in batch.values():
            for mine in held:
                if isinstance(mine, torch.Tensor):
                    storages.own(mine)

        def model() -> torch.Tensor:
            def gpt() -> torch.Tensor:
                return OutputLayer.apply(hidden, VOCAB).transpose(0, 1).contiguous()

            outputs = gpt()
            outputs = outputs.float()
            return outputs

        def step() -> torch.Tensor:
            output = model()
            if row["checkpoint"]:
                return checkpoint(loss_of, code, relax, output, row, batch, use_reentrant=True)
            return loss_of(code, relax, output, row, batch)

        before = storages.live
        out = levels(step, row, storages)
        return row | {name: level - before for name, level in out.items()}


def rows() -> list[Row]:
    base: Row = {
        "vocab": VOCAB,
        "hidden": HIDDEN,
        "context": False,
        "chunk": -1,
        "entropy": True,
        "entropy_gradient": False,
        "forward_only": False,
        "temperature": 1.0,
        "checkpoint": False,
        "clamp": False,
        "gate": False,
        "union": False,
        "advantages": False,
        "divergence": "reverse_kl",
        "norm": "tail",
    }
    kinds: list[Row] = [
        *(
            {"divergence": kind, "norm": norm}
            for kind in ("reverse_kl", "forward_kl", "jsd")
            for norm in ("tail", "norm", "trunc")
        ),
        {"divergence": "jsd", "clamp": True},
        {"norm": "norm", "gate": True},
        {"norm": "norm", "gate": True, "union": True},
        {"divergence": "jsd", "union": True},
        {"advantages": True},
        {"divergence": "jsd", "temperature": 0.8},
        {"divergence": "jsd", "checkpoint": True},
        {"divergence": "jsd", "checkpoint": True, "temperature": 0.8},
    ]
    return [
        base | {"loss": loss, "tokens": tokens, "samples": samples, "topk": topk} | kind
        for loss in ("slime_sliced", "slime_samples")
        for tokens in TOKENS
        for samples in (1, 2, 4)
        for topk in (16, 64)
        for kind in kinds
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("relax", "verl", "slime", "megatron"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_relax_topk.jsonl")
    options = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    code = Code(options.verl, options.slime, options.megatron)
    relax = relax_of(options.relax, code)
    with options.output.open("w", encoding="utf-8") as file:
        for row in rows():
            gc.collect()
            gc.disable()
            with FakeTensorMode(allow_non_fake_inputs=True):
                line = run(code, relax, row, Storages())
            gc.enable()
            line["source"] = f"torch {torch.__version__.split('+')[0]}, redai-studio/Relax 92106a46"
            unit = 4 * line["tokens"] * VOCAB
            print(
                *(f"{k} {line[k] / unit:.4f}" for k in ("forward", "kept", "backward") if k in line),
                {k: v for k, v in row.items() if k not in ("vocab", "hidden")},
            )
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
