"""Which rows of AgileRL's sweeps with sampled lengths held a padded batch: torch's allocated peaks tell.

    python benchmarks/accuracy/padded.py --corpus measured_rl_single_gpu.jsonl

Rows that share the engine's settings share the bytes that torch counts of it, and so the error of the predicted allocated peak,
whatever it is. Of all choices of padded rows the one is taken that brings these errors together: to less than a tenth of their
distance without padded rows, which must be larger than what a first start may add (`STARTS`). Where none does, nothing is said.
The device's peak, which the accuracy table judges, is not looked at. Prints every group of rows and the set that colocated.py
holds. Rows of the pinned sweeps are the control: none of them may be padded.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from pathlib import Path

from colocated import PINNED, rl_cases
from corpus import Row, rows_of
from run import Library, judge

MIB = 1024 * 1024
STARTS = 32 * MIB

Errors = tuple[int, int]  # of the allocated peak: unpadded, padded


def engine_of(row: Row) -> tuple[str, int, int, int]:
    """What the bytes of the engine hang on: the sweep, its budget of tokens, the group and the rank."""
    knobs = row["knobs"]
    tokens, group = knobs["seq_len"], knobs["group_size"]
    return row["id"].rsplit("/", 1)[0], min(group * tokens, max(tokens, group * 8192)), group, knobs["lora_rank"]


def errors_of(row: Row, corpus: Path, library: Library) -> Errors | None:
    out = []
    for padded in (False, True):
        cases = [case for case in rl_cases(row, corpus) if case.metric == "allocated" and not case.why_not]
        for case in cases:
            case.job["actor"]["padding_mask"] = padded
            predicted = judge(case, library)
            if predicted is not None:
                out.append(predicted - case.measured)
    return (out[0], out[1]) if len(out) == 2 else None


def spread(errors: list[Errors], choice: tuple[int, ...]) -> int:
    chosen = [pair[padded] for pair, padded in zip(errors, choice, strict=True)]
    return max(chosen) - min(chosen)


def padded_of(errors: list[Errors]) -> tuple[int, ...]:
    none = (0,) * len(errors)
    choices = sorted(itertools.product((0, 1), repeat=len(errors)), key=sum)
    best = min(choices, key=lambda choice: spread(errors, choice))
    apart = spread(errors, none)
    return best if apart - spread(errors, best) > STARTS and 10 * spread(errors, best) < apart else none


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    corpus = parser.parse_args().corpus
    library = Library()
    groups: dict[tuple[str, int, int, int], list[tuple[str, Errors]]] = defaultdict(list)
    for row in rows_of(corpus):
        if row.get("phase") == "training":
            errors = errors_of(row, corpus.resolve(), library)
            if errors is not None:
                groups[engine_of(row)].append((row["id"], errors))
    found = []
    for engine, rows in groups.items():
        choice = padded_of([errors for _, errors in rows])
        print(engine, f"{spread([errors for _, errors in rows], choice) / MIB:.1f} MiB apart")
        for (name, (without, with_mask)), padded in zip(rows, choice, strict=True):
            print(f"    {name}: {without / MIB:.1f} MiB unpadded, {with_mask / MIB:.1f} padded{' *' if padded else ''}")
            if padded:
                found.append(name)
    print("\npadded:", *found, sep="\n    ")
    print("\nof pinned sweeps:", sum(name.rsplit("/", 1)[0] in PINNED for name in found))


if __name__ == "__main__":
    main()
