"""Makes tests/data/executed_stateless_adam.jsonl: what a step of slime's Adam without states holds, executed.

    python benchmarks/oracle/execute_stateless_adam.py --slime SLIME [--output tests/data/executed_stateless_adam.jsonl]

SLIME is the work tree of THUDM/slime 624b824a, whose StatelessAdam.step runs as it is on fp32 shards on the CPU. A line: numbers of
each parameter that decays and of each that does not, whether the decay is decoupled, and `peak`: the highest level of a step above
parameters and gradients, in bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import torch
from execute import ROOT, Row, Storages

RUNS: list[Row] = [
    {"decays": [4096], "plain": []},
    {"decays": [64, 4096, 128], "plain": [32]},
    {"decays": [4096, 4096], "plain": []},
    {"decays": [1024, 4096, 2048, 8192, 512], "plain": [64, 64]},
    {"decays": [8192, 512, 8000, 7000], "plain": [64]},
    {"decays": [512, 512], "plain": [2048, 4096]},
    {"decays": [4096, 64], "plain": [4000]},
]


def executed(adam: type, run: Row) -> Row:
    shards = [[torch.zeros(n, requires_grad=True) for n in run[group]] for group in ("decays", "plain")]
    every = [*shards[0], *shards[1]]
    for shard in every:
        shard.grad = torch.ones_like(shard)
    groups = [{"params": g, "weight_decay": decay} for g, decay in zip(shards, (0.1, 0.0), strict=True) if g]
    optimizer = adam(groups, lr=0.1, adam_w_mode=run["decoupled"])
    storages = Storages()
    for shard in every:
        storages.own(shard)
        storages.own(shard.grad)
    before = storages.live
    with storages:
        optimizer.step()
    assert storages.live == before and not optimizer.state
    return {"run": run, "peak": storages.highest - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slime", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_stateless_adam.jsonl")
    given = parser.parse_args()
    spec = importlib.util.spec_from_file_location("code", given.slime / "slime/backends/megatron_utils/stateless_adam.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = [executed(module.StatelessAdam, {**run, "decoupled": decoupled}) for run in RUNS for decoupled in (True, False)]
    given.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
