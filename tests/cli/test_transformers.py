"""Commands and files of TRL and Transformers, and the files of accelerate and DeepSpeed beside them: what they mean, what is estimated, and what
the trainers themselves refuse."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_broken_verl import told

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
EXAMPLES = ROOT / "examples" / "transformers"
BROKEN = ROOT / "tests" / "data" / "broken_transformers.jsonl"
MODEL = "--model_name_or_path Qwen/Qwen2.5-1.5B"
SFT = f"trl sft {MODEL} --dataset_name x"


def run(*arguments: str, folder: Path = EXAMPLES) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


def read(*arguments: str, folder: Path = EXAMPLES) -> dict[str, Any]:
    done = run("read", "--json", *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def role(*arguments: str, folder: Path = EXAMPLES) -> dict[str, Any]:
    """Settings of the only role."""
    (only,) = read(*arguments, folder=folder)["roles"]
    return dict(only["settings"])


def of_command(command: str, *options: str, folder: Path = EXAMPLES) -> dict[str, Any]:
    return role(*options, "--", *shlex.split(command), folder=folder)


def test_a_file_of_arguments() -> None:
    trainer = role("sft_8b.yaml", "--gpus", "8")
    assert trainer["engine"] == "ddp" and trainer["layout"] == "d8" and trainer["head"] == "trl_sft_1_3"
    assert trainer["sequences_per_micro_batch"] == 2 and trainer["micro_batches"] == 4 and trainer["sequence_tokens"] == 4096
    assert trainer["autocast"] is True and trainer["precision.storage"] == "bf16"  # SFTConfig's own mixed precision
    assert trainer["recompute"] == "full" and trainer["reentrant"] is False and trainer["find_unused_parameters"] is False
    missing = run("estimate", "sft_8b.yaml")
    assert missing.returncode == 2 and "--gpus: found no number of GPUs" in missing.stderr
    by_trl = of_command("trl sft --config sft_8b.yaml --num_processes 8")
    assert by_trl == trainer


def test_arguments_as_json(tmp_path: Path) -> None:
    """TrainingArguments.to_dict() with the model's name: what Python hands over."""
    arguments = {
        "output_dir": "out",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "bf16": True,
        "gradient_checkpointing": False,
        "learning_rate": 5e-5,
        "fsdp": [],
        "fsdp_config": {"min_num_params": 0, "xla": False},
        "deepspeed": None,
        "optim": "adafactor",
        "_n_gpu": 1,
        "model_name_or_path": "Qwen/Qwen2.5-1.5B",
        "dtype": "float32",
    }
    (tmp_path / "args.json").write_text(json.dumps(arguments))
    trainer = role("args.json", "--gpus", "2", "--sequence-tokens", "512", folder=tmp_path)
    assert trainer["head"] == "hf_loss" and trainer["optimizer"] == "adafactor" and trainer["precision.storage"] == "fp32"
    assert trainer["autocast"] is True and trainer["find_unused_parameters"] is True and trainer["sequence_tokens"] == 512
    (tmp_path / "args.json").write_text(json.dumps({**arguments, "trainer": "sft"}, indent=1))
    assert role("args.json", "--gpus", "2", folder=tmp_path)["head"] == "trl_sft_1_3"
    asked = run("estimate", "args.json", "--gpus", "2", "trainer=hf", folder=tmp_path)
    assert asked.returncode == 2 and "no argument caps the samples of this script" in asked.stderr


@pytest.mark.parametrize(
    ("command", "engine", "layout", "storage"),
    [
        (f"{SFT} --num_processes 1", "single", "d1", "fp32"),
        (f"{SFT} --num_processes 4 --dtype bfloat16", "ddp", "d4", "bf16"),
        (f"{SFT} --accelerate_config fsdp1 --dtype bfloat16", "fsdp1", "d8", "fp32"),
        (f"{SFT} --accelerate_config fsdp2 --num_processes 2", "fsdp2", "d2", "fp32"),
        (f"{SFT} --accelerate_config zero2 --num_machines 2 --num_processes 16", "deepspeed", "d16", "bf16"),
        (f"accelerate launch --config_file fsdp.yaml sft.py {MODEL} --max_length 512", "fsdp1", "d8", "fp32"),
        (
            f"accelerate launch --config_file fsdp.yaml --num_processes 4 --fsdp_version 2 sft.py {MODEL} --max_length 512",
            "fsdp2",
            "d4",
            "fp32",
        ),
        (f"accelerate launch --config_file fsdp.yaml --multi_gpu sft.py {MODEL} --max_length 512", "ddp", "d8", "fp32"),
        (f"torchrun --nproc_per_node 4 run_clm.py {MODEL} --block_size 512 --bf16", "ddp", "d4", "bf16"),
        (f"torchrun --nnodes 2 --nproc-per-node=8 run_clm.py {MODEL} --fsdp 'full_shard auto_wrap'", "fsdp2", "d16", "bf16"),
        (f"deepspeed --num_gpus 2 run_clm.py {MODEL} --bf16 --deepspeed zero3.json", "deepspeed", "d2", "bf16"),
        (f"deepspeed --include localhost:0,1,2 run_clm.py {MODEL} --bf16 --deepspeed zero3.json", "deepspeed", "d3", "bf16"),
        (f"python3 run_clm.py {MODEL} --per_device_train_batch_size 1", "single", "d1", "bf16"),
        (f"python3 -m torch.distributed.run --nproc_per_node=2 sft.py {MODEL} --max_length 64", "ddp", "d2", "fp32"),
    ],
)
def test_commands(command: str, engine: str, layout: str, storage: str) -> None:
    if " sft.py " in command and "--per_device" not in command:
        command += " --per_device_train_batch_size 2"
    trainer = of_command(command)
    assert (trainer["engine"], trainer["layout"], trainer["precision.storage"]) == (engine, layout, storage)


