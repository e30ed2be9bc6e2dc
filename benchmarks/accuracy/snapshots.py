"""Recorded runs of PyTorch's caching allocator: what it had reserved at most, against a replay of the recorded requests.

A row tells where a run was recorded; the run itself stands beside it, shortened (its key `about` says how). It is laid out again as
the memory snapshot that PyTorch would write of it, and `oomplan snapshot --replay` plays the requests.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from corpus import ROOT, CannotExpress, Case, Row

ACTIONS = {
    "a": ("alloc",),
    "f": ("free_requested", "free_completed"),
    "r": ("free_requested",),
    "c": ("free_completed",),
    "S": ("segment_alloc",),
    "F": ("segment_free",),
    "M": ("segment_map",),
    "U": ("segment_unmap",),
    "s": ("snapshot",),
    "o": ("oom",),
}
STATES = {"A": "active_allocated", "P": "active_pending_free", "-": "inactive"}


def event_rows(event: list[Any], unit: int, base: int) -> list[Row]:
    kind, address, size, stream = event[:4]
    where = {"device_free": address} if kind == "o" else {"addr": base + address * unit}
    return [{"action": action, **where, "size": size, "stream": stream, "frames": []} for action in ACTIONS[kind]]


def segment_row(segment: list[Any], unit: int, base: int) -> Row:
    address, total, allocated, stream, kind, expandable, blocks, pool = segment
    out: list[Row] = []
    at = base + address * unit
    for size, requested, state in blocks:
        out.append({"address": at, "size": size, "requested_size": requested, "state": STATES[state], "frames": []})
        at += size
    return {
        "device": 0,
        "address": base + address * unit,
        "total_size": total * unit,
        "allocated_size": allocated,
        "stream": stream,
        "segment_type": kind,
        "segment_pool_id": [0, pool],
        "is_expandable": expandable,
        "blocks": out,
    }


@cache
def recording(path: Path) -> Row:
    return dict(json.loads(gzip.decompress(path.read_bytes())))


def snapshot_of(path: Path, number: int) -> Row:
    """The file that PyTorch would have written of one device."""
    run = recording(path)
    device = next(d for d in run["devices"] if d["device"] == number)
    unit, base = int(device["unit"]), int(device["base"], 16)
    settings = run["settings"] if isinstance(run["settings"], dict) else {}
    return {
        "segments": [segment_row(s, unit, base) for s in device["final"]],
        "device_traces": [[row for e in device["events"] for row in event_rows(e, unit, base)]],
        "allocator_settings": settings,
    }


def program() -> str:
    return os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))


def replay_figures(where: str) -> Row:
    """`where`: a file and the number of a device in it, as Case.config has it."""
    path, number = where.rsplit(":", maxsplit=1)
    text = json.dumps(snapshot_of(Path(path), int(number)))
    done = subprocess.run(
        [program(), "snapshot", "-", "--replay", "--json"], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CannotExpress(done.stderr.strip()[:160])
    device = json.loads(done.stdout)["devices"][0]
    replay = device["replay"]
    if not replay["possible"] or replay["stopped"]:
        raise CannotExpress(replay.get("why_not") or replay["stopped"])
    return {
        "reserved": replay["reserved_peak_bytes"]["replayed"],
        "allocated": device["allocated_peak"]["allocated_bytes"],
        "segment events": replay["segment_events"]["replayed"],
        "blocks in place": replay["at_recorded_address"],
    }


def snapshot_cases(row: Row, corpus: Path) -> list[Case]:
    where = f"{corpus.parent / row['file']}:{row['device']}"
    figures = {
        "reserved": row["peak_reserved"],
        "allocated": row["peak_allocated_blocks"],
        "segment events": row["segment_events"],
        "blocks in place": row["allocs"],
    }
    name = f"{row['file']}:{row['device']}"
    return [Case(name, metric, measured, "snapshot", {}, where, metric) for metric, measured in figures.items()]
