"""Real runs of verl and what oomplan says of their commands.

    python benchmarks/accuracy/verl_runs.py verl_cases.jsonl [--program build/oomplan] [--markdown OUT] [--json OUT]

A row has the overrides of a run on 1 to 512 GPUs and what happened: it ran, it ran out of memory, or memory was measured. Each is put through the
program as a command of verl. What a row leaves open and decides (model, GPU, settings) is told, and so is what is refused. Where sequences as long as
the settings allow do not fit, the answer for sequences of 512 tokens stands beside: it counts where the samples of a run are known to be short
(GSM8K, MATH). Where nothing says how long they were, and that decides, the run is neither right nor wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
RELEASES = {"June 2025": "0.4.1", "commit 9f4161e25": "0.5.0", "HEAD": "0.10.0"}  # what is said otherwise than by a number
KNOWN = ("0.3.0", "0.4.1", "0.5.0", "0.6.1", "0.7.0", "0.8.0", "0.9.0", "0.10.0")
GPUS = ("H100", "H200", "H800", "H20", "A100-40GB", "A100-80GB", "V100", "MI300X")
ADDED = ("override_transformer_config.num_layers_in", "override_optimizer_config.", "engine_kwargs.")
SHORT = 512
# what scripts of examples/tuning set in verl 0.4.1, whose logs the rows are (all but 70b/qwen2-70b_*); the rows have the overrides alone
OF_TUNED = ["VLLM_ATTENTION_BACKEND=XFORMERS"]
OF_GSM8K = ("gsm8k", "tuning", "run_deepseek671b_math_megatron.sh")  # scripts whose data are GSM8K


class NotEnough(Exception):
    """The row leaves open what decides."""


def release_of(text: str) -> str:
    for words, release in RELEASES.items():
        if words in text:
            return release
    found = re.search(r"v?(\d+)\.(\d+)", text)
    if not found:
        raise NotEnough("the release")
    wanted = f"{found[1]}.{found[2]}."
    return next((release for release in KNOWN if release.startswith(wanted)), KNOWN[0])


def gpu_of(text: str | None) -> str:
    for kind in GPUS:
        if kind in (text or ""):
            return {"H800": "H800-80GB", "H20": "H20-96GB", "H100": "H100-80GB", "V100": "V100-32GB", "H200": "H200-141GB"}.get(
                kind, kind
            )
    raise NotEnough("the GPU")


def model_of(row: Row) -> str:
    name = str(row["model"])
    if "unspecified" in name or re.fullmatch(r".*model|\d.*B|Llama.*", name):
        raise NotEnough("the model")
    if "/" in name:
        return name
    return {"DeepSeek-V3-671B": "deepseek-ai/DeepSeek-V3"}.get(name, ("deepseek-ai/" if "DeepSeek" in name else "Qwen/") + name)


def written(value: object) -> str:
    return "null" if value is None else str(value)


def command_of(row: Row) -> list[str]:
    """The options of the program, then the command."""
    settings: Row = row["settings"]
    if not settings:
        raise NotEnough("the settings")
    release, gpu, model = release_of(row["verl"]), gpu_of(row["gpu"]), model_of(row)
    tuned, world = "SFT" in row["engine"], row.get("gpus")
    if world is None and "trainer.n_gpus_per_node" not in settings:
        raise NotEnough("the number of GPUs")
    words = ["--gpu", gpu, "--framework-version", release, "--"]
    if tuned:
        words += [
            "torchrun",
            f"--nproc_per_node={world}",
            "-m",
            "verl.trainer.fsdp_sft_trainer",
            f"model.partial_pretrain={model}",
        ]
    else:
        if "examples/tuning" in row["src"] and "70b/qwen2-70b" not in row["src"] and release in ("0.3.0", "0.4.1"):
            words += OF_TUNED
        words += ["python3", "-m", "verl.trainer.main_ppo"]
        if "megatron" in row["engine"] and "model_engine" not in settings:
            words.append("--config-name=ppo_megatron_trainer.yaml")
        words.append(f"actor_rollout_ref.model.path={model}")
        if settings.get("algorithm.adv_estimator", "gae") == "gae":
            words.append(f"critic.model.path={model}")
        if "trainer.n_gpus_per_node" not in settings:
            number = int(re.sub(r"\D", "", str(world)) or 8)
            words += [f"trainer.n_gpus_per_node={min(8, number)}", f"trainer.nnodes={max(1, number // 8)}"]
    return words + [
        f"{'+' if any(part in key for part in ADDED) else ''}{key}={written(value)}" for key, value in settings.items()
    ]


def verdict(program: str, words: list[str]) -> tuple[str, str]:
    """ "fits", "oom" or "refused", and the first line."""
    done = subprocess.run([program, "estimate", *words], capture_output=True, text=True, check=False)
    line = (done.stdout or done.stderr).splitlines()[0]
    return {0: "fits", 1: "oom"}.get(done.returncode, "refused"), line.removeprefix("oomplan: ")


def judged(program: str, row: Row) -> Row:
    out: Row = {
        "id": row["id"],
        "run": f"{row['engine']}, {row['model']}, {row['gpus']} x {row['gpu']}",
        "reported": row["outcome"],
    }
    try:
        words = command_of(row)
    except NotEnough as missing:
        return out | {"told": "", "why_not": f"not stated: {missing}"}
    told, line = verdict(program, words)
    out |= {"told": told, "line": line}
    if told == "refused":
        return out | {"why_not": line}
    if told == "oom":
        out["short"] = verdict(program, ["--sequence-tokens", str(SHORT), *words])[0]
    return out | {"right": rightness(row, told, out.get("short", told))}


def rightness(row: Row, told: str, short: str) -> str:
    """Whether the answer is right, for the lengths that the run is known to have had."""
    if told != short:
        if not ("GSM8K" in row.get("notes", "") or any(name in row["src"] for name in OF_GSM8K)):
            return "the length decides"
        told = short
    return "yes" if told == ("oom" if row["outcome"] == "oom" else "fits") else "no"


HAPPENED = {
    "fits": "ran",
    "oom": "out of memory",
    "fits-claimed": "runs, its header says",
    "fits+boundary": "44 a GPU ran, 45 did not",
}
TOLD = {"fits": "fits", "oom": "does not fit", "": ""}


def figure(line: str) -> str:
    found = re.search(r"needs (?:at least )?([\d.]+) GiB of ([\d.]+) GiB usable in ([\w.]+)", line)
    return f"{found[1]} of {found[2]} GiB in {found[3]}" if found else line


def refusal(line: str) -> str:
    found = re.search(r"(not supported yet|verl itself refuses it|Hydra's struct mode|'model_engine' is a config group).*", line)
    key = re.sub(r"^command line:? ?", "", line).split(":")[0]
    return f"{key}: {found[0] if found else line}".split("; ")[0].split(": say ")[0].replace("|", "\\|")


def table(rows: list[Row]) -> Iterator[str]:
    yield f"| run | it | told | needs | of sequences of {SHORT} tokens | right |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        if row["told"] in ("fits", "oom"):
            happened, told, short = HAPPENED[row["reported"]], TOLD[row["told"]], TOLD[row.get("short", "")]
            yield f"| {row['run']} ({row['id']}) | {happened} | {told} | {figure(row['line'])} | {short} | {row['right']} |"
    yield ""
    yield "| not answered | reason |"
    yield "|---|---|"
    for row in rows:
        if row["told"] == "refused":
            yield f"| {row['run']} ({row['id']}) | {refusal(row['line'])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--program", default=str(ROOT / "build" / "oomplan"))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [judged(options.program, json.loads(line)) for line in options.corpus.read_text().splitlines()]
    text = "\n".join(table(rows)) + "\n"
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(text)
    else:
        print(text)
    answered = [row for row in rows if row["told"] in ("fits", "oom")]
    counted = {word: sum(row["right"] == word for row in answered) for word in ("yes", "no", "the length decides")}
    open_ = [row for row in rows if row.get("why_not", "").startswith("not stated")]
    print(
        f"{len(rows)} runs: {len(open_)} leave open what decides, {len(rows) - len(answered) - len(open_)} are refused, {len(answered)} answered:",
        ", ".join(f"{word} {number}" for word, number in counted.items()),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
