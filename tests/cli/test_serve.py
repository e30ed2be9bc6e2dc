"""`oomplan serve`: real command lines of vLLM and SGLang, read as they are typed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
GIB = 2**30


def serve(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, "serve", *words], capture_output=True, text=True, timeout=60)


def answer(*words: str, status: int = 0) -> dict[str, Any]:
    done = serve("--json", *words)
    assert done.returncode == status, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    if status < 2:
        schema = json.loads((ROOT / "docs" / "schema" / "serve.schema.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(found)
    return found


VLLM = ("--engine-version", "0.19.0", "--", "vllm", "serve", "Qwen/Qwen3-8B")


def test_figures_are_those_that_vllm_logged() -> None:
    # one H100, 0.19.0: 15.27 GiB of weights, 57.5 GiB for the cache, 418,688 tokens
    found = answer(*VLLM, "--max-model-len", "8192", "--gpu-memory-utilization=0.95")
    assert abs(found["weights_bytes"] / GIB - 15.27) < 0.02
    assert abs(found["kv_pool_bytes"] / GIB - 57.5) < 0.1
    assert abs(found["kv_tokens"] / 418688 - 1) < 0.002


def test_spellings_of_a_flag_are_one() -> None:
    spelt = [
        answer(*VLLM, "--tensor-parallel-size", "2", "--max-model-len", "32K"),
        answer(*VLLM, "-tp=2", "--max_model_len=32768"),
        answer("--engine-version", "0.19.0", "--", "CUDA_VISIBLE_DEVICES=0,1", "vllm", "serve", "-tp", "2", "--model",
               "Qwen/Qwen3-8B", "--max-model-len=32768"),
    ]  # fmt: skip
    assert all(one["kv_tokens"] == spelt[0]["kv_tokens"] and one["gpus"] == 2 for one in spelt)
    assert answer(*VLLM, "--max-model-len", "32k")["max_model_len"] == 32000


def test_what_does_not_fit_comes_with_commands_that_do() -> None:
    found = answer("--gpu", "rtx3090", *VLLM, status=1)
    assert found["refusal"] and found["changes"]
    for change in found["changes"]:
        done = serve("--gpu", "rtx3090", "--engine-version", "0.19.0", "--", *change["command"])
        assert done.returncode == 0, change


def test_flags_that_no_parser_knows_are_refused_with_the_nearest() -> None:
    done = serve(*VLLM, "--max-model-length", "8192", "--port", "8000")
    assert done.returncode == 2
    assert "--max-model-length" in done.stderr and "--max-model-len'?" in done.stderr and "--port" not in done.stderr
    assert serve(*VLLM, "--port", "8000").returncode == 0


def test_what_is_not_supported_is_refused_by_name() -> None:
    done = serve(*VLLM, "--kv-offloading-size", "10", "--max-num-seqs", "many")
    assert done.returncode == 2
    assert "--kv-offloading-size" in done.stderr and "not supported yet" in done.stderr and "'many'" in done.stderr
    assert serve("--", "trtllm-serve", "x").returncode == 2
    assert serve().returncode == 2
    assert answer(*VLLM, "--kv-offloading-size=1", status=2)["schema"] == "oomplan.error/1"


def test_sglang() -> None:
    words = ("--engine-version", "0.5.10", "--", "python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B")
    found = answer(*words, "--mem-fraction-static", "0.85", "--context-length", "32768")
    assert found["engine"] == "sglang" and abs(found["memory_fraction"] - 0.85) < 1e-9
    assert answer(*words, "--tp", "2")["gpus"] == 2


def test_a_newer_release_is_answered_with_a_warning() -> None:
    found = answer("--engine-version", "0.99.0", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192")
    assert any(note["level"] == "warning" and "newest" in note["text"] for note in found["notes"])


def searched(*words: str, status: int = 0) -> dict[str, Any]:
    done = serve("--search", "--json", *words)
    assert done.returncode == status, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    schema = json.loads((ROOT / "docs" / "schema" / "serve_search.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(found)
    return found


EXPERTS = ("vllm", "serve", "Qwen/Qwen3-30B-A3B", "-tp", "2", "-dp", "2", "-ep", "--max-model-len", "8192")


def test_a_search_prints_commands_that_do_what_it_promised() -> None:
    for engine, command in (
        ("0.19.1", EXPERTS),
        (
            "0.5.10",
            ("python", "-m", "sglang.launch_server", "--model-path=Qwen/Qwen3-30B-A3B", "--tp=4", "--context-length=8192"),
        ),
    ):
        release = ("--engine-version", engine, "--gpu", "h100")
        found = searched("--keep", "12", *release, "--", *command)
        assert found["gpus"] == 4 and len(found["best"]) >= 6
        assert found["best"][0]["relative_throughput"] == 1
        for row in found["best"]:
            again = answer(*release, "--", *row["command"])
            groups = row["kv_tokens"] // again["kv_tokens"]
            assert row["kv_tokens"] == groups * again["kv_tokens"] and groups in (1, 2, 4)
            assert row["servers"] * again["gpus"] == 4
    assert any(
        "no all_experts" in row["change"]
        for row in searched("--keep", "40", "--engine-version", "0.19.1", "--", *EXPERTS)["best"]
    )


def test_what_is_fixed_stays_in_a_search() -> None:
    found = searched("--fix", "layout,attention_data", "--engine-version", "0.19.1", "--gpu", "h100", "--", *EXPERTS)
    for row in found["best"]:
        assert row["command"][:8] == list(EXPERTS[:8]) and row["servers"] == 1


def test_a_search_where_nothing_fits_says_how_many_gpus_would() -> None:
    found = searched("--gpu", "rtx3090", "--engine-version", "0.19.1", "--", "vllm", "serve", "Qwen/Qwen3-32B", status=1)
    assert found["best"] == [] and found["limits"] and found["smallest_gpus"] >= 4


def test_words_of_a_search_alone_are_refused() -> None:
    done = serve("--keep", "3", *VLLM)
    assert done.returncode == 2 and "--keep" in done.stderr and "--search" in done.stderr
