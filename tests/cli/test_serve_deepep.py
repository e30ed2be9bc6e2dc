"""SGLang's servers with DeepEP: its buffers by hand, from csrc/config.hpp of DeepEP 1.2.1, and what else changes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve())
SERVER = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 --dp-size 16 --enable-dp-attention"
MIB = 2**20


def serve(words: str, *options: str) -> subprocess.CompletedProcess[str]:
    line = [PROGRAM, "serve", "--gpu", "h200", "--engine-version", "0.5.10", *options, "--", *words.split()]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def held(words: str) -> dict[str, Any]:
    line = [PROGRAM, "estimate", "--json", "--gpu", "h200", "--framework-version", "0.5.10", "--", *words.split()]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    phases = json.loads(done.stdout)["gpus"][0]["phases"]
    return dict(next(p for p in phases if p["phase"].endswith("generate"))["by_category_bytes"])


def buffers(mode: str) -> int:
    """Hidden states of 7,168 columns, 256 experts, two machines of eight GPUs, 128 tokens of a rank."""
    slot = 2 * 7168 + 8 + 128 * (8 + 4) + 128 * 4
    channels, machines = 10, 2
    nvl = channels * 8 * (4 * (2 * machines + 3) + 288 * slot)
    normal = 2 * channels * machines * (4 * 18 + 140 * (slot + 16))
    message = 2 * 7168 + 7168 // 128 * 4
    decoding = 2 * (2 * 256 * 128 * message + 1024)
    if mode == "low_latency":
        nvl = 0
    rdma = {"auto": max(normal, decoding), "normal": normal, "low_latency": decoding}[mode]
    granule = 512 * MIB
    heap = granule + (0 if 30539776 + rdma + 128 <= granule else -(-rdma // granule) * granule)
    return -(-(nvl + 160) // (2 * MIB)) * 2 * MIB + 32 * MIB + heap + machines * 1572864


@pytest.mark.truth
@pytest.mark.parametrize("mode", ["auto", "normal", "low_latency"])
def test_the_buffers_are_those_of_deepep(mode: str) -> None:
    words = f"{SERVER} --moe-a2a-backend deepep --deepep-mode {mode}"
    assert held(words)["communication"] == pytest.approx(buffers(mode), abs=2 * MIB)


def test_shared_experts_are_whole_and_the_experts_are_shared_out() -> None:
    """58 layers with shared experts of 2,048 columns in fp8: a sixteenth of them more, fifteen sixteenths."""
    without, with_them = held(f"{SERVER} --ep-size 16"), held(f"{SERVER} --moe-a2a-backend deepep")
    shared = 58 * 3 * 7168 * 2048
    assert with_them["weights"] - without["weights"] == pytest.approx(shared * 15 / 16, rel=0.05)  # rounded by the allocator


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (SERVER.replace("DeepSeek-R1", "DeepSeek-R1:bf16"), "DeepEP of a checkpoint that is not stored in fp8"),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B-FP8 --tp 1", "DeepEP itself serves no group of 1"),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B-FP8 --tp 2", "the model has no experts"),
    ],
)
def test_what_deepep_does_not_serve_is_told(words: str, told: str) -> None:
    done = serve(f"{words} --moe-a2a-backend deepep")
    assert done.returncode == 2
    assert told in done.stderr


def test_other_exchanges_are_refused() -> None:
    assert "not supported yet: buffers of mooncake" in serve(f"{SERVER} --moe-a2a-backend mooncake").stderr
    assert "expected auto, normal or low_latency" in serve(f"{SERVER} --moe-a2a-backend deepep --deepep-mode fast").stderr
