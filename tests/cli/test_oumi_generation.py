"""Oumi's inference and evaluation files: generation by Transformers, lm-evaluation-harness, vLLM, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_broken_verl import told
from test_oumi import EXAMPLES, ROOT, role, run

BROKEN = ROOT / "tests" / "data" / "broken_oumi_inference.jsonl"
VLLM = {"engine: NATIVE": "engine: VLLM"}


def inference(folder: Path, changes: dict[str, str], example: str = "infer_8b.yaml", name: str = "x.yaml") -> str:
    text = (EXAMPLES / example).read_text()
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    (folder / name).write_text(text)
    return name


def test_layers_are_spread_over_the_gpus() -> None:
    settings = role("infer_8b.yaml", "--gpus", "4")
    assert settings["engine"] == "single" and settings["layout"] == "p4" and settings["head"] == "next_token"
    assert settings["sequence_tokens"] == 8192 and settings["sequences_per_micro_batch"] == 8
    assert settings["padding_mask"] is True and settings["kv_cache"] is False and settings["kernels"] == "hf_sdpa"
    assert settings["transformers"] == "5.9.0"  # the newest that Oumi takes
    assert role("infer_8b.yaml", "--framework-version", "0.6.0")["transformers"] == "4.57.1"
    done = run("estimate", "infer_8b.yaml", "--gpus", "4")
    # Transformers 5 leaves room for the table of tokens everywhere: 7, 12, 12 layers, and one beside the output layer
    assert "generator 0-2 (3 x H100-80GB)" in done.stdout and "generator 3 (1 x H100-80GB)" in done.stdout
    explained = run("explain", "infer_8b.yaml", "--gpus", "4")
    assert "generator.layer.mlp.down_proj.weight" in explained.stdout


@pytest.mark.parametrize(
    ("command", "layout"),
    [
        ("torchrun --nproc-per-node=4 -m oumi infer -c infer_8b.yaml", "d4"),  # every process has a copy
        ("oumi infer -c infer_8b.yaml", "d1"),
        ("accelerate launch --num_processes 2 -m oumi evaluate -c eval_8b.yaml", "d2"),
        ("oumi evaluate -c eval_8b.yaml", "d1"),
    ],
)
def test_processes(command: str, layout: str) -> None:
    assert role("--", *command.split())["layout"] == layout


def test_texts_are_scored_on_one_gpu_unless_sharded() -> None:
    alone = role("eval_8b.yaml", "--gpus", "4")
    assert alone["layout"] == "d1" and alone["head"] == "lm_eval" and alone["kv_cache"] is True and alone["padding_mask"] is False
    spread = role("--gpus", "4", "--", "oumi", "evaluate", "-c", "eval_8b.yaml", "--model.shard_for_eval", "true")
    assert spread["layout"] == "p4"
    done = run("estimate", "eval_8b.yaml")
    # two batches of log-probs and one of logits: 8 x 4096 x 128256 of two bytes each
    assert done.returncode == 0 and "logits              23.48 GiB" in done.stdout


@pytest.mark.parametrize(("texts", "status"), [(3, 0), (4, 1)])
def test_a_batch_that_ran_out_of_memory(tmp_path: Path, texts: int, status: int) -> None:
    """configs/recipes/llama3_1/evaluation/70b_eval.yaml of oumi-ai/oumi d8ed0777: three fit on four A100-40GB, four do not."""
    changes = {"8B-Instruct": "70B-Instruct", "batch_size: 8": f"batch_size: {texts}"}
    name = inference(tmp_path, {**changes, '"sdpa"': '"sdpa"\n  shard_for_eval: True'}, "eval_8b.yaml")
    done = run("estimate", name, "--gpus", "4", "--gpu", "A100-40GB", "--sequence-tokens", "2700", folder=tmp_path)
    assert done.returncode == status, done.stdout + done.stderr


def test_images_are_not_counted(tmp_path: Path) -> None:
    name = inference(tmp_path, {"meta-llama/Llama-3.1-8B-Instruct": "Qwen/Qwen2.5-VL-3B-Instruct"})
    done = run("estimate", name, folder=tmp_path)
    assert done.returncode == 0 and "prompts are counted as text alone" in " ".join(done.stdout.split())
    text = inference(tmp_path, {"meta-llama/Llama-3.1-8B-Instruct": "Qwen/Qwen2.5-VL-3B-Instruct:text"})
    assert "counted as text alone" not in run("estimate", text, folder=tmp_path).stdout


def test_a_cache(tmp_path: Path) -> None:
    name = inference(tmp_path, {"batch_size: 8": "batch_size: 8\n  use_cache: True"})
    settings = role(name, folder=tmp_path)
    assert settings["kv_cache"] is True
    job = json.loads(run("read", "--json", name, folder=tmp_path).stdout)
    assert job["settings"]["prompt_tokens"] == 8192 - 1024
    explained = run("explain", name, folder=tmp_path)
    assert "generator.layer.self_attn.cache.key" in explained.stdout


def test_batches_that_lm_eval_chooses(tmp_path: Path) -> None:
    name = inference(tmp_path, {"batch_size: 8": "batch_size: null"}, "eval_8b.yaml")
    done = run("estimate", name, folder=tmp_path)
    assert done.returncode == 0 and "half as many until they fit" in " ".join(done.stdout.split())
    assert role(name, folder=tmp_path)["sequences_per_micro_batch"] == 1


def test_advice(tmp_path: Path) -> None:
    advice = run("advise", "infer_8b.yaml", "--gpu", "A10G-24GB", "--json")
    keys = {remedy["key"] for remedy in json.loads(advice.stdout)["remedies"]}
    assert advice.returncode == 1 and "generation.batch_size" in keys
    mixture = inference(tmp_path, {"meta-llama/Llama-3.1-8B-Instruct": "Qwen/Qwen3-30B-A3B"})
    advice = run("advise", mixture, "--gpus", "4", "--json", folder=tmp_path)
    first = json.loads(advice.stdout)["remedies"][0]
    assert first["key"] == "generation.use_cache" and first["overrides"] == ["--generation.use_cache=true"]
    found = run("search", "infer_8b.yaml")
    assert found.returncode == 2 and "not supported yet: a search over generators" in found.stderr


def test_what_vllm_gets(tmp_path: Path) -> None:
    plain = role(inference(tmp_path, VLLM), "--gpus", "2", folder=tmp_path)
    assert plain["layout"] == "t2" and plain["gpu_memory_utilization"] == 0.9 and plain["enforce_eager"] is True
    words = "  model_kwargs:\n    load_in_4bit: True\n    max_num_seqs: 2\n\ngeneration"
    name = inference(tmp_path, {**VLLM, "\ngeneration": words})
    assert role(name, folder=tmp_path)["online_quantization"] == "bitsandbytes"
    done = run("estimate", name, folder=tmp_path)
    assert "Oumi does not hand it to vLLM" in done.stdout
    wide = inference(tmp_path, {**VLLM, '"bfloat16"': '"float32"'})
    assert role(wide, folder=tmp_path)["weights"] == "fp32"


def test_adapters_that_vllm_serves(tmp_path: Path) -> None:
    name = inference(tmp_path, {**VLLM, "\ngeneration": "  adapter_model: tuned\n\ngeneration"})
    assert run("estimate", name, folder=tmp_path).returncode == 2
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "adapter_config.json").write_text('{"r": 64}')
    settings = role(name, folder=tmp_path)
    assert settings["lora.slots"] == 1 and settings["lora.rank"] == 64
    (tmp_path / "tuned" / "adapter_config.json").write_text('{"r": 48}')
    odd = run("estimate", name, folder=tmp_path)
    assert odd.returncode == 2 and "vLLM takes no other" in odd.stderr


JUDGE = """judge_params:
  prompt_template: "{request}"
