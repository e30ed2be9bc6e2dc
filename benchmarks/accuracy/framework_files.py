"""Which of a framework's own files oomplan answers: every configuration of a checkout, with the exit status and the time of each.

python benchmarks/accuracy/framework_files.py --checkout FOLDER --framework-version 1.0.4 [--program OOMPLAN] [--gpu H100-80GB]
    [--json OUT] [--quiet]

FOLDER is a work tree of the release (git archive of the tag). Nothing of it is kept. Statuses 0 and 1 are answers, 2 is a refusal,
anything else is a defect. Refusals are grouped by their first sentence. A file counts as accepted by the framework if it is answered, or if
all that is said against it is that something is not supported yet, or that its model is not known here. Jobs on CPUs are left out.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

ELSEWHERE = re.compile(r"(^|/)(\.github|docs?|docker|\.[^/]+)(/|$)")
OF_A_JOB = re.compile(r"^(experiment_name|trial_name|actor|defaults)\b", re.MULTILINE)  # keys at the top of AReaL's files


def job_files(tree: Path) -> list[str]:
    """Paths in the tree of the files that configure a job."""
    paths = sorted(path for pattern in ("*.yaml", "*.yml") for path in tree.rglob(pattern))
    names = [str(path.relative_to(tree)) for path in paths if OF_A_JOB.search(path.read_text(encoding="utf-8", errors="replace"))]
    return [name for name in names if not ELSEWHERE.search(name)]


def ask(program: str, tree: Path, name: str, version: str, gpu: str) -> dict[str, Any]:
    command = [program, "estimate", name, "--framework-version", version, "--gpu", gpu, "--config-root", str(tree)]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = done.stdout if done.returncode in (0, 1) else done.stderr
    return {"path": name, "status": done.returncode, "seconds": time.monotonic() - began, "cpu": cpu, "said": said.strip()}


def reason(row: dict[str, Any]) -> str:
    """The first line of a refusal without its place."""
    lines = row["said"].splitlines() or [""]
    return re.sub(r"^oomplan: (\S+\.ya?ml(:\d+:\d+)? )?", "", lines[0])[:150]


OURS = re.compile(r"not supported yet|nothing of that name was found")
ON_CPUS = "a job that runs on CPUs alone"


def accepted(row: dict[str, Any]) -> bool:
    """By the framework, on GPUs."""
    if row["status"] in (0, 1):
        return True
    lines = [line for line in row["said"].splitlines() if line.startswith("oomplan: ")]
    return bool(lines) and all(OURS.search(line) and ON_CPUS not in line for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--framework-version", required=True)
    parser.add_argument("--program", default="build/oomplan")
    parser.add_argument("--gpu", default="H100-80GB")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quiet", action="store_true", help="counts alone")
    args = parser.parse_args()
    program = str(Path(args.program).resolve())
    tree = args.checkout.resolve()
    rows = [ask(program, tree, name, args.framework_version, args.gpu) for name in job_files(tree)]
    statuses = collections.Counter(row["status"] for row in rows)
    answered = statuses[0] + statuses[1]
    slowest = max(rows, key=lambda row: row["seconds"])
    print(f"{len(rows)} files: {answered} answered, {statuses[2]} refused, {len(rows) - answered - statuses[2]} defects")
    runnable = sum(map(accepted, rows))
    print(f"accepted by the framework on GPUs: {answered} of {runnable} answered ({100 * answered / max(1, runnable):.1f} %)")
    print(f"slowest: {slowest['seconds']:.1f} s ({slowest['cpu']:.1f} s of CPU) {slowest['path']}")
    if not args.quiet:
        refused = collections.defaultdict(list)
        for row in rows:
            if row["status"] not in (0, 1):
                refused[reason(row)].append(f"{row['path']} ({row['status']})")
        for why, paths in sorted(refused.items(), key=lambda item: -len(item[1])):
            print(f"{len(paths):4d}  {why}")
            for path in paths:
                print(f"        {path}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
