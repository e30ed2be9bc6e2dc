"""Makes tests/data/executed_optimizers.jsonl: the second step of optimizers, executed by PyTorch on the meta device.

    python benchmarks/oracle/execute_optimizers.py [--output tests/data/executed_optimizers.jsonl]

torch.optim's own, and transformers' Adafactor as its Trainer calls it. Muon takes the matrices of the layers and AdamW the rest.
Lines are those of execute.py with the phase "optimizer" alone.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from execute import ROOT, SMALL, Row, Storages, as_on_cuda, job_of, make_model
from row_lines import write_rows
from transformers.optimization import Adafactor

CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **SMALL},
    "qwen2-tied": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True, "vocab_size": 20000},
    "llama-square": {"model_type": "llama", **SMALL, "intermediate_size": 512, "vocab_size": 512, "num_key_value_heads": 8},
}
TOKENS = 128


def muon(model: Any) -> list[torch.optim.Optimizer]:
    inner = {id(p) for p in model.model.layers.parameters() if p.ndim == 2}
    matrices = [p for p in model.parameters() if id(p) in inner]
    others = [p for p in model.parameters() if id(p) not in inner]
    return [torch.optim.Muon(matrices, lr=1e-3), torch.optim.AdamW(others, foreach=True)]


def one(make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Any], list[torch.optim.Optimizer]]:
    return lambda model: [make(model.parameters())]


# name of the row: settings of the job, the optimizers
OPTIMIZERS: dict[str, tuple[Row, Callable[[Any], list[torch.optim.Optimizer]]]] = {
    "adamw": ({"optimizer": "adamw"}, one(lambda p: torch.optim.AdamW(p, foreach=True))),
    "amsgrad": ({"optimizer": "adamw", "amsgrad": True}, one(lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True))),
    "amsgrad-loop": (
        {"optimizer": "adam", "amsgrad": True, "optimizer_form": "loop"},
        one(lambda p: torch.optim.Adam(p, foreach=False, amsgrad=True)),
    ),
    "sgd_momentum": ({"optimizer": "sgd_momentum"}, one(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True))),
    "torch_adafactor": ({"optimizer": "torch_adafactor"}, one(torch.optim.Adafactor)),
    "adafactor": (
        {"optimizer": "adafactor"},
        one(lambda p: Adafactor(p, lr=1e-3, scale_parameter=False, relative_step=False)),
    ),
    "muon": ({"optimizer": "muon"}, muon),
}


def execute(config: Row, make: Callable[[Any], list[torch.optim.Optimizer]], wide: bool, keep: bool = False) -> Row:
    """Highest levels of the second step; with `keep` gradients are filled with zeros in front of it, not dropped."""
    model = make_model(config, False, False)
    if wide:
        model = model.float()
    optimizers = make(model)
    gc.collect()
    gc.disable()
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    with storages:
        ids = torch.empty(1, TOKENS, dtype=torch.int64, device="meta")
        labels = torch.empty_like(ids)
        for _ in range(2):
            storages.highest = storages.live
            loss = model(input_ids=ids, labels=labels).loss
            forward, storages.highest = storages.highest, storages.live
            loss.backward()
            del loss
            backward, storages.highest = storages.highest, storages.live
            for optimizer in optimizers:
                optimizer.step()
            highest = storages.highest
            model.zero_grad(set_to_none=not keep)
    gc.enable()
    peaks = {"forward": resident + forward, "backward": resident + backward} if keep else {}
    return peaks | {"optimizer": resident + highest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_optimizers.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    torch.Tensor.item = lambda _self: 1.0  # type: ignore[method-assign]  # norms and step counters of tensors without data
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on the meta device"
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        lines.append({"config": name, "fields": config})
        for optimizer, (settings, make) in OPTIMIZERS.items():
            for wide in (False, True):
                job = job_of(1, TOKENS, False)
                job["trainer"] |= settings
                if wide:
                    job["trainer"]["precision"] = dict.fromkeys(("storage", "compute", "reduce"), "fp32")
                row = {"id": f"{name}/{optimizer}/{'fp32' if wide else 'bf16'}", "config": name, "job": job, "source": by}
                lines.append({**row, "peaks": execute(config, make, wide)})
        for optimizer in ("adamw", "sgd_momentum"):
            settings, make = OPTIMIZERS[optimizer]
            job = job_of(1, TOKENS, False)
            job["trainer"] |= settings | {"keep_gradients": True}
            row = {"id": f"{name}/{optimizer}/bf16/kept", "config": name, "job": job, "source": by}
            lines.append({**row, "peaks": execute(config, make, False, keep=True)})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
