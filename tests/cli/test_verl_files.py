"""Files of verl: of which trainer they are, and what is a part of a job only."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
ENGINE = """
model: {path: Qwen/Qwen2.5-7B}
engine: {strategy: fsdp}
optim: {lr: 1e-5}
data: {train_batch_size: 64, max_length: 2048, use_dynamic_bsz: false, micro_batch_size_per_gpu: 2}
trainer: {n_gpus_per_node: 8}
"""
OVER_VERL = """
hydra:
  searchpath: [pkg://verl.trainer.config]
defaults:
  - sft_trainer_engine
  - _self_
model: {path: Qwen/Qwen2.5-7B}
data: {train_batch_size: 64, max_length: 2048, use_dynamic_bsz: false, micro_batch_size_per_gpu: 2}
trainer: {n_gpus_per_node: 8}
"""
LEGACY = """
ulysses_sequence_parallel_size: 1
model: {partial_pretrain: Qwen/Qwen2.5-7B}
data: {train_batch_size: 64, max_length: 2048, micro_batch_size_per_gpu: 2}
trainer: {n_gpus_per_node: 8}
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("text", "release"), [(ENGINE, "0.9.0"), (ENGINE, "0.6.1"), (OVER_VERL, "0.9.0"), (LEGACY, "0.4.1")])
def test_a_file_of_supervised_training_is_the_command_of_its_trainer(text: str, release: str, tmp_path: Path) -> None:
    (tmp_path / "tuned.yaml").write_text(text)
    legacy = text == LEGACY
    command = [
        "torchrun",
        "--nproc_per_node=8",
        "-m",
        "verl.trainer." + ("fsdp_sft_trainer" if legacy else "sft_trainer"),
        "data.train_batch_size=64",
        "data.max_length=2048",
        "data.micro_batch_size_per_gpu=2",
        *(["model.partial_pretrain=Qwen/Qwen2.5-7B"] if legacy else ["model.path=Qwen/Qwen2.5-7B", "data.use_dynamic_bsz=false"]),
    ]
    asked = ["estimate", "--json", "--gpu", "H100-80GB", "--framework-version", release]
    of_file, of_command = run(tmp_path, *asked, "tuned.yaml"), run(tmp_path, *asked, "--", *command)
    assert of_file.returncode == of_command.returncode == 0, of_file.stderr + of_command.stderr
    there, here = json.loads(of_file.stdout), json.loads(of_command.stdout)
    assert there["gpus"] == here["gpus"] and there["hosts"] == here["hosts"]
    assert len(there["gpus"]) >= 1


def test_a_composed_file_of_megatron_stands_over_megatrons_defaults(tmp_path: Path) -> None:
    (tmp_path / "tuned.yaml").write_text(ENGINE.replace("strategy: fsdp", "strategy: megatron, tensor_model_parallel_size: 2"))
    done = run(tmp_path, "read", "--facts", "--framework-version", "0.9.0", "tuned.yaml")
    assert done.returncode == 0, done.stderr
    trainer = json.loads(done.stdout)["roles"]["trainer"]
    assert trainer["engine"]["v"] == "megatron"


NO_JOBS = [
    ("critic.yaml", "_target_: verl.workers.config.CriticConfig\nrollout_n: 1\n", "a file of one of verl's config groups"),
    ("verl/trainer/config/algorithm/mine.yaml", "rollout_is: token\n", "a file of one of verl's config groups"),
    (
        "verl/trainer/config/actor/mine.yaml",
        "defaults:\n  - ../engine@engine: fsdp\n  - _self_\n",
        "a file of one of verl's config groups",
    ),
    ("x.yaml", "data: {path: x}\ncustom_reward_function: {path: null}\n", "verl.trainer.main_eval, which uses no GPU"),
    (
        "x.yaml",
        "trainer: {nnodes: 1}\ndata: {path: x}\nmodel: {path: Qwen/Qwen2.5-7B}\nrollout: {name: vllm}\nray_init: {num_cpus: 1}\n",
        "verl.trainer.main_generation, which oomplan does not read yet",
    ),
]


@pytest.mark.parametrize(("name", "text", "said"), NO_JOBS)
def test_what_is_no_job_is_told_for_what_it_is(name: str, text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    done = run(tmp_path, "estimate", name, "--gpu", "H100-80GB", "--framework-version", "0.9.0")
    assert done.returncode == 2
    assert said in done.stderr
    assert "a job: a command or script of verl" in done.stderr
    assert "AReaL" not in done.stderr
