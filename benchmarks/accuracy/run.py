"""How far oomplan is from what others executed and measured.

    python benchmarks/accuracy/run.py --corpus FILE... [--json OUT] [--markdown OUT] [--table OUT] [--errors OUT] [--group-by FIELD]

Takes files of rows in the schemas that README.md lists. Prints per group: rows, how many can be expressed as a job and why the
rest cannot, median and 95th percentile of the absolute error, bias, and false fits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from colocated import rl_cases
from corpus import CannotExpress, Case, Row, gpu_table, reason_of, rows_of, schema_of
from counts import model_cases
from errors import Figure, calibration_text, errors_table
from executed import oracle_cases
from incident_answers import JUDGED, incident_answer, incidents_text
from incidents import PRINTED, incident_cases
from megatron_command import megatron_cases
from serving import inference_cases
from snapshots import replay_figures, snapshot_cases
from training import measured_cases

MAPPERS: dict[str, Callable[[Row, Path], list[Case]]] = {
    "oracle": oracle_cases,
    "oracle_megatron": megatron_cases,
    "measured_training": measured_cases,
    "measured_inference": inference_cases,
    "measured_rl": rl_cases,
    "oom_incidents": incident_cases,
    "models": model_cases,
    "snapshot": snapshot_cases,
}


@dataclass
class Result:
    case: Case
    schema: str
    group: str
    predicted: int | None = None

    @property
    def error(self) -> float | None:
        """Percent of the measured figure."""
        if self.predicted is None or self.case.measured <= 0:
            return None
        return 100 * (self.predicted - self.case.measured) / self.case.measured


def group_of(schema: str, row: Row, field: str | None) -> str:
    """The value that a row is grouped by: `field` (dotted), or what is usual for its schema."""
    if field:
        value: Any = row
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return str(value)
    if schema == "oracle":
        if row.get("device"):
            return "single, on a GPU"
        sharding = row.get("sharding")
        return str(sharding.get("engine", "fsdp2")) if isinstance(sharding, dict) and sharding else "single"
    if schema == "snapshot":
        return "expandable segments" if row.get("expandable") else "segments"
    usual = {
        "measured_training": "group",
        "measured_inference": "engine",
        "measured_rl": "phase",
        "oom_incidents": "framework",
        "models": "kind",
        "oracle_megatron": "impl",
    }
    return str(row.get(usual.get(schema, ""), ""))


def has_tower(config: str) -> bool:
    """Rows hold no images: what was executed of a model with a vision tower is its language model."""
    return isinstance(json.loads(config).get("vision_config"), dict)


class Library:
    """oomplan, asked once per case."""

    def __init__(self) -> None:
        import oomplan

        self.oomplan = oomplan
        self.core: Any = oomplan._core
        self.kept: dict[tuple[str, str, str], Row] = {}

    def figures(self, case: Case) -> Row:
        key = (case.kind, json.dumps(case.job, sort_keys=True), case.config)
        if key not in self.kept:
            self.kept[key] = self.ask(case)
        return self.kept[key]

    def ask(self, case: Case) -> Row:
        job = json.dumps(case.job)
        if case.kind == "training":
            return self.training(case)
        if case.kind == "megatron":
            asked = self.oomplan.read_megatron(case.job["command"], *case.job["settings"])
            return dict(self.core.training_figures_of(asked, json.dumps(case.job["apart"])))
        if case.kind == "operator":
            return dict(self.core.op(**case.job))
        if case.kind == "serving":
            return dict(self.core.serving_figures(job, case.config))
        if case.kind == "parameters":
            counts = dict(self.core.parameter_figures(case.config, case.id))
            counts["all"] = counts["language"] + counts["tower"] + counts["mtp"]
            return counts
        if case.kind == "snapshot":
            return replay_figures(case.config)
        if case.kind == "colocated":
            return self.colocated(case)
        if case.kind == "incident":
            return incident_answer(self.oomplan, case.job)
        if case.kind == "last_stage":
            return self.last_stage(case)
        return self.whole(case)

    def training(self, case: Case) -> Row:
        """A step of one role by itself, of a job file with the model as a file: without the process around it."""
        asked = {key: value for key, value in case.job.items() if key != "apart"}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(case.config, encoding="utf-8")
            model = str(path) + (":text" if has_tower(case.config) else "")
            job = self.oomplan.read({"oomplan": 1, **asked, "model": model})
        return dict(self.core.training_figures_of(job, json.dumps(case.job.get("apart") or {})))

    def last_stage(self, case: Case) -> Row:
        """What torch has allocated on the last stage of a pipeline: at most, and when a step is over."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(case.config, encoding="utf-8")
            apart = case.job.get("apart") or {}
            job = {"oomplan": 1, **{key: value for key, value in case.job.items() if key != "apart"}, "model": str(path)}
            last = max(self.oomplan.estimate(job).explain().gpus, key=lambda gpu: max(gpu.gpus))
        added = int(apart.get("added_bytes") or 0)
        stepped = [p.allocated_bytes for p in last.phases if p.phase.endswith("optimizer")]
        left = int(apart.get("left_bytes") or 0)
        return {"peak": max(p.allocated_bytes for p in last.phases) + added, "resident": max(stepped) + added + left}

    def colocated(self, case: Case) -> Row:
        """The first iteration of a job of one process: what NVML and torch show of its training and of its generation."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(case.config, encoding="utf-8")
            job = self.oomplan.read({"oomplan": 1, **case.job, "model": str(path)})
            answer = self.core.colocated_figures(job, 1)
        out: Row = {"training_asleep": answer["asleep"] + answer["kept_back"]}
        for name, words in (
            ("training", ("log_probs", "forward", "backward", "optimizer")),
            ("generation", ("wake", "generate")),
        ):
            phases = [figures for phase, figures in answer["phases"].items() if phase.split(".")[-1] in words]
            if not phases:  # a server alone
                continue
            for metric in ("device", "allocated", "reserved"):
                kept_back = answer["kept_back"] if metric == "device" else 0  # NVML calls it used
                out[f"{name}_{metric}"] = max(p[metric] for p in phases) + kept_back
        return out

    def whole(self, case: Case) -> Row:
        """Everything on the device: estimate() with the model as a file, explained: the allocator's own figures are replayed."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(case.config, encoding="utf-8")
            job = {"oomplan": 1, **{key: value for key, value in case.job.items() if key != "apart"}, "model": str(path)}
            answer = self.oomplan.estimate(job).explain()
        phases = [phase for gpu in answer.gpus for phase in gpu.phases]
        parts = ("forward", "backward", "optimizer")
        steps = [p for p in phases if p.phase.rpartition(".")[2] in parts]
        return {
            **{part: max((p.allocated_bytes for p in steps if p.phase.endswith(part)), default=0) for part in parts},
            "allocated": max(p.allocated_bytes for p in steps),
            "peak": max(p.allocated_bytes for p in steps),
            "reserved": max(p.reserved_bytes for p in phases),
            "device": max(p.device_bytes for p in phases),
        }

    def predict(self, case: Case) -> int:
        try:
            figures = self.figures(case)
        except ValueError as error:
            raise CannotExpress(reason_of(error)) from error
        refusal = figures.get("refusal")
        if refusal and case.metric not in ("weights", *PRINTED):
            raise CannotExpress("the engine would refuse to start: " + str(refusal).split(":", maxsplit=1)[0])
        return int(figures[case.figure])


