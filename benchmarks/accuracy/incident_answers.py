"""What oomplan answers to the settings of a report, and whether that is what was reported."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from corpus import CannotExpress, Row, reason_of

# Reported phase: phases of the program, by the last word of their name. A loss is the end of the forward pass and the begin of the
# backward pass. Graphs and a start-up profile belong to a server's start. With an unknown phase the verdict alone is judged.
PHASES: dict[str, tuple[str, ...]] = {
    "init": ("load", "start"),
    "weights load": ("load",),
    "rollout/KV init": ("start",),
    "graph capture": ("start",),
    "generation": ("generate",),
    "log-probs": ("log_probs",),
    "forward": ("forward",),
    "loss": ("forward", "backward"),
    "backward": ("backward",),
    "optimizer step": ("optimizer",),
    "weight sync": ("wake", "send_weights", "receive_weights"),
    "checkpoint save": ("save",),
    "checkpoint load": ("load",),
}
ORDER = ("load", "start", "sleep", "wake", "generate", "log_probs", "values", "forward", "backward", "optimizer", "send_weights",
         "receive_weights", "save")  # fmt: skip


def rank(phase: str) -> int:
    word = phase.rpartition(".")[2]
    return ORDER.index(word) if word in ORDER else len(ORDER)


def in_order(classes: list[list[str]]) -> list[str]:
    """The phases of all classes of GPUs in the order of the run: that of each class, and between roles on different GPUs the usual one."""
    out: list[str] = []
    for phases in classes:
        at = 0
        for phase in phases:
            if phase not in out:
                while at < len(out) and rank(out[at]) <= rank(phase):
                    at += 1
                out.insert(at, phase)
            at = out.index(phase) + 1
    return out


def states(phase: Row) -> int:
    """Optimizer states that lie on the GPU in the phase, whoever's."""
    own = int(phase["by_category_bytes"].get("optimizer", 0))
    return own + sum(int(other["by_category_bytes"].get("optimizer", 0)) for other in phase["other_processes"])


def broken(answer: Row) -> list[str]:
    """Phases that do not fit, in the order of the run.

    A phase is its highest occurrence in two iterations. Before the first step of an optimizer its states are not there, but for those
    that are made when the engine is: what fits without them breaks behind that step only.
    """
    order = in_order([[str(phase["phase"]) for phase in gpu["phases"]] for gpu in answer["gpus"]])
    first: set[str] = set()
    later: set[str] = set()
    for gpu in answer["gpus"]:
        stepped = False
        loaded = max((states(p) for p in gpu["phases"] if str(p["phase"]).endswith(".load")), default=0)
        for phase in gpu["phases"]:
            name = str(phase["phase"])
            stepped = stepped or name.endswith(".optimizer")
            made = 0 if stepped else max(0, states(phase) - loaded)
            if phase["capacity_needed_bytes"] - made > gpu["usable_bytes"]:
                first.add(name)
            elif phase["capacity_needed_bytes"] > gpu["usable_bytes"]:
                later.add(name)
    for server in answer["servers"]:
        if server["refused"]:
            first.add(f"{server['role']}.start")
    return [name for name in order if name in first] + [name for name in order if name in later - first]


def host_short(answer: Row) -> bool:
    return any(
        host["usable_bytes"] is not None and any(phase["host_bytes"] > host["usable_bytes"] for phase in host["phases"])
        for host in answer["hosts"]
    )


def fits(answer: Row, phase: str) -> bool:
    """By what the report speaks of: the memory of the host, or of the GPUs."""
    return not (host_short(answer) if phase == "host" else broken(answer))


def as_reported(answer: Row, phase: str) -> bool:
    if phase == "host":
        return host_short(answer)
    found = broken(answer)
    if phase not in PHASES:  # unknown
        return bool(found)
    return bool(found) and found[0].rpartition(".")[2] in PHASES[phase]


def filled(value: Any, model: str) -> Any:
    if isinstance(value, str):
        return value.replace("{model}", model)
    if isinstance(value, list):
        return [filled(item, model) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, model) for key, item in value.items()}
    return value


def block(tree: Row, depth: int = 0) -> str:
    """A file as people write YAML: a line a key."""
    out = ""
    for key, value in tree.items():
        out += f"{'  ' * depth}{key}:" + (
            f"\n{block(value, depth + 1)}" if isinstance(value, dict) else f" {json.dumps(value)}\n"
        )
    return out


