"""estimate() says what PyTorch executed, plus the workspaces of a real process; the accuracy runner survives any row."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oomplan

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.truth


def rows() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in (ROOT / "tests/data/oracle_rows.jsonl").read_text().splitlines()]
    configs = {line["config"]: line["fields"] for line in lines if "fields" in line}
    return configs, [line for line in lines if "fields" not in line and not line["job"]["apart"]["forward_only"]]


def test_estimate_agrees_with_executed_steps(tmp_path: Path) -> None:
    configs, executed = rows()
    for row in executed[::11]:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(configs[row["config"]]))
        gpus = 1
        for degree in re.findall(r"\d+", row["job"]["trainer"].get("layout", "d1")):
            gpus *= int(degree)
        job = {"oomplan": 1, "framework": row["job"]["framework"], "gpus": f"{gpus} x H200-141GB", "model": str(path)}
        answer = oomplan.estimate({**job, "trainer": row["job"]["trainer"]}, quick=True)  # levels: no blocks of an allocator
        got = {phase.phase: phase.allocated_bytes for gpu in answer.gpus for phase in gpu.phases}
        workspaces = 64 * 2**20  # cuBLAS, of the forward and the backward thread on this GPU
        for phase, bytes_ in row["peaks"].items():
            # the loop that calls step() still names input_ids and labels: less than 256 KiB
            assert abs(got[f"trainer.{phase}"] - workspaces - bytes_) <= 1e-4 * bytes_ + 2**18, (row["id"], phase)


def test_runner_counts_what_it_cannot_map(tmp_path: Path) -> None:
    good = {"id": "a", "file": "config.json", "kind": "hf_config", "totals": "withheld"}
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    broken = ['{"id": "b", "peaks_by_phase": 3}', '{"id": "c", "metric_kind": []}', "[1]", "no json", '{"id": "d"}']
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(good), *broken]))
    out = tmp_path / "out.json"
    runner = ROOT / "benchmarks/accuracy/run.py"
    subprocess.run([sys.executable, str(runner), "--corpus", str(tmp_path / "rows.jsonl"), "--json", str(out)], check=True)
    written = json.loads(out.read_text())["rows"]
    assert len(written) == 6
    assert written[0] == {"id": "a", "metric": "parameters", "measured_bytes": None, "predicted_bytes": 728, "why_not": None}
    assert all(row["predicted_bytes"] is None and row["why_not"] for row in written[1:])


def test_steps_of_a_real_gpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    runner, corpus = ROOT / "benchmarks/accuracy/run.py", ROOT / "tests/data/measured_h200.jsonl"
    subprocess.run([sys.executable, str(runner), "--corpus", str(corpus), "--json", str(out)], check=True)
    errors: dict[str, list[float]] = {}
    for row in json.loads(out.read_text())["rows"]:
        assert row["why_not"] is None, row
        errors.setdefault(row["metric"], []).append(abs(row["predicted_bytes"] / row["measured_bytes"] - 1))
    assert all(len(of) == 73 for of in errors.values())
    for metric in ("forward", "backward", "optimizer", "peak"):  # what the allocator has given out, rests of blocks with it
        assert max(errors[metric]) < 0.003, metric
    for metric in ("reserved", "device"):  # the order of thousands of requests decides which block a large one finds
        assert statistics.median(errors[metric]) < 0.001, metric
        assert sum(error > 0.02 for error in errors[metric]) <= 8, metric