def judge(case: Case, library: Library) -> int | None:
    """Nothing that a row holds may stop the run: what the library throws is a reason."""
    if case.why_not:
        return None
    try:
        return library.predict(case)
    except CannotExpress as reason:
        case.why_not = str(reason)
    except Exception as error:
        case.why_not = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return None


def cases_of(schema: str, row: Row, corpus: Path) -> list[Case]:
    if schema not in MAPPERS:
        return [Case(str(row["id"]), "", 0, why_not="the row has no schema that is known")]
    try:
        cases = MAPPERS[schema](row, corpus)
    except Exception as error:
        return [
            Case(
                str(row["id"]), "", 0, why_not=f"a field is missing or has another type: {type(error).__name__} {str(error)[:60]}"
            )
        ]
    return cases or [Case(str(row["id"]), "", 0, why_not="no figure that oomplan predicts")]


def run(corpora: list[Path], field: str | None) -> list[Result]:
    library = Library()
    out = []
    for corpus in corpora:
        for row in rows_of(corpus):
            schema = schema_of(row)
            for case in cases_of(schema, row, corpus.resolve()):
                result = Result(case, schema, group_of(schema, row, field))
                result.predicted = judge(case, library)
                out.append(result)
    return out


# ---- summaries


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def falsely_fits(result: Result) -> bool:
    """There is a card in the GPU table that the prediction fits and the measured figure does not."""
    if result.predicted is None or result.case.metric not in ("peak", "allocated", "reserved", "device"):
        return False
    return any(result.predicted <= gpu["usable"] < result.case.measured for gpu in gpu_table())


