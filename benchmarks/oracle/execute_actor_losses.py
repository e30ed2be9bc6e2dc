"""Makes tests/data/executed_actor_losses.jsonl: the losses of verl's and slime's actors behind Megatron's output layer, executed.

    python benchmarks/oracle/execute_actor_losses.py VERL SLIME MEGATRON [--output tests/data/executed_actor_losses.jsonl]

The three are clones with their history (bare ones will do). Their own functions run as they are: verl's vocab_parallel_entropy and
vocab_parallel_log_probs_from_logits (verl/utils/megatron/tensor_parallel.py) in the order of logits_processor
(verl/workers/actor/megatron_actor.py), slime's calculate_log_probs_and_entropy (slime/utils/ppo_utils.py) behind get_log_probs_and_entropy
(slime/backends/megatron_utils/loss.py), Megatron's vocab_parallel_cross_entropy. Before them stands Megatron's fp32 cast of the last
stage's output (megatron/core/transformer/module.py: float16_to_fp32). Before 0.3.1 slime copied the logits and had Megatron's
fused_vocab_parallel_cross_entropy of the copy: 0.3.0 of all rows at once, 0.2.4 sample by sample, as Relax did until July 2026. Since August (redai-studio/Relax 2854c256, relax/utils/training/ppo_utils.py and
relax/backends/megatron/loss.py: get_responses) Relax calls slime's present function of every sample's rows, which it divides by the
temperature one by one: slime_sliced. Tensors are CPU ones that nothing is computed with; collectives
those of PyTorch's fake process group. verl's use_fused_kernels are its LinearCrossEntropy (verl/utils/kernel, 0.9.0) behind Megatron's
gather_from_sequence_parallel_region, as verl/models/mcore/model_forward_fused.py calls it; Triton's kernels are not started, their
launchers allocate as they are. verl's compiled product with its sum is one kernel and makes the sum alone.

A line: whose loss, its settings; `forward` and `backward`, highest levels above the hidden states in front of the output layer, and
`kept`, what is alive between them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
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
# slime from 0.3.0 on; before it says nothing, which is PyTorch's reentrant checkpoint, and so is Relax's default
NOT_REENTRANT = {"slime", "slime_whole"}
OLDER = {"slime_whole": "v0.3.0", "slime_samples": "v0.2.4"}
FUSED_MEGATRON = "core_v0.16.1"
FUSED = "v0.9.0"  # whose launchers allocate as those of 0.5 do
FUSED_HIDDEN, FUSED_VOCAB = 256, (2048, 9504, 20480, 38016)  # of a rank: one part, whole parts, and a smaller last one


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


class NoKernel:
    """A kernel of Triton that is not started."""

    def __init__(self, _function: Any = None) -> None:
        pass

    def __getitem__(self, _grid: Any) -> Any:
        return lambda *_a, **_k: None


def fused_kernels(verl: Path) -> Any:
    """LinearCrossEntropy; asserts of CUDA tensors are left out, for fake ones are on the CPU."""
    stream = types.SimpleNamespace(record_event=lambda _e: None, wait_event=lambda _e: None)
    device = types.SimpleNamespace(
        Stream=lambda _d: stream,
        Event=lambda: None,
        current_stream=lambda: stream,
        stream=lambda _s: contextlib.nullcontext(),
        get_device_capability=lambda: (9, 0),
        current_device=lambda: 0,
    )
    module(
        "verl.utils.device",
        get_device_capability=lambda: (9, 0),
        get_device_name=lambda: "cpu",
        get_torch_device=lambda: device,
        is_cuda_available=False,
    )
    language = types.SimpleNamespace(constexpr=int)
    decorated = types.SimpleNamespace(
        autotune=lambda **_k: NoKernel,
        jit=NoKernel,
        Config=lambda *_a, **_k: None,
        cdiv=lambda a, b: -(-a // b),
        set_allocator=lambda _f: None,
        language=language,
        __version__="3.4.0",
    )
    module("triton", **vars(decorated))
    module("triton.language", constexpr=int)
    lines = source(verl, FUSED, "verl/utils/kernel/kernels.py").splitlines()
    text = "\n".join(line for line in lines if not (line.strip().startswith("assert") and "is_cuda" in line))
    kernels = module("verl.utils.kernel.kernels", text)
    package = sys.modules["verl.utils.kernel"]
    package.kernels = kernels  # type: ignore[attr-defined]
    own = module("verl.utils.kernel.linear_cross_entropy")
    own.__package__ = "verl.utils.kernel"
    text = source(verl, FUSED, "verl/utils/kernel/linear_cross_entropy.py").replace("torch.cuda.nvtx.range", "_no_range")
    own._no_range = lambda _n: contextlib.nullcontext()
    exec(compile(text, own.__name__, "exec"), own.__dict__)
    return own.linear_cross_entropy


def gather_of(megatron: Path) -> Any:
    """gather_from_sequence_parallel_region."""
    own = module("megatron.core.tensor_parallel.mappings")
    own.__package__ = "megatron.core.tensor_parallel"
    sys.modules["megatron.core.tensor_parallel.utils"].split_tensor_along_last_dim = None  # type: ignore[attr-defined]
    module("megatron.core.utils", get_tensor_model_parallel_group_if_none=lambda *_a, **_k: dist.group.WORLD)
    sys.modules["megatron.core.parallel_state"].__dict__.update(
        get_global_memory_buffer=None, get_expert_model_parallel_group=None, get_tensor_and_expert_parallel_group=None
    )
    text = source(megatron, MEGATRON, "megatron/core/tensor_parallel/mappings.py").replace("torch.cuda.current_device()", "'cpu'")
    exec(compile(text, own.__name__, "exec"), own.__dict__)
    return own.gather_from_sequence_parallel_region


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
        own.VocabUtility = ranges
        own = module("megatron.core.fusions.fused_cross_entropy")
        own.__package__ = "megatron.core.fusions"
        module("megatron.core.jit", jit_fuser=lambda function: function)  # what is compiled writes where it is told, too
        sys.modules["megatron.core.tensor_parallel.cross_entropy"].__dict__.setdefault("VocabUtility", ranges)
        exec(
            compile(source(megatron, FUSED_MEGATRON, "megatron/core/fusions/fused_cross_entropy.py"), own.__name__, "exec"),
            own.__dict__,
        )
        self.older = {
            name: module(f"{name}_ppo_utils", source(slime, tag, "slime/utils/ppo_utils.py")) for name, tag in OLDER.items()
        }
        torch.compile = real
        self.compiled = one_kernel
        self.fused = fused_kernels(verl)
        self.gather = gather_of(megatron)


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


def samples_of(logits: torch.Tensor, row: Row) -> Iterator[torch.Tensor]:
    """get_responses: of every sample the rows of its response, behind a prompt of one token; two parts with context parallelism."""
    each = row["tokens"] // row["samples"]
    for number in range(row["samples"]):
        at = each * number
        if not row["context"]:
            yield logits[at : at + each - 1]
            continue
        half = each // 2
        first, second = logits[at : at + half], logits[at + half : at + 2 * half]
        yield torch.cat([first[0:half], second[0 : half - 1]], dim=0)


def older_slime_loss(code: Code, logits: torch.Tensor, row: Row) -> torch.Tensor:
    """get_log_probs_and_entropy up to 0.3.0: the entropy is a part of the graph, whatever its coefficient."""
    logits = logits.squeeze(0)
    if row["temperature"] != 1.0:
        logits = logits.div(row["temperature"])
    log_probs, entropies = [], []
    real, torch.compile = torch.compile, code.compiled  # type: ignore[assignment]
    for part in samples_of(logits, row) if row["loss"] == "slime_samples" else [logits.contiguous()]:
        log_prob, entropy = code.older[row["loss"]].calculate_log_probs_and_entropy(
            part,
            torch.empty(len(part), dtype=torch.int64),
            dist.group.WORLD,
            with_entropy=row["entropy"],
            chunk_size=row["chunk"],
        )
        log_probs.append(log_prob.squeeze(-1))
        entropies.append(entropy)
    torch.compile = real
    loss = torch.cat(log_probs).mean()
    return loss - 0.0 * torch.cat(entropies).mean() if row["entropy"] else loss


def sliced_loss(code: Code, logits: torch.Tensor, row: Row) -> torch.Tensor:
    """Relax's get_log_probs_and_entropy and get_responses of August 2026 around slime's function."""

    def divided() -> Iterator[torch.Tensor]:
        for rows in samples_of(logits.squeeze(0), row):
            if row["temperature"] != 1.0:
                rows = rows / row["temperature"]  # one name: the undivided ones are let go
            yield rows

    log_probs, entropies = [], []
    for part in divided():
        log_prob, entropy = code.slime.calculate_log_probs_and_entropy(
            part,
            torch.empty(len(part), dtype=torch.int64),
            dist.group.WORLD,
            with_entropy=row["entropy"],
            with_entropy_grad=row["entropy_gradient"],
            chunk_size=row["chunk"],
            log_prob_keep_mask=None,
        )
        log_probs.append(log_prob.squeeze(-1))
        entropies.append(entropy)
    loss = torch.cat(log_probs).mean()
    if not row["entropy"]:
        return loss
    entropy = torch.cat(entropies).mean()
    return loss - entropy if row["entropy_gradient"] else loss


LOSSES = {
    "slime_sliced": sliced_loss,
    "verl": verl_loss,
    "slime": slime_loss,
    "slime_whole": older_slime_loss,
    "slime_samples": older_slime_loss,
}


def levels(step: Callable[[], torch.Tensor], row: Row, storages: Any) -> Row:
    """Highest levels of both passes, and what is alive between them."""
    with torch.set_grad_enabled(not row["forward_only"]):
        loss = step()
    out: Row = {"forward": storages.highest}
    if not row["forward_only"]:
        out["kept"] = storages.live
        storages.highest = storages.live
        loss.backward()
        out["backward"] = storages.highest
    return out


def run_fused(code: Code, row: Row, storages: Any) -> Row:
    """fused_output_processor and the policy's loss; the matrix's gradient goes to Megatron's own and is let go."""
    ranks = dist.get_world_size() if row["sequence_parallel"] else 1
    hidden = torch.empty(row["tokens"] // ranks, 1, row["hidden"], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.empty(row["vocab"], row["hidden"], dtype=torch.bfloat16, requires_grad=not row["frozen"])
    labels = torch.empty(1, row["tokens"], dtype=torch.int64)

    def taken(parameter: torch.Tensor) -> None:
        parameter.grad = None

    if not row["frozen"]:
        weight.register_post_accumulate_grad_hook(taken)

    def step() -> torch.Tensor:
        given = code.gather(hidden) if row["sequence_parallel"] else hidden
        log_probs, entropy = code.fused(given, weight, labels, 1.0, "none", dist.group.WORLD)
        return log_probs.mean() + entropy.mean() if row["entropy"] else log_probs.mean()

    with storages:
        for mine in (hidden, weight, labels):
            storages.own(mine)
        return row | levels(step, row, storages)


def run(code: Code, row: Row, storages: Any) -> Row:
    if row["loss"] == "verl_fused":
        return run_fused(code, row, storages)
    hidden = torch.empty(row["tokens"], 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    loss_of = LOSSES[row["loss"]]
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
                return checkpoint(loss_of, code, output, row, use_reentrant=row["loss"] not in NOT_REENTRANT)
            return loss_of(code, output, row)

        return row | levels(step, row, storages)


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
    return out + older_rows() + sliced_rows() + fused_rows()


OLDER_RUNS = (
    ("slime_whole", 1, False),
    *(("slime_samples", samples, context) for samples in (1, 2, 4) for context in (False, True)),
)


def older_rows() -> list[Row]:
    base: Row = {"vocab": VOCAB, "hidden": HIDDEN, "entropy_gradient": False}
    out: list[Row] = []
    for tokens in TOKENS:
        for loss, samples, context in OLDER_RUNS:
            for temperature in (1.0, 0.8):
                for chunk in (-1, 512):
                    one = base | {"tokens": tokens, "loss": loss, "samples": samples, "context": context}
                    one |= {"temperature": temperature, "chunk": chunk}
                    out.append(one | {"entropy": True, "forward_only": False, "checkpoint": False})
                    out.append(one | {"entropy": True, "forward_only": False, "checkpoint": True})
                    out += [one | {"entropy": entropy, "forward_only": True, "checkpoint": False} for entropy in (False, True)]
    return out


def sliced_rows() -> list[Row]:
    base: Row = {"vocab": VOCAB, "hidden": HIDDEN, "loss": "slime_sliced"}
    out: list[Row] = []
    for tokens in TOKENS:
        for samples in (1, 2, 4):
            for context in (False, True):
                for temperature in (1.0, 0.8):
                    for chunk in (-1, 512):
                        one = base | {"tokens": tokens, "samples": samples, "context": context}
                        one |= {"temperature": temperature, "chunk": chunk}
                        for gradient in (False, True):
                            for again in (False, True):
                                how = {"entropy": True, "entropy_gradient": gradient, "checkpoint": again}
                                out.append(one | how | {"forward_only": False})
                        how = {"entropy": True, "entropy_gradient": False, "checkpoint": False}
                        out.append(one | how | {"forward_only": True})
    return out


def fused_rows() -> list[Row]:
    out: list[Row] = []
    for tokens in TOKENS:
        for vocab in FUSED_VOCAB:
            for spread in (False, True):
                for entropy in (False, True):
                    for frozen, forward_only in ((False, False), (True, False), (False, True)):
                        out.append(
                            {"loss": "verl_fused", "tokens": tokens, "vocab": vocab, "hidden": FUSED_HIDDEN, "entropy": entropy}
                            | {"sequence_parallel": spread, "frozen": frozen, "forward_only": forward_only}
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
            line["source"] = f"{by}, " + {
                "verl": f"verl {VERL.removeprefix('v')}",
                "verl_fused": f"verl {FUSED.removeprefix('v')}",
                **{name: f"slime {tag.removeprefix('v')}" for name, tag in OLDER.items()},
            }.get(row["loss"], f"slime {commit[:8]}")
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
