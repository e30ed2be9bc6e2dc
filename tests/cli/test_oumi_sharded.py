"""Oumi under FSDP: adapters, packed bases and mixed precision, as accelerate makes them of its variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_oumi import EXAMPLES, role, run

ADAPTERS = 'peft:\n  lora_target_modules: ["q_proj", "v_proj"]\n{}training:\n  use_peft: True\n'
PACKED = '  q_lora: True\n  bnb_4bit_quant_type: "nf4"\n  bnb_4bit_quant_storage: "bfloat16"\n'


def changed(folder: Path, *changes: tuple[str, str]) -> None:
    text = (EXAMPLES / "sft_8b.yaml").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "x.yaml").write_text(text)


def trainer(folder: Path, *changes: tuple[str, str]) -> dict[str, Any]:
    changed(folder, *changes)
    return role("x.yaml", "--gpus", "4", folder=folder)


def test_adapters_that_are_gathered_ahead(tmp_path: Path) -> None:
    ahead = ("fsdp:\n", "fsdp:\n  forward_prefetch: True\n")
    made = trainer(tmp_path, ("training:\n", ADAPTERS.format("")), ahead)
    assert made["forward_prefetch"] is True and made["use_orig_params"] is False
    assert made["lora.format"] == "fp32" and made["precision.cast_parameters"] is False
    for command in ("estimate", "explain", "advise", "search"):
        done = run(command, "x.yaml", "--gpus", "4", folder=tmp_path)
        assert done.returncode in (0, 1) and not done.stderr.count("not supported"), (command, done.stderr)


def test_a_packed_base_has_one_format(tmp_path: Path) -> None:
    """src/oumi/train.py casts what prepare_model_for_kbit_training made fp32 back to the model's format."""
    made = trainer(tmp_path, ("training:\n", ADAPTERS.format(PACKED)))
    assert made["lora.base"] == "nf4" and made["lora.format"] == "storage" and made["lora.prepare_kbit"] is False
    alone = trainer(tmp_path, ("training:\n", ADAPTERS.format(PACKED)), ("enable_fsdp: True", "enable_fsdp: False"))
    assert alone["lora.prepare_kbit"] is True
    mixed = trainer(tmp_path, ("training:\n", ADAPTERS.format(PACKED)), ("fsdp:\n", "fsdp:\n  mixed_precision: bf16\n"))
    assert mixed["lora.format"] == "fp32" and mixed["precision.storage"] == "bf16" and mixed["autocast"] is True


def test_mixed_precision_trains_in_32_bits(tmp_path: Path) -> None:
    policy = ("fsdp:\n", "fsdp:\n  mixed_precision: bf16\n")
    made = trainer(tmp_path, policy)
    assert made["precision.storage"] == "fp32" and made["precision.compute"] == made["precision.reduce"] == "bf16"
    assert made["autocast"] is True and made["precision.cast_parameters"] is True
    half = (("training:\n", "training:\n  mixed_precision_dtype: FP16\n"), ('"bfloat16"', '"float32"'))
    made = trainer(tmp_path, policy, *half)  # the trainer's own wins
    assert made["precision.compute"] == made["precision.autocast"] == "fp16"
    made = trainer(tmp_path, *half, ("enable_fsdp: True", "enable_fsdp: False"))
    assert made["precision.compute"] == "fp32" and made["precision.autocast"] == "fp16"


def test_excluded_modules_are_one_expression(tmp_path: Path) -> None:
    made = trainer(tmp_path, ("training:\n", ADAPTERS.format('  lora_exclude_modules: [".*vision.*", ".*audio.*"]\n')))
    assert made["lora.exclude"] == "(.*vision.*)|(.*audio.*)"


def test_text_beside_a_tower(tmp_path: Path) -> None:
    """The root has a tower that no batch reaches, and the optimizer states for it where all is trained."""
    gemma = (('"meta-llama/Llama-3.1-8B-Instruct"', '"google/gemma-3-4b-it"'),)
    made = trainer(tmp_path, *gemma)
    assert made["engine"] == "fsdp1"
    done = run("estimate", "x.yaml", "--gpus", "4", folder=tmp_path)
    assert done.returncode == 0 and "not supported" not in done.stderr, done.stderr


def test_a_checkpoint_in_four_bits_becomes_sixteen(tmp_path: Path) -> None:
    packed = '  model_kwargs:\n    quantization_config:\n      quant_method: "mxfp4"\n'
    changes = [("model:\n", "model:\n" + packed), ("training:\n", ADAPTERS.format(""))]
    made = trainer(tmp_path, *changes)
    assert made["precision.storage"] == "bf16" and made["lora.base"] == "full"
    changed(tmp_path, *changes, ("enable_fsdp: True", "enable_fsdp: False"))
    done = run("estimate", "x.yaml", "--gpus", "4", folder=tmp_path)
    assert done.returncode == 2 and "dequantised while it is loaded on one GPU or under DDP" in done.stderr


def test_states_in_eight_bits_of_pieces(tmp_path: Path) -> None:
    """bitsandbytes takes each piece of a parameter for a tensor: a quarter of the states, and embeddings as they are."""
    made = trainer(tmp_path, ('optimizer: "adamw_torch_fused"', 'optimizer: "paged_adamw_8bit"'))
    assert made["optimizer"] == "paged_adamw_8bit" and made["use_orig_params"] is True
    done = run("estimate", "x.yaml", "--gpus", "4", folder=tmp_path)
    assert done.returncode in (0, 1) and "not supported" not in done.stderr, done.stderr
