"""How much the caching allocator adds to what lives: needed behind the replay over needed by levels, of every class of GPUs.

    PYTHONPATH=build/python python benchmarks/accuracy/allocator_adds.py [--jobs 420] [--seed 3]

Jobs are drawn from those of benchmarks/speed/heaviest.py: every built-in model in its templates, sequences of 32k tokens at most. `oomplan check`
leaves a replay out where less than half of a GPU lives, and a search of a class with less than two thirds of what the fullest needs: the
largest factor here says how safe that is.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

import oomplan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))
from heaviest import JOBS

LONGEST = 32768


def needed(answer: oomplan.Estimate) -> dict[str, int]:
    rows = answer.to_dict()["gpus"]
    return {row["ranks"]: max(phase["capacity_needed_bytes"] for phase in row["phases"]) for row in rows if row["phases"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/oomplan")
    parser.add_argument("--jobs", type=int, default=420)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    known = json.loads(subprocess.run([args.program, "models", "--json"], check=True, capture_output=True, text=True).stdout)[
        "models"
    ]
    jobs = [(model, name) for model in known for name in JOBS]
    random.Random(args.seed).shuffle(jobs)
    factors = []
    for model, name in jobs[: args.jobs]:
        text = JOBS[name].format(model=model["id"], longest=min(model.get("positions") or LONGEST, LONGEST))
        try:
            job = oomplan.read(text)
            levels, replayed = needed(oomplan.estimate(job, quick=True)), needed(oomplan.estimate(job))
        except oomplan.InputError:
            continue
        factors += [(replayed[ranks] / levels[ranks], model["id"], name, ranks) for ranks in replayed if levels.get(ranks)]
    factors.sort(reverse=True)
    print(f"{len(factors)} classes of GPUs; the largest factors:")
    for factor, model, name, ranks in factors[:10]:
        print(f"{factor:.3f}  {model}: {name}, {ranks}")


if __name__ == "__main__":
    main()
