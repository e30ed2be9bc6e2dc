"""Makes tests/data/executed_apollo.jsonl: a step of APOLLO in which the projections are renewed, executed on the meta device.

    python benchmarks/oracle/execute_apollo.py CHECKOUT [--output tests/data/executed_apollo.jsonl]

CHECKOUT is one of zhuhanqing/APOLLO (76b3472), whose apollo_torch transformers' Trainer takes for `apollo_adamw`: matrices of the
layers are projected, in a group behind all other parameters, with the arguments that the Trainer passes (trainer_optimizer.py, 5.23).
Projections are renewed every 200 steps; here in every one, so that the second step is such a step.
"""

from __future__ import annotations

import argparse
import sys
import types
from pathlib import Path
from typing import Any

import torch
import transformers
from execute import ROOT, Row, as_on_cuda, job_of
from execute_optimizers import CONFIGS, TOKENS, execute
from row_lines import write_rows


def apollo(checkout: Path) -> Any:
    """apollo_torch.apollo.AdamW, without the package's __init__, which imports what takes a GPU."""
    package = types.ModuleType("apollo_torch")
    package.__path__ = [str(checkout / "apollo_torch")]
    sys.modules["apollo_torch"] = package
    import apollo_torch.apollo as module
    import apollo_torch.random_projector as projector

    def stable_randn(shape: Any, seed: int, device: Any = None, dtype: Any = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)  # the meta device has no generator

    projector.stable_randn = stable_randn
    return module.AdamW


def groups(model: Any, rank: int) -> list[dict[str, Any]]:
    inner = {id(p) for p in model.model.layers.parameters() if p.ndim == 2}
    kwargs = {"rank": rank, "proj": "random", "scale_type": "channel", "update_proj_gap": 1, "scale": 1.0, "proj_type": "std"}
    return [
        {"params": [p for p in model.parameters() if id(p) not in inner]},
        {"params": [p for p in model.parameters() if id(p) in inner], **kwargs},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_apollo.jsonl")
    options = parser.parse_args()
    optimizer = apollo(options.checkout)
    as_on_cuda()
    torch.Tensor.item = lambda _self: 1.0  # type: ignore[method-assign]
    torch.Tensor.__bool__ = lambda _self: False  # type: ignore[method-assign]  # the limiter's max() of tensors without data
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, APOLLO executed on the meta device"
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        lines.append({"config": name, "fields": config})
        for rank in (1, 64, 128):
            for wide in (False, True):
                job = job_of(1, TOKENS, False)
                job["trainer"] |= {"optimizer": "apollo_adamw", "optimizer_rank": rank}
                if wide:
                    job["trainer"]["precision"] = dict.fromkeys(("storage", "compute", "reduce"), "fp32")
                row = {"id": f"{name}/apollo, rank {rank}/{'fp32' if wide else 'bf16'}", "config": name, "job": job, "source": by}
                peaks = execute(config, lambda model, rank=rank: [optimizer(groups(model, rank), lr=1e-3)], wide)
                lines.append({**row, "peaks": peaks})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