def test_a_script_is_followed(tmp_path: Path) -> None:
    whole = read("run.sh")
    (only,) = whole["roles"]
    trainer = only["settings"]
    assert whole["settings"]["gpus"] == "16 x H100-80GB" and whole["settings"]["gpus_per_node"] == 8
    assert trainer["engine"] == "deepspeed" and trainer["zero.stage"] == 3 and trainer["sequences_per_micro_batch"] == 2
    assert role("run.sh", "--set", "BATCH=4")["sequences_per_micro_batch"] == 4
    text = (EXAMPLES / "run.sh").read_text().replace("srun torchrun", "cat > zero3.json <<X\n{}\nX\nsrun torchrun")
    text = text.replace("{}", '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}')
    (tmp_path / "made.sh").write_text(text)
    assert role("made.sh", folder=tmp_path)["zero.stage"] == 2  # a file that the script writes itself


def test_auto_is_filled_as_transformers_fills_it() -> None:
    trainer = of_command(f"torchrun --nproc_per_node 8 run_clm.py {MODEL} --bf16 --deepspeed zero3.json")
    hidden = 1536  # transformers/integrations/deepspeed.py: trainer_config_finalize
    assert trainer["zero.reduce_bucket"] == hidden * hidden
    assert trainer["zero.prefetch_bucket"] == int(0.9 * hidden * hidden)
    assert trainer["zero.persistence_threshold"] == 10 * hidden
    assert trainer["zero.sub_group"] == 1000000000 and trainer["zero.overlap_comm"] is True


def test_releases() -> None:
    command = f"{SFT} --num_processes 1"
    assert of_command(command)["head"] == "trl_sft_1_3"
    assert of_command(command, "--framework-version", "trl 1.2.0")["head"] == "trl_sft"
    older = of_command(f"{SFT} --num_processes 1 --max_seq_length 2048")  # 0.19 had it last
    assert older["transformers"] == "4.53.3" and older["sequence_tokens"] == 2048 and older["recompute"] == "none"
    by_transformers = of_command(command, "--framework-version", "4.57.1")
    assert by_transformers["transformers"] == "4.57.1"
    newest = run("estimate", "--framework-version", "1.9.0", "--", *command.split())
    assert newest.returncode == 2 and "TRL's loss in chunks" in newest.stderr
    assert of_command(f"{command} --loss_type nll", "--framework-version", "1.9.0")["head"] == "trl_sft"
    # without a word Transformers 4 enters checkpoints again, 5 does not; TRL says it from 0.27 on
    clm = f"python3 run_clm.py {MODEL} --gradient_checkpointing --per_device_train_batch_size 1"
    assert of_command(clm, "--framework-version", "4.57.1")["reentrant"] is True
    assert of_command(clm, "--framework-version", "5.8.0")["reentrant"] is False
    assert of_command(command, "--framework-version", "trl 0.24.0")["reentrant"] is True
    assert of_command(command, "--framework-version", "trl 0.28.0")["reentrant"] is False


def test_adapters() -> None:
    trainer = of_command(f"{SFT} --num_processes 1 --use_peft --lora_target_modules q_proj v_proj --dtype bfloat16")
    assert trainer["lora.rank"] == 16 and trainer["lora.alpha"] == 32 and trainer["lora.targets"] == "[q_proj, v_proj]"
    assert trainer["lora.format"] == "fp32" and trainer["lora.dropout"] == 0.05
    packed = f"{SFT} --num_processes 1 --use_peft --load_in_4bit --dtype bfloat16 --lora_target_modules all-linear"
    newer = of_command(packed)
    assert newer["lora.base"] == "nf4" and newer["lora.format"] == "storage" and newer["lora.prepare_kbit"] is False
    older = of_command(packed, "--framework-version", "trl 0.24.0")
    assert older["lora.format"] == "fp32" and older["lora.prepare_kbit"] is True
    zero = of_command(f"{SFT} --use_peft --accelerate_config zero3 --no_gradient_checkpointing")
    assert zero["lora.format"] == "storage"


