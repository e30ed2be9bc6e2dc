"""Makes tests/data/executed_fused_heads.jsonl: verl's fused output layers (use_fused_kernels) behind a narrow model, executed.

    python benchmarks/oracle/execute_fused_heads.py VERL... [--output tests/data/executed_fused_heads.jsonl]

VERL are checkouts of several releases; a row is written once and has to be the same in all of them. Up to 0.7 FusedLinearForPPO
takes log-probs from log_softmax, in the format of the hidden states; from 0.8 on flash-attention's cross-entropy makes them, in fp32. Rows of
the Triton backend are those from 0.8 on: before, it has the labels twice.
Their own code runs as it is, on the meta device: forward_with_torch_backend and forward_with_triton_backend (verl/models/transformers/dense_common.py) in place of the
model's forward pass, FusedLinearForPPO (verl/utils/experimental/torch_functional.py), and the functions around the Triton kernels
(verl/utils/kernel/linear_cross_entropy.py, kernels.py). No kernel runs; flash-attention's cross-entropy is a stand-in that makes what
that one makes. What a kernel with TMA descriptors asks its allocator for is not there. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
import triton_stub
from execute import ROOT, SMALL, Row, Storages, as_on_cuda, job_of, make_model
from execute_heads import FlashCrossEntropy
from row_lines import write_rows

NARROW: Row = {
    "model_type": "llama",
    **SMALL,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 40000,
    "max_position_embeddings": 16384,
}
# The Triton kernels keep three numbers a token and 1024 words, and in backward go through 9504 words at a time: many, two whole
# splits, one and a bit, less than one.
CONFIGS: dict[str, Row] = {
    "narrow": NARROW,
    "many words": NARROW | {"vocab_size": 1000000},
    "two splits": NARROW | {"vocab_size": 2 * 9504},
    "split and a bit": NARROW | {"vocab_size": 10000},
    "few words": NARROW | {"vocab_size": 5000},
}
# less than a chunk, one, one and a bit, two, three, four (all that is simulated), five and a bit, six
LENGTHS = (300, 512, 700, 1024, 1536, 2048, 2700, 3072)
# backend, config, sequences, tokens of one
RUNS: tuple[tuple[str, str, int, tuple[int, ...]], ...] = (
    ("torch", "narrow", 1, LENGTHS),
    ("torch", "narrow", 2, (350,)),
    ("triton", "many words", 1, (2, 100, 700)),
    ("triton", "narrow", 1, (300, 1000)),
    ("triton", "narrow", 2, (350,)),
    ("triton", "two splits", 1, (300,)),
    ("triton", "split and a bit", 1, (300,)),
    ("triton", "few words", 1, (300,)),
)
# entropy in the loss; adapters, under which the output layer's weight is frozen; forward-only
STEPS = ((False, False, False), (True, False, False), (False, True, False), (True, True, False), (False, False, True))


def cross_entropy_loss(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    losses = FlashCrossEntropy.apply(logits, labels, False)
    return losses, losses.new_empty(0)


def stand_in(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    sys.modules[name] = made
    return made


def stand_ins() -> None:
    """flash-attention, Triton and a CUDA that says that it is there."""
    for name in ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton"):
        stand_in(name)
    stand_in("flash_attn.ops.triton.cross_entropy", cross_entropy_loss=cross_entropy_loss)
    sys.meta_path.insert(0, triton_stub.Finder())
    torch.Tensor.is_cuda = property(lambda _self: True)  # type: ignore[assignment]
    torch.cuda.nvtx.range = lambda *_, **__: contextlib.nullcontext()  # type: ignore[assignment]


class Code:
    """verl's files from a checkout; its packages are folders, so that no __init__ runs."""

    def __init__(self, verl: Path) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
            del sys.modules[name]
        for name in (
            "verl",
            "verl.models",
            "verl.models.transformers",
            "verl.utils",
            "verl.utils.experimental",
            "verl.utils.kernel",
        ):
            stand_in(name).__path__ = [str(verl / Path(*name.split(".")))]
        stand_in(
            "verl.utils.device",
            is_cuda_available=False,
            get_device_capability=lambda *_: (9, 0),
            get_device_name=lambda: "cuda",
            get_torch_device=lambda: torch.cuda,
        )
        heads = importlib.import_module("verl.models.transformers.dense_common")
        fused = importlib.import_module("verl.utils.experimental.torch_functional")
        importlib.import_module("verl.utils.kernel.linear_cross_entropy")
        self.release = (verl / "verl/version/version").read_text(encoding="utf-8").strip().removesuffix(".dev")
        self.forward = {"torch": heads.forward_with_torch_backend, "triton": heads.forward_with_triton_backend}
        flash = hasattr(fused, "_FLASH_ATTN_CROSS_ENTROPY_AVAILABLE")
        self.head = {"torch": "verl_fused" if flash else "verl_fused_log_softmax", "triton": "verl_fused_triton"}
        self.takes_labels = "shift_labels" in heads.forward_with_torch_backend.__code__.co_varnames


