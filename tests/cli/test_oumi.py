"""Oumi's files, its launcher's jobs and its commands: what they mean, what is estimated, and what Oumi itself refuses."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_broken_verl import told

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
EXAMPLES = ROOT / "examples" / "oumi"
BROKEN = ROOT / "tests" / "data" / "broken_oumi.jsonl"


def run(*arguments: str, folder: Path = EXAMPLES) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


def facts(*arguments: str, folder: Path = EXAMPLES) -> dict[str, Any]:
    done = run("read", *arguments, "--facts", folder=folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def values(node: dict[str, Any]) -> dict[str, Any]:
    return {key: fact["v"] for key, fact in node.items()}


def role(*arguments: str, folder: Path = EXAMPLES) -> dict[str, Any]:
    """Settings of the only role."""
    done = run("read", "--json", *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    (only,) = json.loads(done.stdout)["roles"]
    return dict(only["settings"])


def test_a_file_by_itself() -> None:
    told_facts = facts("sft_8b.yaml", "--gpus", "16")
    assert told_facts["framework_version"] == "0.8+" and not told_facts["refusals"]
    trainer = values(told_facts["roles"]["trainer"])
    assert trainer["engine"] == "fsdp1" and trainer["sharding"] == "FULL_SHARD" and trainer["shard_group"] == 16
    assert trainer["sequences_per_gpu"] == 2 and trainer["optimizer"] == "adamw_torch_fused"
    assert trainer["recompute_by"] == "accelerate FSDP activation checkpointing"
    assert told_facts["roles"]["trainer"]["compile"]["o"] == "default"
    assert values(told_facts["cluster"]) == {"nodes": 2, "gpus_per_node": 8, "gpu": None}
    missing = run("estimate", "sft_8b.yaml")
    assert missing.returncode == 2 and "expected --gpus N: no key of Oumi's file says it" in missing.stderr


def test_a_job_of_the_launcher() -> None:
    told_facts = facts("job.yaml")
    assert values(told_facts["cluster"]) == {"nodes": 1, "gpus_per_node": 4, "gpu": "A100-80GB"}
    assert told_facts["roles"]["trainer"]["gpus"]["v"] == 4
    done = run("estimate", "job.yaml")
    assert done.returncode == 0 and "trainer 0-3 (4 x A100-80GB)" in done.stdout
    beside = run("estimate", str(EXAMPLES / "job.yaml"), folder=ROOT)  # what it names lies beside it
    assert beside.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    eight = run("estimate", "job.yaml", "--gpus", "8")
    assert "trainer 0-7 (8 x A100-80GB)" in eight.stdout


@pytest.mark.parametrize(
    ("command", "engine", "layout"),
    [
        ("torchrun --nproc-per-node=4 -m oumi train -c sft_8b.yaml", "fsdp1", "d4"),
        ("torchrun --nnodes 2 --nproc_per_node 8 -m oumi train -c sft_8b.yaml", "fsdp1", "d16"),
        ("accelerate launch --num_processes 2 -m oumi train -c sft_8b.yaml", "fsdp1", "d2"),
        ("torchrun --nproc-per-node=4 -m oumi train -c sft_8b.yaml --fsdp.enable_fsdp false", "ddp", "d4"),
        ("oumi train -c sft_8b.yaml --fsdp.enable_fsdp=false", "single", "d1"),
    ],
)
def test_commands(command: str, engine: str, layout: str) -> None:
    trainer = role("--", *command.split())
    assert trainer["engine"] == engine and trainer["layout"] == layout


def test_arguments_win_over_the_file() -> None:
    command = "torchrun --nproc-per-node=4 -m oumi train -c sft_8b.yaml --training.per_device_train_batch_size 1"
    trainer = role("--", *command.split(), "--model.model_max_length=512", "--training.use_peft", "true")
    assert trainer["sequences_per_micro_batch"] == 1 and trainer["sequence_tokens"] == 512
    assert trainer["lora.rank"] == 8
    nothing = run("check", "--", *command.split()[:-1])
    assert nothing.returncode == 2 and "--training.per_device_train_batch_size without a value" in nothing.stderr


def test_what_trainers_set_by_themselves() -> None:
    command = "torchrun --nproc-per-node=2 -m oumi train -c sft_8b.yaml --fsdp.enable_fsdp false --training.use_peft true --peft.q_lora true"
    newest = role("--", *command.split())
    assert newest["reentrant"] is False and newest["lora.format"] == "storage" and newest["head"] == "trl_sft_1_3"
    silent = [*command.split(), "--training.gradient_checkpointing_kwargs", "null"]
    assert run("check", "--", *silent).returncode == 2  # Oumi has it as a map
    older = role("--framework-version", "0.4.2", "--", *command.split())
    assert older["lora.format"] == "fp32" and older["head"] == "trl_sft" and older["transformers"] == "4.57.1"
    alone = role("--", *command.split(), "--training.trainer_type", "HF", "--data.train.pack", "true")
    assert alone["lora.format"] == "fp32" and alone["head"] == "hf_loss"


def test_checkpoints_enter_again_unless_told(tmp_path: Path) -> None:
    text = (EXAMPLES / "sft_8b.yaml").read_text().replace("  gradient_checkpointing_kwargs:\n    use_reentrant: False\n", "")
    (tmp_path / "x.yaml").write_text(text)
    assert role("x.yaml", "--gpus", "2", folder=tmp_path)["reentrant"] is False  # accelerate's, under FSDP
    (tmp_path / "x.yaml").write_text(text.replace("enable_fsdp: True", "enable_fsdp: False"))
    assert role("x.yaml", "--gpus", "2", folder=tmp_path)["reentrant"] is True


def test_interpolations_are_texts(tmp_path: Path) -> None:
    text = (EXAMPLES / "sft_8b.yaml").read_text()
    (tmp_path / "x.yaml").write_text(text.replace('"output/llama8b.fft"', "${NOBODY:-sets}/32_768"))
    assert not facts("x.yaml", "--gpus", "4", folder=tmp_path)["refusals"]
    (tmp_path / "x.yaml").write_text(text.replace("4096", "32_768"))
    assert facts("x.yaml", "--gpus", "4", folder=tmp_path)["roles"]["trainer"]["max_total_length"]["v"] == 32768


def test_advice_and_search_speak_of_the_file() -> None:
    advice = run("advise", "sft_8b.yaml", "--gpus", "2", "--gpu", "A100-40GB", "--json")
    assert advice.returncode == 1
    remedies = json.loads(advice.stdout)["remedies"]
    keys = {remedy["key"] for remedy in remedies}
    assert {"model.enable_liger_kernel", "fsdp.cpu_offload", "training.per_device_train_batch_size"} <= keys
    first = remedies[0]
    assert all(word.startswith("--") for word in first["overrides"])
    again = run("advise", "sft_8b.yaml", "--gpus", "2", "--gpu", "A100-40GB", "--diff", "1")
    assert again.stdout.startswith("--- ") and "sft_8b.yaml" in again.stdout
    found = run("search", "sft_8b.yaml", "--gpus", "8")
    assert found.returncode == 0 and "configurations judged" in found.stdout


def test_a_search_takes_what_no_key_says() -> None:
    words = ("search", "sft_8b.yaml", "training.trainer_type=HF", "--gpus", "8", "--keep", "1")
    asked = run(*words)
    assert asked.returncode == 2 and "expected --sequence-tokens N" in asked.stderr
    short, long = (json.loads(run(*words, "--sequence-tokens", n, "--json").stdout) for n in ("512", "1024"))
    room = [found["as_it_stands"]["estimate"]["gpus"][0]["headroom_bytes"] for found in (short, long)]
    assert room[0] > room[1]
    beside = run("search", "--model", "qwen2.5-7b", "--gpus", "8", "--sequence-tokens", "2048")
    assert beside.returncode == 2 and "--sequence-tokens: found together with --model" in beside.stderr


@pytest.mark.parametrize(
    ("engine", "said"), [("OPENAI", "the engine runs elsewhere"), ("SGLANG", "a server that was started before")]
)
def test_engines_of_inference(tmp_path: Path, engine: str, said: str) -> None:
    (tmp_path / "infer.yaml").write_text(f'model:\n  model_name: "Qwen/Qwen3-8B"\n  model_max_length: 8192\nengine: {engine}\n')
    done = run("estimate", "infer.yaml", "--gpus", "2", folder=tmp_path)
    assert done.returncode == 2 and said in done.stderr
    (tmp_path / "infer.yaml").write_text('model:\n  model_name: "Qwen/Qwen3-8B"\n  model_max_length: 8192\nengine: VLLM\n')
    server = role("infer.yaml", "--gpus", "2", folder=tmp_path)
    assert server["layout"] == "t2" and server["gpu_memory_utilization"] == 0.9 and server["enforce_eager"] is True


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    """Rows of tests/data/broken_oumi.jsonl change examples/oumi/sft_8b.yaml; OOMPLAN_UPDATE_CASES=1 writes the lines anew."""
    example = (EXAMPLES / "sft_8b.yaml").read_text()
    rows = [json.loads(line) for line in BROKEN.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) >= 40
    cases = []
    for row in rows:
        text = example
        for before, after in row["changes"]:
            assert before in text, (row["id"], before)
            text = text.replace(before, after)
        command = ["torchrun", "--nproc-per-node=4", "-m", "oumi", "train", "-c", "train.yaml", *row.get("words", [])]
        cases.append({"release": row.get("release"), "files": {"train.yaml": text}, "command": command})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda i: told(cases[i], tmp_path / str(i)), range(len(rows))))
    accepted = [row["id"] for row, (status, _) in zip(rows, answers) if status != 2]
    assert not accepted, f"no error: {accepted}"
    if os.environ.get("OOMPLAN_UPDATE_CASES"):
        new = [{**row, "said": said} for row, (_, said) in zip(rows, answers)]
        BROKEN.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in new))
        return
    wrong = [f"{row['id']}:\n  {chr(10).join(said)}" for row, (_, said) in zip(rows, answers) if said != row["said"]]
    if wrong:
        pytest.fail("\n".join(wrong))


def guide(*words: str) -> list[dict[str, Any]]:
    done = run("advise", *words, "--guide", "--json")
    assert done.returncode in (0, 1), done.stderr
    return list(json.loads(done.stdout)["points"])


def worst(*words: str) -> int:
    answer = json.loads(run("estimate", *words, "--json").stdout)
    return int(max(phase["capacity_needed_bytes"] for gpu in answer["gpus"] for phase in gpu["phases"]))


def test_the_guide_has_nineteen_points_in_its_order() -> None:
    told = guide("sft_8b.yaml", "--gpus", "4", "--gpu", "A100-40GB")
    assert list(dict.fromkeys(point["section"] for point in told)) == ["1. training", "2. model", "3. adapters", "4. FSDP"]
    assert [sum(point["section"][0] == number for point in told) for number in "1234"] == [8, 6, 1, 4]
    for point in told:
        assert point["why"] and (point["overrides"] or point["gain_bytes"] == 0)
    said = {point["text"]: point for point in told}
    assert said["gradient checkpointing"]["why"] == "it is so already"
    assert said["Liger's kernels"]["overrides"] == ["--model.enable_liger_kernel=true"]


@pytest.mark.parametrize("file", ["sft_8b.yaml", "grpo_verl.yaml"])
def test_every_gain_of_the_guide_is_that_of_the_changed_command(file: str) -> None:
    asked = ["--gpus", "4"] if file == "sft_8b.yaml" else []
    before = worst(file, *asked)
    changing = [point for point in guide(file, *asked) if point["overrides"]]
    assert len(changing) >= 5
    for point in changing:
        words = [word.removeprefix("--") for word in point["overrides"]]
        assert before - worst(file, *words, *asked) == point["gain_bytes"], point


def test_points_of_the_guide_that_do_nothing_say_why(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text('model:\n  model_name: "Qwen/Qwen3-8B"\ntraining:\n  trainer_type: TRL_SFT\n')
    done = run("advise", "one.yaml", "--gpus", "1", "--guide", "--json", folder=tmp_path)
    said = {point["text"]: point["why"] for point in json.loads(done.stdout)["points"]}
    assert said["FSDP with sharding_strategy FULL_SHARD"] == "there is one GPU: nobody to share with"
    assert said["no forward prefetch"] == "fsdp.enable_fsdp is off"
    assert said["ring attention"].startswith("Oumi has none")
