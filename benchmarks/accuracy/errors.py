"""What P(fit) rests on: how far predictions were from what devices held, and whether the probabilities come true."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    schema: str
    group: str
    metric: str
    measured: int
    predicted: int

    @property
    def log_ratio(self) -> float:
        return math.log(self.measured / self.predicted)


# Reserved memory or the device's, of real GPUs: (schema, group, metric) -> engine, whether it serves, whose jobs alone it is.
GROUPS: dict[tuple[str, str, str], tuple[str, bool, dict[str, str]]] = {
    ("measured_training", "torchtitan", "reserved"): ("fsdp2", False, {"kernels": "torchtitan"}),
    ("measured_training", "fsdp_qlora", "reserved"): ("fsdp1", False, {}),
    ("measured_training", "arctic-alst", "device"): ("deepspeed", False, {}),
    ("measured_rl", "training", "device"): ("single", False, {"framework": "agilerl"}),
    ("oracle", "single, on a GPU", "device"): ("single", False, {}),
    ("measured_rl", "generation", "device"): ("vllm", True, {}),
}


def grouped(figures: Iterable[Figure]) -> dict[tuple[str, str, str], list[float]]:
    out: dict[tuple[str, str, str], list[float]] = {}
    for figure in figures:
        key = (figure.schema, figure.group, figure.metric)
        if key in GROUPS:
            out.setdefault(key, []).append(figure.log_ratio)
    return {key: sorted(errors) for key, errors in out.items() if len(errors) > 1}


def errors_table(figures: Iterable[Figure]) -> str:
    """models/measured_errors.json."""
    rows = []
    for key, errors in grouped(figures).items():
        engine, serves, only_for = GROUPS[key]
        rows.append(
            {
                "engine": engine,
                "serves": serves,
                **({"only_for": only_for} if only_for else {}),
                "of": f"{key[1]}, {key[2]}",
                "log_ratios": [round(e, 4) + 0.0 for e in errors],
            }
        )
    return '{"rows": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]}\n"


def fit_probability(errors: list[float], headroom: float) -> float:
    """headroom: ln(usable / needed)."""
    import oomplan

    core: Any = oomplan._core
    needed = 10**12
    return float(core.fit_probability(errors, needed, round(needed * math.exp(headroom))))


HEADROOMS = [step / 200 for step in range(-40, 41)]  # cards from 18 % below the prediction to 22 % above it
EDGES = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]


def calibration(figures: Iterable[Figure]) -> list[tuple[float, float, int, float, float]]:
    """Each case judged by the others of its group, on imagined cards around its prediction: of the verdicts with a probability
    from .. to, how many there are, what they said on average and how many came true."""
    judged: list[tuple[float, bool]] = []
    for errors in grouped(figures).values():
        for i, error in enumerate(errors):
            others = errors[:i] + errors[i + 1 :]
            if len(others) > 1:
                judged += [(fit_probability(others, headroom), error <= headroom) for headroom in HEADROOMS]
    out = []
    for low, high in zip(EDGES, EDGES[1:], strict=False):
        inside = [(p, came) for p, came in judged if low <= p < high or p == high == 1.0]
        if inside:
            said = statistics.fmean(p for p, _ in inside)
            out.append((low, high, len(inside), said, sum(came for _, came in inside) / len(inside)))
    return out


def calibration_text(figures: Iterable[Figure]) -> list[str]:
    return [
        "",
        "## Whether P(fit) comes true",
        "",
        "Every case of reserved or device memory, judged by the others of its group on imagined cards from 18 % below to 22 % above",
        "what is predicted ([how](estimate.md#the-probability)).",
        "",
        "| probability | verdicts | said on average | fitted |",
        "|---|---|---|---|",
        *(
            f"| {low:.0%} to {high:.0%} | {count} | {said:.1%} | {came:.1%} |"
            for low, high, count, said, came in calibration(figures)
        ),
    ]