def loss_of(code: Code, model: Any, ids: torch.Tensor, entropy: bool) -> torch.Tensor:
    """One step up to the loss (verl/workers/engine/fsdp/transformer_impl.py): `output` stays a name until it returns."""
    labels = torch.roll(ids, shifts=-1, dims=1)
    extra = {"shift_labels": labels} if code.takes_labels else {}  # else they are rolled once more inside
    positions = torch.empty(1, ids.shape[1], dtype=torch.int64, device=ids.device)  # one row for all sequences
    output = model(input_ids=ids, position_ids=positions, temperature=0.7, return_dict=True, **extra)
    log_probs = output.log_probs.squeeze(0)
    return (log_probs + output.entropy.squeeze(0)).mean() if entropy else log_probs.mean()


def execute(code: Code, backend: str, config: Row, sequences: int, tokens: int, step: tuple[bool, bool, bool]) -> Row:
    entropy, adapters, forward_only = step
    family = transformers.LlamaForCausalLM
    own, family.forward = family.forward, code.forward[backend]  # as patch_forward_with_backends does
    model = make_model(config, True, adapters)
    gc.collect()
    gc.disable()
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    gradient = torch.ones((), device="meta")
    storages.own(gradient)  # what is one number is not counted
    with storages:
        ids = torch.empty(sequences, tokens, dtype=torch.int64, device="meta")
        with torch.set_grad_enabled(not forward_only):
            loss = loss_of(code, model, ids, entropy)
        peaks = {"forward": resident + storages.highest}
        if not forward_only:
            storages.highest = storages.live
            loss.backward(gradient)
            peaks["backward"] = resident + storages.highest
    gc.enable()
    family.forward = own
    return peaks


def row_of(code: Code, backend: str, config: str, sequences: int, tokens: int, step: tuple[bool, bool, bool]) -> Row:
    entropy, adapters, forward_only = step
    head = code.head[backend] + ("_entropy" if entropy else "")
    job = job_of(sequences, tokens, True, adapters)
    job["framework"] = "verl"
    job["trainer"]["head"] = head
    job["apart"]["forward_only"] = forward_only
    marks = [head, config.replace(" ", "_"), f"b{sequences}s{tokens}"]
    marks += [word for word, there in (("lora", adapters), ("forward_only", forward_only)) if there]
    peaks = execute(code, backend, CONFIGS[config], sequences, tokens, step)
    return {"id": "/".join(marks), "config": config, "job": job, "peaks": peaks}


def rows_of(checkout: Path) -> tuple[str, list[Row]]:
    code = Code(checkout)
    told = [run for run in RUNS if run[0] == "torch" or code.takes_labels]
    runs = [(*run[:3], tokens, step) for run in told for tokens in run[3] for step in STEPS]
    return code.release, [row_of(code, *run) for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_fused_heads.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    make_model(NARROW, True, True)  # what transformers and peft look for is looked for in front of the stand-ins
    stand_ins()
    rows: dict[str, Row] = {}
    releases: dict[str, list[str]] = {}
    for release, made in map(rows_of, options.verl):
        for row in made:
            if rows.setdefault(row["id"], row) != row:
                sys.exit(f"verl {release}: {row['id']}: {row['peaks']}, not {rows[row['id']]['peaks']}")
            releases.setdefault(row["id"], []).append(release)
    packages = ", ".join(f"{name} {metadata.version(name).split('+')[0]}" for name in ("torch", "transformers", "peft"))
    lines: list[Row] = [{"config": name, "fields": fields} for name, fields in CONFIGS.items()]
    for name, row in rows.items():
        print(name, row["peaks"])
        lines.append(row | {"source": f"{packages}, verl {', '.join(releases[name])} executed on the meta device"})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
