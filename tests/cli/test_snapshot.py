"""Memory snapshots as the program reads them: pickles that Python wrote, and pickles that want to run something."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
MIB = 1 << 20
BASE = 139_777_059_848_192  # where a driver puts segments


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)


def snapshot() -> dict[str, Any]:
    """30 MiB and 3 MiB; the 3 MiB are freed."""
    frames = [{"filename": "/home/me/réseau.py", "name": "forward", "line": 12}]

    def event(action: str, address: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames}

    def block(address: int, size: int, state: str) -> dict[str, Any]:
        return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}

    def segment(address: int, size: int, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "device": 0,
            "address": address,
            "total_size": size,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "blocks": blocks,
        }

    low = BASE - 20 * MIB
    return {
        "segments": [
            segment(BASE, 30 * MIB, [block(BASE, 30 * MIB, "active_allocated")]),
            segment(low, 20 * MIB, [block(low, 20 * MIB, "inactive")]),
        ],
        "device_traces": [
            [
                event("segment_alloc", BASE, 30 * MIB),
                event("alloc", BASE, 30 * MIB),
                event("segment_alloc", low, 20 * MIB),
                event("alloc", low, 3 * MIB),
                event("free_requested", low, 3 * MIB),
                event("free_completed", low, 3 * MIB),
            ],
            [],
        ],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.0},
        "external_annotations": [],
    }


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot(), protocol))
    done = run("snapshot", str(path), "--replay", "--json")
    assert done.returncode == 0 and not done.stderr
    answer = json.loads(done.stdout)
    schema = json.loads((ROOT / "docs" / "schema" / "snapshot.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(answer)
    (device,) = answer["devices"]
    assert device["allocated_peak"] == {"allocated_bytes": 33 * MIB, "reserved_bytes": 50 * MIB, "event": 3}
    assert device["now"]["allocated_bytes"] == 30 * MIB and device["now"]["releasable_bytes"] == 20 * MIB
    assert [row["bytes"] for row in device["live"]] == [30 * MIB, 3 * MIB]
    assert device["live"][0]["file"] == "/home/me/réseau.py"
    assert device["replay"]["first_difference"] is None and device["replay"]["at_recorded_address"] == 2


def test_json_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot()))
    (tmp_path / "s.json").write_text(json.dumps(snapshot()))
    first, second = (json.loads(run("snapshot", str(tmp_path / name), "--json").stdout) for name in ("s.pickle", "s.json"))
    assert first.pop("file") != second.pop("file")
    assert first == second


def test_top(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot()))
    answer = json.loads(run("snapshot", str(path), "--top", "1", "--json").stdout)["devices"][0]
    assert len(answer["live"]) == 1 and answer["live_rows"] == 2
    assert "1 of 2 rows" in run("snapshot", str(path), "--top", "1").stdout
    assert run("snapshot", str(path), "--top", "0").returncode == 2


class Runs:
    """What a hostile file would hold: a call, made by whoever unpickles it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_is_refused(tmp_path: Path, protocol: int) -> None:
    path, marker = tmp_path / "s.pickle", tmp_path / "ran"
    path.write_bytes(pickle.dumps({**snapshot(), "more": Runs(marker)}, protocol))
    done = run("snapshot", str(path))
    assert done.returncode == 2 and not done.stdout
    assert ("STACK_GLOBAL" if protocol >= 4 else "GLOBAL posix.mkdir") in done.stderr
    assert "could run code" in done.stderr and not marker.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["snapshot"], "no snapshot"),
        (["snapshot", "no-such.pickle"], "no-such.pickle: cannot be opened"),
        (["snapshot", str(ROOT)], "found a folder"),
        (["snapshot", str(ROOT / "README.md")], "at byte 0"),
        (["snapshot", "/dev/null"], "an empty file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_messages(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_a_predicted_run_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "p.pickle"
    done = run("explain", str(ROOT / "examples" / "grpo.yaml"), "--save-snapshot", str(path))
    assert "the predicted run of" in done.stderr and str(path) in done.stderr
    with path.open("rb") as file:
        loaded = pickle.load(file)
    assert {event["action"] for event in loaded["device_traces"][0]} >= {"alloc", "free_completed", "segment_alloc"}
    (device,) = json.loads(run("snapshot", str(path), "--json").stdout)["devices"]
    held = sum(segment["total_size"] for segment in loaded["segments"])
    assert device["now"]["reserved_bytes"] == held > 0
    refused = run("explain", str(ROOT / "examples" / "grpo.yaml"), "--save-snapshot", str(tmp_path / "no" / "p.pickle"))
    assert refused.returncode == 2 and "cannot be written" in refused.stderr


def beside(snapshot: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("explain", str(ROOT / "examples" / "grpo.yaml"), "--recorded", str(snapshot), *arguments)


def test_a_prediction_beside_a_record(tmp_path: Path) -> None:
    path = tmp_path / "p.pickle"
    run("explain", str(ROOT / "examples" / "grpo.yaml"), "--save-snapshot", str(path))
    text = beside(path).stdout
    assert f"GPU 0 of {path} beside rollout 0-3, rollout.generate" in text and "Sizes that are alike" in text
    assert "Sizes that differ" not in text
    smaller = beside(path, "actor.tokens_per_micro_batch=10k", "--phase", "actor.backward", "--top", "3").stdout
    assert "beside actor 0, actor.backward" in smaller and "Sizes that differ in number, 3 of" in smaller
    other = beside(path, "rollout.mem_fraction_static=0.75").stdout  # the largest block has another size
    assert "beside rollout 0-3, rollout.generate" in other
    answer = json.loads(beside(path, "--json").stdout)
    schema = json.loads((ROOT / "docs" / "schema" / "estimate.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(answer)
    (device,) = answer["recorded"]["devices"]
    assert device["predicted_alone_bytes"] == device["recorded_alone_bytes"] == 0 < device["alike_bytes"]
    assert device["predicted_peak"] == device["recorded_peak"]
    assert all(row["predicted"] == row["recorded"] > 0 for row in device["sizes"])


def test_a_record_without_a_history_or_without_blocks(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    state = snapshot()
    state["device_traces"] = [[], []]
    path.write_bytes(pickle.dumps(state))
    assert "What lived when it was recorded" in beside(path).stdout
    state["segments"] = []
    path.write_bytes(pickle.dumps(state))
    assert "no device holds memory" in beside(path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--phase", "actor.forwards"], "--phase: found 'actor.forwards', expected actor.backward, actor.forward"),
        (["--top", "0"], "--top: found '0', expected a whole number"),
    ],
)
def test_messages_of_a_comparison(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot()))
    done = beside(path, *arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_options_of_a_comparison_alone() -> None:
    done = run("explain", str(ROOT / "examples" / "grpo.yaml"), "--phase", "actor.forward")
    assert done.returncode == 2 and "--phase: found no --recorded" in done.stderr