inference_config:
  model:
    model_name: "Qwen/Qwen3-8B"
    model_max_length: 4096
  engine: %s
"""
SYNTH = """strategy: GENERAL
strategy_params: {}
inference_config:
  model:
    model_name: "Qwen/Qwen3-8B"
    model_max_length: 4096
  engine: VLLM
"""


def test_judges_and_synthesis(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(JUDGE % "NATIVE")
    (tmp_path / "synth.yaml").write_text(SYNTH)
    words = "oumi judge dataset --config judge.yaml --input data.jsonl --raw --output=out.jsonl"
    assert role("--", *words.split(), folder=tmp_path)["head"] == "next_token"
    vllm = role("--", *words.split(), "--inference_config.engine", "VLLM", folder=tmp_path)
    assert vllm["engine"].startswith("vllm")
    for word in ("synth", "synthesize"):
        server = role("--", "oumi", word, "-c", "synth.yaml", "--output_path", "x.jsonl", folder=tmp_path)
        assert server["engine"].startswith("vllm")


def test_what_is_wrong_with_inference_is_said(tmp_path: Path) -> None:
    """Rows of the file change an example; OOMPLAN_UPDATE_CASES=1 writes the lines anew."""
    rows = [json.loads(line) for line in BROKEN.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) >= 15

    def answer(i: int) -> tuple[int, list[str]]:
        row = rows[i]
        text = (EXAMPLES / row["example"]).read_text()
        for before, after in row["changes"]:
            assert before in text, (row["id"], before)
            text = text.replace(before, after)
        command = ["oumi", "infer" if row["example"].startswith("infer") else "evaluate", "-c", "x.yaml", *row.get("words", [])]
        return told({"release": row.get("release"), "files": {"x.yaml": text}, "command": command}, tmp_path / str(i))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(answer, range(len(rows))))
    accepted = [row["id"] for row, (status, _) in zip(rows, answers) if status != 2]
    assert not accepted, f"no error: {accepted}"
    if os.environ.get("OOMPLAN_UPDATE_CASES"):
        new = [{**row, "said": said} for row, (_, said) in zip(rows, answers)]
        BROKEN.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in new))
        return
    wrong = [f"{row['id']}:\n  {chr(10).join(said)}" for row, (_, said) in zip(rows, answers) if said != row["said"]]
    if wrong:
        pytest.fail("\n".join(wrong))


GENERATOR = """oomplan: 1
gpus: 4 x H100-80GB
framework: torch
generator:
  model: llama3.1-8b
  precision: {storage: bf16}
  sequences_per_micro_batch: 4
  sequence_tokens: 2048
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("  engine: fsdp2\n", "a generator's processes share nothing"),
        ("  head: hf_loss\n", "a generator has no loss"),
        ("  layout: t4\n", "generators whose layers are split"),
        ("  autocast: true\n", "generators under autocast"),
        ("  kv_cache: true\n", "with kv_cache a prompt has a pass of its own"),
        ("  kernels: litgpt\n", "generator"),
    ],
)
def test_what_a_generator_is_not(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "job.yaml").write_text(GENERATOR + line)
    done = run("estimate", "job.yaml", folder=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    (tmp_path / "job.yaml").write_text(GENERATOR)
    assert run("estimate", "job.yaml", folder=tmp_path).returncode == 0


def test_a_trainer_has_no_generators_head(tmp_path: Path) -> None:
    text = GENERATOR.replace("generator:", "trainer:") + "  engine: ddp\n  layout: d4\n  head: next_token\n"
    (tmp_path / "job.yaml").write_text(text)
    done: subprocess.CompletedProcess[str] = run("estimate", "job.yaml", folder=tmp_path)
    assert done.returncode == 2 and "it is a generator's" in done.stderr
