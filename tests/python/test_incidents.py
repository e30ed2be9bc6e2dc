"""Reports of out-of-memory errors: what is asked, what counts as foreseen, and what is left open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "benchmarks" / "accuracy" / "run.py"
sys.path.insert(0, str(RUN.parent))

Row = dict[str, Any]
CORPUS = ROOT / "models" / "architectures" / "rows.jsonl"  # configs are looked for beside it; there is no such file


def report(number: int, **fields: Any) -> Row:
    nothing = dict.fromkeys(("version", "model", "gpu", "n_gpus", "raw_message", "remedy", "remedy_from", "date"))
    return {
        "id": f"report-{number}",
        "framework": "vLLM",
        "config": {},
        "numbers_bytes": {},
        "phase": "unknown",
        **nothing,
        **fields,
    }


SERVER = {"version": "0.19.1", "model": "Qwen/Qwen3-8B", "gpu": "RTX 4090 24GB", "n_gpus": 1, "phase": "rollout/KV init"}
TRAINER = {
    "framework": "HF Trainer + FSDP2",
    "model": "Qwen/Qwen3-1.7B",
    "gpu": "A100 40GB",
    "n_gpus": 2,
    "phase": "loss",
    "config": {"batch": 8, "seq": 8192, "gradient_checkpointing": True, "pure_bf16": True, "attention": "sdpa"},
}
VERL = {
    "framework": "verl",
    "version": "0.8.0",
    "model": "Qwen/Qwen2.5-7B-Instruct",
    "gpu": "A100 40GB",
    "n_gpus": 2,
    "phase": "optimizer step",
    "config": {"algorithm": "grpo", "rollout": "vllm", "max_prompt": 512, "max_response": 512, "micro_batch": 1, "rollout_tp": 1},
}
OFFLOADED = {**VERL["config"], "param_offload": True, "optimizer_offload": True}  # type: ignore[dict-item]

REPORTS = [
    # the whole context does not fit behind the weights; a shorter one does
    report(0, **SERVER, remedy="--max-model-len 8192", remedy_tags=["lower_max_model_len"], remedy_from="source"),
    # another phase than the one that breaks
    report(1, **{**SERVER, "phase": "generation"}),
    # no card, no number of cards, a size that several cards have
    report(2, **{**SERVER, "gpu": None}),
    report(3, **{**SERVER, "n_gpus": 2}),
    report(4, **{**SERVER, "gpu": "24GB class", "model": "Qwen/Qwen3-32B", "phase": "weights load"}),
    # a setting that nobody knows
    report(5, **{**SERVER, "config": {"warp_drive": 9}}),
    # a remedy without its value, and one that its reporter did not try
    report(6, **SERVER, remedy="lower the length", remedy_tags=["lower_max_model_len"], remedy_from="source"),
    report(7, **SERVER, remedy="--max-model-len 8192", remedy_tags=["lower_max_model_len"], remedy_from="ours"),
    # something else holds the card
    report(
        8,
        gpu="H200 141GB",
        phase="init",
        config={"gpu_memory_utilization": 0.9},
        raw_message="ValueError: Free memory on device (20.0/139.72 GiB) on startup is less than desired GPU memory utilization",
        numbers_bytes={"free": 20 * 2**30, "total": 150023207649},
        remedy="stop the other one",
        remedy_tags=["free_other_process"],
        remedy_from="source",
    ),
    # plain training, whose recomputation decides where it is not said
    report(9, **TRAINER, remedy="fused cross-entropy", remedy_tags=["fused_loss"], remedy_from="source"),
    report(10, **{**TRAINER, "config": {k: v for k, v in TRAINER["config"].items() if k != "seq"}}),  # type: ignore[attr-defined]
    # RL: more than the card has without offload; the machine's memory
    report(11, **{**VERL, "phase": "unknown"}),
    report(12, **{**VERL, "phase": "host", "config": {**OFFLOADED, "host_ram_gb": 64}}),
    report(13, **{**VERL, "phase": "host", "config": OFFLOADED}),
    report(14, **{**VERL, "phase": "host", "config": {**OFFLOADED, "host_ram_gb": 2000}}),
    report(15, **{**VERL, "version": None, "date": "2023-01-01"}),
    # a program that is not read
    report(16, framework="Sawmill", model="Qwen/Qwen3-8B", gpu="H100 80GB", n_gpus=8),
    # AReaL's file; a counter-example
    report(
        18,
        framework="AReaL",
        version="1.0.4",
        model="Qwen/Qwen2.5-7B-Instruct",
        gpu="A100 80GB",
        n_gpus=8,
        phase="forward",
        config={
            "actor.backend": "fsdp:d4",
            "rollout.backend": "sglang:d4",
            "mem_fraction_static": 0.8,
            "max_prompt": 1024,
            "max_new_tokens": 31744,
            "max_tokens_per_mb": 65536,
        },
    ),
    report(19, **{**SERVER, "config": {"max_model_len": 40960, "works_with": "max_model_len=8192"}}),
    # fields of other types
    report(17, **{**SERVER, "config": [1], "n_gpus": "many"}),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Row]:
    folder = tmp_path_factory.mktemp("reports")
    corpus, out = folder / "oom_incidents.jsonl", folder / "out.json"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in REPORTS), encoding="utf-8")
    paths = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(RUN), "--corpus", str(corpus), "--json", str(out), "--markdown", str(folder / "accuracy.md")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL, timeout=120)
    answers = json.loads(out.read_text(encoding="utf-8"))["rows"]
    text = (folder / "accuracy.md").read_text(encoding="utf-8")
    assert "| vLLM | 11 |" in text and "warp_drive" in text
    return {(int(row["id"].split("-")[1]), row["metric"]): row for row in answers}


FORESEEN = {
    (0, "oom"),
    (0, "remedy"),
    (4, "oom"),
    (6, "oom"),
    (7, "oom"),
    (8, "oom"),
    (8, "remedy"),
    (9, "oom"),
    (11, "oom"),
    (12, "oom"),
    (18, "oom"),
    (19, "oom"),
    (19, "remedy"),
}
OTHERWISE = {(1, "oom"), (14, "oom")}
LEFT_OPEN = {
    (2, "oom"): "the GPU is not stated",
    (3, "oom"): "how the server is laid out over the GPUs is not stated",
    (5, "oom"): "the setting warp_drive of a report is not mapped",
    (6, "remedy"): "the value of the remedy is not stated: longest context",
    (10, "oom"): "the length of the samples is not stated",
    (13, "oom"): "the memory of the host is not stated",
    (15, "oom"): "no release of that day is described",
    (16, "oom"): "Sawmill is not read yet",
    (17, "oom"): "the settings are no object",
}


@pytest.mark.parametrize("key", sorted(FORESEEN | OTHERWISE))
def test_a_report_is_judged(rows: dict[tuple[int, str], Row], key: tuple[int, str]) -> None:
    row = rows[key]
    assert (row["measured_bytes"], row["predicted_bytes"], row["why_not"]) == (1, int(key in FORESEEN), None)


@pytest.mark.parametrize("key", sorted(LEFT_OPEN))
def test_what_decides_is_not_guessed(rows: dict[tuple[int, str], Row], key: tuple[int, str]) -> None:
    assert (rows[key]["measured_bytes"], rows[key]["predicted_bytes"]) == (1, None)
    assert rows[key]["why_not"] == LEFT_OPEN[key]


def test_every_report_has_a_row_and_no_other(rows: dict[tuple[int, str], Row]) -> None:
    assert {key for key in rows if key[1] == "oom"} == {(number, "oom") for number in range(len(REPORTS))}
    assert {key[0] for key in rows if key[1] == "remedy"} == {0, 6, 8, 9, 19}


def phase(name: str, needed: int, states: int = 0) -> Row:
    return {"phase": name, "capacity_needed_bytes": needed, "by_category_bytes": {"optimizer": states}, "other_processes": []}


def test_states_are_made_in_the_first_step() -> None:
    """Forward and backward passes beside states come behind the step that makes them."""
    from incident_answers import as_reported, broken

    phases = [phase("trainer.load", 40), phase("trainer.forward", 110, 60), phase("trainer.optimizer", 130, 60)]
    answer: Row = {"gpus": [{"usable_bytes": 100, "phases": phases}], "servers": [], "hosts": []}
    assert broken(answer) == ["trainer.optimizer", "trainer.forward"]
    assert as_reported(answer, "optimizer step") and not as_reported(answer, "forward")
    phases[0] = phase("trainer.load", 99, 60)  # DeepSpeed's and Megatron's masters are there from the beginning
    assert broken(answer) == ["trainer.forward", "trainer.optimizer"]


def test_roles_on_different_gpus_are_put_in_order() -> None:
    from incident_answers import in_order

    servers = ["rollout.load", "rollout.start", "rollout.generate", "rollout.receive_weights"]
    trainers = ["actor.load", "actor.log_probs", "actor.forward", "actor.send_weights"]
    order = ["actor.load", "rollout.load", "rollout.start", "rollout.generate"]
    order += ["actor.log_probs", "actor.forward", "actor.send_weights", "rollout.receive_weights"]
    assert in_order([trainers, servers]) == order


def test_what_is_open_must_not_decide() -> None:
    from incidents import judged_cases

    row = report(99, **{**TRAINER, "config": {**TRAINER["config"], "gradient_checkpointing": None}})  # type: ignore[dict-item]
    (case,) = judged_cases(row, CORPUS)
    assert {choice["open"]["recomputation"] for choice in case.job["choices"]} == {False, True}


@pytest.mark.parametrize(
    ("said", "cards"),
    [
        ("A100 40GB", {"A100-40GB"}),
        ("A100", {"A100-40GB", "A100-80GB"}),
        ("A10G/L4 24GB", {"A10G-24GB", "L4-24GB"}),
        ("A800 80GB", {"A100-80GB"}),
        ("80GB class", {"A100-80GB", "H100-80GB", "H100-PCIe-80GB"}),
    ],
)
def test_cards(said: str, cards: set[str]) -> None:
    from incident_words import cards as of_words

    assert set(of_words(said)) == cards


@pytest.mark.parametrize(
    "said", ["Ascend 910B 64GB", "RTX 5070 Ti 16GB + RTX 5090 32GB", "(2 and 4 GPUs)", "GB200 192GB", "", None]
)
def test_cards_that_are_not_known(said: Any) -> None:
    from corpus import CannotExpress
    from incident_words import cards as of_words

    with pytest.raises(CannotExpress):
        of_words(said)
