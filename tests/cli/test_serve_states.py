"""Drafts beside recurrent states and SGLang's radix cache, from 0.5.14 on: sizes by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from test_slime import run

JOB = """oomplan: 1
gpus: 4 x H100-80GB
gpus_per_node: 4
model: Qwen/Qwen3-Next-80B-A3B-Instruct
server: {engine: sglang %s, layout: t4, mem_fraction_static: 0.8, draft_tokens: 4, max_model_len: 32k}
"""
LAYERS = 36  # with a gated delta rule, of 48
RECURRENT = 32 * 128 * 128 * 4 // 4  # heads, their widths, fp32, of four ranks
WINDOW = 3 * (2 * 16 * 128 + 32 * 128) * 2 // 4  # three tokens of queries, keys and values, in 16 bits
PER_REQUEST = LAYERS * (RECURRENT + WINDOW)


def explained(folder: Path, version: str) -> dict[str, Any]:
    (folder / "job.yaml").write_text(JOB % version)
    done = run("explain", "--json", "job.yaml", folder=folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_requests_with_drafts_have_states_out_of_the_same_share(tmp_path: Path) -> None:
    """A slot and a fifth of the states of four drafts: a request holds five slots, three and two that take turns."""
    told = explained(tmp_path, "0.5.15")
    pool = told["servers"][0]["kv_pool_bytes"] * 48 // 49  # the drafts' layer has its part
    slots = int(pool * 0.9 / 1.9 / (PER_REQUEST * (1 + 4 / 5)))
    running = min(48, slots // 5)
    # convolutions of four drafts overlap: six columns where three are a window
    drafts = LAYERS * (4 * RECURRENT + WINDOW // 3 * (4 + 3 - 1))
    (states,) = (one for one in told["gpus"][0]["phases"][-1]["live"] if one["name"] == "server.recurrent states")
    assert states["shape"] == [slots]
    assert states["bytes"] == (slots + 1) * PER_REQUEST + (running + 1) * drafts


def test_before_it_sglang_itself_refuses(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB % "0.5.12")
    said = run("check", "job.yaml", folder=tmp_path).stderr
    assert "SGLang itself refuses drafts beside recurrent states with its radix cache" in said