def asked(oomplan: Any, ask: Row) -> Row:
    """The answer to one command, file of a framework or job file. The model's config.json lies in a folder, as a user's would."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        if ask.get("config"):
            (model / "config.json").write_text(ask["config"], encoding="utf-8")
        if "command" in ask:
            job = oomplan.read(command=filled(ask["command"], str(model)), framework_version=ask["version"], gpu=ask["gpu"])
        elif "file" in ask:
            path = Path(folder) / "job.yaml"
            path.write_text(block(filled(ask["file"], str(model))), encoding="utf-8")
            job = oomplan.read(str(path), framework_version=ask["version"], gpu=ask["gpu"])
        else:
            job = oomplan.read({"oomplan": 1, **filled(ask["job"], str(model))})
        more = [f"{key}={ask[name]}" for name, key in (("host", "host_memory"), ("others", "others")) if ask.get(name)]
        if more:
            job = oomplan.read(job.to_yaml(), *more)
        return dict(oomplan.estimate(job).to_dict())


def outcome(oomplan: Any, kept: dict[str, Row], choice: Row, phase: str) -> Row:
    def answer(ask: Row) -> Row:
        key = json.dumps(ask, sort_keys=True)
        if key not in kept:
            kept[key] = asked(oomplan, ask)
        return kept[key]

    before = answer(choice["ask"])
    if "after" not in choice:
        return {"right": as_reported(before, phase)}
    return {"right": not fits(before, phase) and all(fits(answer(ask), phase) for ask in choice["after"])}


def incident_answer(oomplan: Any, job: Row) -> Row:
    """1 if the answer is what was reported, else 0. What the report leaves open must not matter: else it decides, and is named."""
    found: list[tuple[Row, bool]] = []
    refused: CannotExpress | None = None
    kept: dict[str, Row] = {}
    for choice in job["choices"]:
        try:
            right = bool(outcome(oomplan, kept, choice, str(job["phase"]))["right"])
        except ValueError as error:
            refused = CannotExpress(re.sub(r"\S*/model(?![/\w])", "MODEL", reason_of(error)))
            if getattr(error, "kind", "") == "not_supported":  # nobody knows what it would answer
                raise refused from error
            continue  # the framework refuses this choice: it was another one
        for other, said in found:
            if said != right:
                names = sorted(name for name in choice["open"] if choice["open"][name] != other.get(name))
                raise CannotExpress(f"not stated, and it decides: {', '.join(names)}")
        found.append((choice["open"], right))
    if not found:
        raise refused or CannotExpress("nothing is stated")
    return {"right": int(found[0][1])}


# ---- the section of docs/accuracy.md

JUDGED = ("oom", "remedy")


def incidents_text(rows: list[tuple[str, str, int | None, str]]) -> list[str]:
    """Of rows (framework, metric, predicted, why not): a table by framework, and why the others are not judged."""
    lines = [
        "",
        "## Reported out-of-memory errors: whether they are foreseen",
        "",
        "Reports of users, in the settings that they state. An error is foreseen when the answer does not fit and the first phase that",
        "breaks is the one reported; a loss is the end of a forward or the begin of a backward pass. Where the phase is unknown, the",
        "verdict alone is judged. A remedy that somebody else confirmed helps when the settings do not fit and do with it.",
        "What a report leaves open is asked with each of its values, and judged only if all give one answer. Model, GPU, lengths and",
        "micro-batch are never assumed; what a framework has defaults for is taken from there.",
        "",
        "| framework | reports | judged | foreseen | remedies | judged | help |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[str, dict[str, list[int | None]]] = defaultdict(lambda: {metric: [] for metric in JUDGED})
    reasons: Counter[str] = Counter()
    for framework, metric, predicted, why_not in rows:
        groups[framework][metric].append(predicted)
        if why_not:
            reasons[why_not] += 1
    for framework, figures in sorted(groups.items(), key=lambda item: (-len(item[1]["oom"]), item[0])):
        cells = []
        for metric in JUDGED:
            known = [value for value in figures[metric] if value is not None]
            cells += [len(figures[metric]), len(known), sum(known)]
        lines.append(f"| {framework} | {' | '.join(str(cell) if cell else '' for cell in cells)} |")
    lines += ["", "Why the others are not judged:", "", "| why | rows |", "|---|---|"]
    return lines + [f"| {reason.replace('|', '/')} | {n} |" for reason, n in reasons.most_common()]