def test_units_of_fsdp2() -> None:
    """accelerate 1.14 puts an untied embedding, and the output layer with the norm, into units of their own."""
    untied = "--model_name_or_path Qwen/Qwen2.5-7B --loss_type nll"
    newer = of_command(f"trl sft {untied} --accelerate_config fsdp2", "--framework-version", "1.9.0")
    assert newer["wrap_head"] is True and newer["wrap_embedding"] is True and newer["reshard_last"] is False
    older = of_command(f"trl sft {untied} --accelerate_config fsdp2", "--framework-version", "1.0.0")
    assert older["wrap_head"] is False and older["precision.output"] == "bf16"


def test_samples_in_one_row() -> None:
    command = f"{SFT} --num_processes 1 --packing --attn_implementation flash_attention_2 --per_device_train_batch_size 3"
    trainer = of_command(command)
    assert trainer["tokens_per_micro_batch"] == 3072 and trainer["sequence_tokens"] == 1024
    wrapped = of_command(f"{command} --packing_strategy wrapped")
    assert wrapped["sequences_per_micro_batch"] == 3 and wrapped["padding_mask"] is False


def test_arguments_of_a_script_of_ones_own() -> None:
    command = f"torchrun --nproc_per_node 2 train.py {MODEL} --per_device_train_batch_size 2 --data_path d"
    done = run("estimate", "--sequence-tokens", "256", "--", *command.split())
    assert done.returncode == 0 and "data_path" in done.stdout + done.stderr
    lora = run("estimate", "--sequence-tokens", "256", "--", *command.split(), "--lora_rank", "8")
    assert lora.returncode == 2 and "an argument of the script's own" in lora.stderr


def test_advice_speaks_of_arguments() -> None:
    advice = run("advise", "sft_8b.yaml", "--gpus", "8", "--json")
    assert advice.returncode == 1
    remedies = json.loads(advice.stdout)["remedies"]
    assert {"use_liger_kernel", "per_device_train_batch_size"} <= {remedy["key"] for remedy in remedies}
    assert all(word.startswith("--") for remedy in remedies for word in remedy["overrides"])
    again = run("advise", "sft_8b.yaml", "--gpus", "8", "--diff", "1")
    assert again.stdout.startswith("--- sft_8b.yaml") and "\n+use_liger_kernel: true" in again.stdout
    found = run("search", "sft_8b.yaml", "--gpus", "8")
    assert "configurations judged" in found.stdout
    script = run("advise", "run.sh", "--gpu", "A100-40GB")
    assert "max_live_parameters stands in a file of its own" in " ".join(script.stdout.split())


def test_advice_inside_of_a_dict(tmp_path: Path) -> None:
    zero = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    arguments = {"trainer": "hf", "model_name_or_path": "Qwen/Qwen2.5-7B", "output_dir": "o", "bf16": True, "deepspeed": zero}
    (tmp_path / "args.json").write_text(json.dumps({**arguments, "per_device_train_batch_size": 4, "learning_rate": 1e-5}))
    done = run("advise", "args.json", "--gpus", "8", "--sequence-tokens", "8192", "--json", folder=tmp_path)
    words = [word for remedy in json.loads(done.stdout)["remedies"] for word in remedy["overrides"]]
    told_words = [json.loads(word.split("=", 1)[1]) for word in words if word.startswith("--deepspeed=")]
    assert any("offload_optimizer" in one["zero_optimization"] or one["zero_optimization"]["stage"] == 3 for one in told_words)


def test_facts() -> None:
    command = f"accelerate launch --config_file fsdp.yaml sft.py {MODEL} --per_device_train_batch_size 2 --max_length 512"
    done = run("read", "--facts", "--", *command.split())
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    trainer = {key: fact["v"] for key, fact in facts["roles"]["trainer"].items()}
    assert facts["framework"] == "trl" and trainer["engine"] == "fsdp1" and trainer["sharding"] == "FULL_SHARD"
    assert trainer["shard_group"] == 8 and trainer["max_total_length"] == 512 and trainer["mixed_precision"] == "bf16"
    assert not facts["refusals"]


def test_files_of_others_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("model_name_or_path: a\nstage: sft\nfinetuning_type: lora\nlearning_rate: 1e-5\n")
    done = run("estimate", "x.yaml", folder=tmp_path)
    assert done.returncode == 2 and "LLaMA-Factory" in done.stderr


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    """Rows of tests/data/broken_transformers.jsonl change a command or its files; OOMPLAN_UPDATE_CASES=1 writes the lines anew."""
    rows = [json.loads(line) for line in BROKEN.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) >= 40
    files = {path.name: path.read_text() for path in EXAMPLES.iterdir()}
    cases = []
    for row in rows:
        mine = dict(files)
        for name, before, after in row.get("changes", []):
            assert before in mine[name], (row["id"], before)
            mine[name] = mine[name].replace(before, after)
        cases.append({"release": row.get("release"), "files": mine, "command": shlex.split(row["command"])})
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