def summarise(results: list[Result]) -> list[Row]:
    groups: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.schema, result.group, result.case.metric].append(result)
    out = []
    for (schema, group, metric), members in groups.items():
        errors = [r.error for r in members if r.error is not None]
        sizes = [abs(e) for e in errors]
        reasons = Counter(r.case.why_not for r in members if r.case.why_not)
        out.append(
            {
                "schema": schema,
                "group": group,
                "metric": metric,
                "rows": len(members),
                "expressible": sum(r.predicted is not None for r in members),
                "median_percent": round(statistics.median(sizes), 4) if sizes else None,
                "p95_percent": round(quantile(sizes, 0.95), 4) if sizes else None,
                "worst_percent": round(max(sizes), 4) if sizes else None,
                "bias_percent": round(statistics.fmean(errors), 4) if errors else None,
                "false_fits": sum(falsely_fits(r) for r in members),
                "why_not": dict(reasons.most_common()),
            }
        )
    return out


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if abs(value) < 0.1 else f"{value:.2f}"


COLUMNS = ("rows", "expressible", "median_percent", "p95_percent", "worst_percent", "bias_percent", "false_fits")


def print_text(groups: list[Row]) -> None:
    print(
        f"{'schema / group / metric':56} {'rows':>5} {'expr':>5} {'median %':>9} {'p95 %':>9} {'worst %':>9} {'bias %':>9} {'false fits':>10}"
    )
    for g in groups:
        name = f"{g['schema']} / {g['group']} / {g['metric']}"
        shown = [g[c] if isinstance(g[c], int) else number(g[c]) for c in COLUMNS]
        print(f"{name:56} {shown[0]:>5} {shown[1]:>5} {shown[2]:>9} {shown[3]:>9} {shown[4]:>9} {shown[5]:>9} {shown[6]:>10}")
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for g in groups:
        reasons[g["schema"]].update(g["why_not"])
    for schema, counted in reasons.items():
        if counted:
            print(f"\n{schema or 'unknown'}: figures that cannot be expressed")
        for reason, n in counted.most_common():
            print(f"  {n:5}  {reason}")


TITLES = {
    "oracle": "Training steps executed by PyTorch on fake tensors",
    "oracle_megatron": "Megatron steps executed on fake tensors",
    "measured_training": "Published measurements of training",
    "measured_inference": "Servers: what they logged at start-up",
    "measured_rl": "RL on one GPU",
    "oom_incidents": "Servers that refused to start: what they printed",
    "models": "Parameter counts",
    "snapshot": "Recorded runs of the CUDA caching allocator, requests replayed",
}


def figures_of(results: list[Result]) -> list[Figure]:
    return [
        Figure(r.schema, r.group, r.case.metric, r.case.measured, r.predicted)
        for r in results
        if r.predicted is not None and r.predicted > 0 and r.case.measured > 0 and r.case.metric not in JUDGED
    ]


