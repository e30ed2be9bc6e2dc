"""The heaviest valid jobs: every built-in model in the templates of JOBS, and the time and memory of the slowest estimates.

    python benchmarks/speed/heaviest.py [--program OOMPLAN] [--top 30] [--models WORD] [--files FOLDER VERSION...] [--markdown OUT]

A job that is refused is no valid job; a model that a template cannot hold is left out. FOLDER is a work tree of AReaL at VERSION,
whose own configurations are added. Seconds are CPU time of the whole process, memory is the most that it had resident.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))

from framework_files import job_files

HEAD = "oomplan: 1\nmodel: {model}\n"
JOBS = {
    "server, longest context": HEAD
    + "gpus: 8 x H200-141GB\nserver: {{engine: vllm 0.19.1, layout: t8, max_model_len: {longest}}}\n",
    "SGLang server, longest context": HEAD
    + "gpus: 8 x H200-141GB\nserver: {{engine: sglang 0.5.10, layout: t8, max_model_len: {longest}}}\n",
    "fine-tuning under FSDP2, one sequence of the longest context": HEAD
    + "framework: torch\ngpus: 64 x H200-141GB\ntrainer: {{layout: d64, sequence_tokens: {longest}, sequences_per_micro_batch: 1, "
    "kernels: hf_sdpa, recompute: full, precision: {{storage: fp32, compute: bf16, reduce: fp32}}}}\n",
    "the same, nothing recomputed": HEAD
    + "framework: torch\ngpus: 64 x H200-141GB\ntrainer: {{layout: d64, sequence_tokens: {longest}, sequences_per_micro_batch: 1, "
    "kernels: hf_sdpa, recompute: none, precision: {{storage: fp32, compute: bf16, reduce: fp32}}}}\n",
    "ZeRO-3 on the host": HEAD
    + "framework: torch\ngpus: 8 x A100-80GB\ntrainer: {{engine: deepspeed, layout: d8, kernels: hf_sdpa, sequence_tokens: 32k, "
    "sequences_per_micro_batch: 1, recompute: full, precision: {{storage: bf16}}}}\n",
    "QLoRA on one GPU": HEAD
    + "framework: torch\ngpus: 1 x H100-80GB\ntrainer: {{engine: single, layout: d1, sequence_tokens: 8k, sequences_per_micro_batch: 4, "
    "kernels: hf_sdpa, lora: {{rank: 64, targets: all-linear, base: nf4}}, precision: {{storage: bf16, compute: bf16, reduce: bf16}}}}\n",
    "GRPO of 16m tokens in a step under AReaL": HEAD
    + "gpus: 64 x H200-141GB\nframework: areal 1.0.4\nprompt_tokens: 4k\nresponse_tokens: 28k\nsequences_per_step: 512\n"
    "rollout: {{engine: sglang 0.5.10, layout: d4t8, mem_fraction_static: 0.8}}\n"
    "actor: {{layout: d32, tokens_per_micro_batch: 32k, recompute: full}}\nref: {{beside: actor}}\n",
    "GRPO under verl, servers and trainers on the same GPUs": HEAD
    + "gpus: 64 x H200-141GB\nframework: verl 0.9.0\nprompt_tokens: 4k\nresponse_tokens: 28k\nsequences_per_step: 1024\n"
    "rollout: {{engine: vllm 0.11.0, layout: d8t8, gpu_memory_utilization: 0.6}}\n"
    "actor: {{beside: rollout, layout: d64, tokens_per_micro_batch: 32k, offload: [parameters, optimizer]}}\nref: {{beside: actor}}\n",
    "Megatron, four stages": HEAD
    + "framework: torch\ngpus: 32 x H200-141GB\nsequences_per_step: 512\ntrainer: {{engine: megatron, layout: d1p4t8, sequence_tokens: 32k, "
    "sequences_per_micro_batch: 1, cross_entropy: te}}\n",
}
LIMIT = 60  # seconds, behind which a job is a defect
LONGEST = 262144  # tokens that are asked of a model whose positions end later, or nowhere


@dataclass
class Run:
    what: str
    seconds: float
    megabytes: float
    status: int


def run(program: str, arguments: list[str], folder: Path, what: str) -> Run:
    limit = ["timeout", "-s", "KILL", str(LIMIT)]
    with subprocess.Popen(
        [*limit, program, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return Run(what, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, child.returncode)


def models(program: str, word: str) -> list[tuple[str, int]]:
    known = json.loads(subprocess.run([program, "models", "--json"], check=True, capture_output=True, text=True).stdout)["models"]
    return [(m["id"], min(m.get("positions") or LONGEST, LONGEST)) for m in known if word in m["id"]]


def jobs(program: str, word: str, folder: Path) -> list[Run]:
    out = []
    for model, longest in models(program, word):
        for name, text in JOBS.items():
            (folder / "job.yaml").write_text(text.format(model=model, longest=longest), encoding="utf-8")
            out.append(run(program, ["estimate", "job.yaml"], folder, f"{model}: {name}"))
    return out


def files(program: str, tree: Path, version: str) -> list[Run]:
    asked = ["--framework-version", version, "--gpu", "H100-80GB", "--config-root", str(tree)]
    return [run(program, ["estimate", name, *asked], tree, f"AReaL {version}: {name}") for name in job_files(tree)]


def table(runs: list[Run], top: int) -> str:
    lines = ["| job | answer | CPU | memory |", "|---|---|---|---|"]
    for r in sorted(runs, key=lambda r: -r.seconds)[:top]:
        lines.append(f"| {r.what} | {'fits' if r.status == 0 else 'does not fit'} | {r.seconds:.2f} s | {r.megabytes:.0f} MB |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/oomplan")
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--models", default="", metavar="WORD", help="only those with WORD in their id")
    parser.add_argument("--files", nargs=2, action="append", default=[], metavar=("FOLDER", "VERSION"))
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    program = str(Path(args.program).resolve())
    with tempfile.TemporaryDirectory() as folder:
        runs = jobs(program, args.models, Path(folder))
    for tree, version in args.files:
        runs += files(program, Path(tree).resolve(), version)
    valid = [r for r in runs if r.status in (0, 1)]
    text = table(valid, args.top)
    print(f"{len(runs)} jobs, {len(valid)} valid; of these above 1 s: {sum(r.seconds > 1 for r in valid)}")
    print(f"most memory: {max(r.megabytes for r in valid):.0f} MB")
    for r in runs:
        if r.status not in (0, 1, 2):
            print(f"defect: status {r.status}: {r.what}")
    print(text, end="")
    if args.markdown:
        args.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
