"""The script that measures on a real GPU: what of it needs no GPU and no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "gpu"), str(ROOT / "benchmarks" / "accuracy")]

Row = dict[str, Any]


def cases() -> list[Row]:
    from measure import cases_in

    return list(cases_in(ROOT / "benchmarks" / "gpu" / "cases.jsonl", ""))


def test_names_of_cases_are_unique_and_listed() -> None:
    names = [case["id"] for case in cases()]
    assert len(set(names)) == len(names)
    shown = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu" / "measure.py"), "--list"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split("\n")[:-1] == names


def measured(case: Row) -> Row:
    """A row as the script writes it, with made-up figures."""
    phases = {"forward": {"bytes": 3}, "backward": {"bytes": 4}, "optimizer": {"bytes": 5}}
    seen = {"gpu": "NVIDIA H200", "reserved_peak_bytes": 6, "process_bytes": 7}
    return {**case, "sharding": None, "peft": None, "peak_bytes": 5, "peaks_by_phase": phases, "device": seen}


def test_every_case_is_a_job_that_oomplan_answers() -> None:
    from corpus import schema_of
    from executed import oracle_cases
    from run import Library

    library = Library()
    for case in cases():
        row = measured(case)
        assert schema_of(row) == "oracle"
        figures = {c.metric: library.predict(c) for c in oracle_cases(row, ROOT / "benchmarks" / "gpu" / "cases.jsonl")}
        assert set(figures) == {"forward", "backward", "optimizer", "peak", "reserved", "device"}, case["id"]
        assert figures["peak"] == max(figures[phase] for phase in ("forward", "backward", "optimizer"))
        assert figures["peak"] <= figures["reserved"] < figures["device"]


def test_kernels_buffers_are_counted_on_a_device_and_not_for_an_execution_without_one() -> None:
    from executed import oracle_cases
    from run import Library

    library = Library()
    case = next(c for c in cases() if c["attention"] == "sdpa" and c["checkpointing"] == "none")
    row = measured(case)
    without = {key: value for key, value in row.items() if key != "device"}
    corpus = ROOT / "benchmarks" / "gpu" / "cases.jsonl"
    on_device, executed = (
        next(library.predict(c) for c in oracle_cases(r, corpus) if c.metric == "backward") for r in (row, without)
    )
    assert on_device >= executed


def event(action: str, address: int, size: int, *names: str) -> Row:
    frames = [{"filename": f"/x/{name}.py", "name": name, "line": 7} for name in names]
    return {"action": action, "addr": address, "size": size, "frames": frames}


def test_live_set_is_that_of_the_highest_instant() -> None:
    from live import live_at_peak

    history = [
        event("alloc", 1, 100, "linear"),
        event("alloc", 2, 50, "norm"),
        event("free_requested", 2, 50),
        event("free_completed", 2, 50),
        event("alloc", 2, 70, "softmax", "modeling_llama"),
        event("free_completed", 1, 100),
        event("alloc", 3, 60),
        event("free_completed", 9, 10),  # made before the recording began
    ]
    live = live_at_peak({"device_traces": [history]})
    assert [(block["bytes"], block["made_by"]) for block in live] == [(100, "linear"), (70, "softmax")]
    assert live[1]["made_in"] == "modeling_llama:7"
    assert json.dumps(live)
    assert live_at_peak({"device_traces": [[]]}) == []