def markdown(groups: list[Row], results: list[Result], corpora: list[Path]) -> str:
    names = ", ".join(f"`{c.parent.name}/{c.name}`" if c.name == "index.jsonl" else f"`{c.name}`" for c in corpora)
    lines = [
        "# Accuracy",
        "",
        f"Written by `benchmarks/accuracy/run.py --markdown` from {names}.",
        "Error: |predicted - measured| / measured. A false fit is a figure for which a card of the GPU table exists that the",
        "prediction fits and the measurement does not. How the oracle rows came about and what judges what: [training](training.md).",
    ]
    by_schema: dict[str, list[Row]] = defaultdict(list)
    for g in groups:
        by_schema[g["schema"]].append(g)
    for schema, members in by_schema.items():
        lines += ["", f"## {TITLES.get(schema, 'Rows of no known schema')}", ""]
        judged = [g for g in members if g["metric"] in JUDGED]
        members = [g for g in members if g not in judged]
        shown = [g for g in members if g["expressible"]]
        if shown:
            lines += [
                "| group | figure | rows | expressible | median error | p95 | worst | bias | false fits |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
        for g in shown:
            cells = [f"{number(g[c])} %" for c in ("median_percent", "p95_percent", "worst_percent", "bias_percent")]
            lines.append(
                f"| {g['group']} | {g['metric']} | {g['rows']} | {g['expressible']} | {' | '.join(cells)} | {g['false_fits']} |"
            )
        reasons: Counter[str] = Counter()
        for g in members:
            reasons.update(g["why_not"])
        if reasons:
            lines += ["", "Figures that cannot be expressed:", "", "| why | figures |", "|---|---|"]
            lines += [f"| {reason.replace('|', '/')} | {n} |" for reason, n in reasons.most_common()]
        if judged:
            lines += incidents_text(
                [(r.group, r.case.metric, r.predicted, r.case.why_not) for r in results if r.case.metric in JUDGED]
            )
    lines += calibration_text(figures_of(results))
    return "\n".join(lines) + "\n"


# Whose evidence the figures of a group are: engine, words, and the jobs that they speak of alone.
LIKE: dict[tuple[str, str, str], tuple[Any, ...]] = {
    ("oracle", "fsdp2", "peak"): (
        "fsdp2",
        "allocated peaks of FSDP2 training steps that PyTorch executed on fake tensors, no real GPU",
    ),
    ("oracle", "fsdp1", "peak"): (
        "fsdp1",
        "allocated peaks of FSDP1 training steps that PyTorch executed on fake tensors, no real GPU",
    ),
    ("oracle", "ddp", "peak"): (
        "ddp",
        "allocated peaks of DDP training steps that PyTorch executed on fake tensors, no real GPU",
    ),
    ("oracle", "single", "peak"): (
        "single",
        "allocated peaks of training steps on one device that PyTorch executed on fake tensors, no real GPU",
    ),
    ("oracle", "single, on a GPU", "device"): ("single", "device peaks of training steps that were measured on an H200"),
    ("oracle_megatron", "te", "peak"): (
        "megatron",
        "allocated peaks of Megatron-core steps executed on fake tensors, no real GPU",
    ),
    ("measured_training", "arctic-alst", "device"): ("deepspeed", "device peaks that ArcticTraining published, of real GPUs"),
    ("measured_training", "litgpt-config-hub", "allocated"): (
        "single",
        "allocated peaks that LitGPT published, of real GPUs",
        {"kernels": "litgpt"},
    ),
    ("measured_training", "torchtitan", "reserved"): (
        "fsdp2",
        "reserved peaks that torchtitan published, of real GPUs",
        {"kernels": "torchtitan"},
    ),
    ("measured_rl", "training", "device"): (
        "single",
        "device peaks of AgileRL's training beside a sleeping vLLM, of real GPUs",
        {"framework": "agilerl"},
    ),
    ("measured_inference", "vllm", "non_kv"): ("vllm", "vLLM servers that logged what they hold beside the cache"),
    ("measured_inference", "sglang", "kv_tokens"): ("sglang", "SGLang servers that logged the tokens of their cache"),
}


def evidence_table(groups: list[Row]) -> str:
    """models/accuracy.json: a row an engine, or what `only_for` says of its jobs; the last one that holds is quoted."""
    rows = []
    for g in groups:
        about = LIKE.get((g["schema"], g["group"], g["metric"]))
        if about is None or not g["expressible"]:
            continue
        engine, like, *only_for = about
        rows.append(
            {
                "engine": engine,
                **({"only_for": only_for[0]} if only_for else {}),
                "like": like,
                "measurements": g["expressible"],
                "error_p50_percent": round(g["median_percent"], 3),
                "error_p95_percent": round(g["p95_percent"], 3),
            }
        )
    return '{"rows": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", nargs="+", type=Path, required=True, help="files of rows")
    parser.add_argument("--json", type=Path, help="write every figure and the groups")
    parser.add_argument("--markdown", type=Path, help="write docs/accuracy.md")
    parser.add_argument("--table", type=Path, help="write models/accuracy.json")
    parser.add_argument("--errors", type=Path, help="write models/measured_errors.json, which P(fit) rests on")
    parser.add_argument("--group-by", metavar="FIELD", help="a field of the rows, dotted: model, sharding.world")
    options = parser.parse_args()
    results = run(options.corpus, options.group_by)
    groups = summarise(results)
    print_text(groups)
    if options.json:
        rows = [
            {
                "id": r.case.id,
                "metric": r.case.metric,
                "measured_bytes": r.case.measured or None,
                "predicted_bytes": r.predicted,
                "why_not": r.case.why_not or None,
            }
            for r in results
        ]
        options.json.write_text(json.dumps({"rows": rows, "groups": groups}, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(markdown(groups, results, options.corpus), encoding="utf-8")
    if options.table:
        options.table.write_text(evidence_table(groups), encoding="utf-8")
    if options.errors:
        options.errors.write_text(errors_table(figures_of(results)), encoding="utf-8")


if __name__ == "__main__":
    main()
