"""Does verl accept scripts that `oomplan search --framework verl --launch` writes?

    python benchmarks/oracle/verl_accepts.py CHECKOUT --release 0.9.0 [--program build/oomplan]

For several models on 1 to 32 GPUs, and for every algorithm with and without adapters, the two best rows are written to scripts. Hydra
must compose each command with the checkout's files, and oomplan's estimate of the script must have the verdict and the probability of the row.
Needs hydra-core. Prints what differs; ends with 1 where something does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from areal_accepts import MODELS
from verl_scripts import ROOT, jobs_of, refusal_of_hydra

GPUS = (1, 2, 8, 16, 32)
WAYS = [
    *(["--algorithm", algorithm, *more] for algorithm in ("grpo", "ppo", "dapo", "sft") for more in ([], ["--lora", "32"])),
    ["--reference"],
    ["--response-tokens", "2k", "--batch", "64"],
]


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def judge(program: str, tree: Path, release: str, asked: list[str], script: Path) -> list[str]:
    """What is wrong with the best two rows; [] nothing."""
    words = ["search", *asked, "--framework", "verl", "--framework-version", release]
    found = json.loads(run(program, *words, "--keep", "2", "--json").stdout or "{}").get("best", [])
    out = [] if found else ["no row"]
    for number, row in enumerate(found, 1):
        script.write_text(run(program, *words, "--launch", str(number)).stdout)
        for module, arguments in jobs_of(program, script):
            if theirs := refusal_of_hydra(tree, module, arguments, release):
                out.append(f"row {number}: Hydra: {theirs}")
        told: Any = json.loads(
            run(program, "estimate", str(script), "--framework-version", release, "--gpu", "H100-80GB", "--json").stdout or "{}"
        )
        if any(told.get(key) != row["estimate"][key] for key in ("verdict", "fit_probability", "fits")):
            out.append(f"row {number}: {told.get('verdict')}; the row: {row['estimate']['verdict']}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--release", default="0.9.0")
    parser.add_argument("--program", default=str(ROOT / "build" / "oomplan"))
    args = parser.parse_args()
    program, tree = str(Path(args.program).resolve()), args.tree.resolve()
    os.chdir(tree)
    asked = [["--gpus", str(gpus), "--model", model] for model in MODELS[:4] for gpus in GPUS]
    asked += [["--gpus", "8", "--model", MODELS[0], *way] for way in WAYS]
    wrong = rows = 0
    with tempfile.TemporaryDirectory() as folder:
        for one in asked:
            found = judge(program, tree, args.release, one, Path(folder) / "run.sh")
            rows += 1
            wrong += found != [] and found != ["no row"]
            if found:
                print(" ".join(one), "|", "; ".join(found), flush=True)
    print(f"{rows - wrong} of {rows} searches write what verl and oomplan accept")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
