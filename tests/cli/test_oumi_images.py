"""Images of Oumi's trainers: what a collator, a processor and a frozen tower mean."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_oumi import role, run

LINES = """model:
  model_name: "{model}"
  model_max_length: 4096
  torch_dtype_str: "bfloat16"
  attn_implementation: "sdpa"
data:
  train:
    collator_name: "{collator}"
    datasets:
      - dataset_name: "merve/vqav2-small"
training:
  trainer_type: "TRL_SFT"
  per_device_train_batch_size: 1
  enable_gradient_checkpointing: True
  gradient_checkpointing_kwargs:
    use_reentrant: False
"""
QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
PADDED = "vision_language_with_padding"


def written(folder: Path, model: str = QWEN, collator: str = PADDED, more: str = "") -> None:
    (folder / "train.yaml").write_text(LINES.format(model=model, collator=collator) + more)


def settings(folder: Path, *words: str) -> dict[str, Any]:
    return role("train.yaml", "--gpus", "1", *words, folder=folder)


def estimate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run("estimate", "train.yaml", "--gpus", "2", *words, folder=folder)


def test_an_image_is_as_large_as_a_sample_allows(tmp_path: Path) -> None:
    written(tmp_path)
    trainer = settings(tmp_path)
    assert (trainer["vision.images"], trainer["vision.width"], trainer["vision.height"]) == (1, 1792, 1792)  # 64 x 64 tokens
    done = estimate(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--image-size says what yours have" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("model", "said", "images", "width", "height"),
    [
        (QWEN, "640x480", 1, 644, 476),
        (QWEN, "30x20", 1, 84, 56),  # no fewer than four tokens
        ("Qwen/Qwen2-VL-2B-Instruct", "640x480", 1, 644, 476),
        ("Qwen/Qwen2-VL-2B-Instruct", "200x200", 1, 448, 448),  # no fewer than 256 tokens
        ("Qwen/Qwen3-VL-2B-Instruct", "640x480", 1, 640, 480),
        ("llava-hf/llava-1.5-7b-hf", "640x480", 1, 336, 336),
        ("OpenGVLab/InternVL3-1B-hf", "448x448", 1, 448, 448),
        ("OpenGVLab/InternVL3-1B-hf", "640x480", 13, 448, 448),  # 4 x 3 tiles, and the whole
    ],
)
def test_processors(tmp_path: Path, model: str, said: str, images: int, width: int, height: int) -> None:
    written(tmp_path, model)
    trainer = settings(tmp_path, "--image-size", said)
    assert (trainer["vision.images"], trainer["vision.width"], trainer["vision.height"]) == (images, width, height)


def test_text_alone(tmp_path: Path) -> None:
    written(tmp_path)
    assert not settings(tmp_path, "--image-size", "none").get("vision.images")
    written(tmp_path, collator="text_with_padding")
    assert not settings(tmp_path).get("vision.images")


@pytest.mark.parametrize(
    ("model", "frozen", "train"),
    [
        (QWEN, "model.visual", "none"),
        (QWEN, "visual", "all"),  # a name of transformers 4, which is passed over
        ("llava-hf/llava-1.5-7b-hf", "model.vision_tower", "projector"),
    ],
)
def test_frozen_towers(tmp_path: Path, model: str, frozen: str, train: str) -> None:
    written(tmp_path, model)
    text = (tmp_path / "train.yaml").read_text()
    (tmp_path / "train.yaml").write_text(text.replace("data:\n", f'  freeze_layers: ["{frozen}"]\ndata:\n'))
    assert settings(tmp_path).get("vision.train", "all") == train
    warned = run("read", "train.yaml", "--gpus", "2", folder=tmp_path)
    assert ("passes the name over" in warned.stdout + warned.stderr) == (frozen == "visual")


def test_adapters_freeze_the_tower(tmp_path: Path) -> None:
    written(tmp_path, more='  use_peft: True\npeft:\n  lora_target_modules: ["q_proj", "v_proj"]\n')
    assert settings(tmp_path)["vision.train"] == "none"
    assert estimate(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "not supported yet: cross attention to images (Llama 3.2 Vision)"),
        ("HuggingFaceTB/SmolVLM-Instruct", "not supported yet: the vision tower of SmolVLM (Idefics 3)"),
        ("microsoft/Phi-3-vision-128k-instruct", "not supported yet: the vision tower of Phi-3 vision, whose own code runs"),
        ("microsoft/Phi-4-multimodal-instruct", "not supported yet: the towers of Phi-4 multimodal, whose own code runs"),
        ("oumi-ai/Molmo-7B-D-0924", "not supported yet: the vision tower of Molmo, whose own code runs"),
        ("tiiuae/Falcon-H1-7B-Instruct", "not supported yet: attention and Mamba 2 side by side in a layer (Falcon-H1)"),
        ("tiiuae/Falcon-E-1B-Base", "not supported yet: layers of onebitllms (Falcon-E)"),
    ],
)
def test_models_that_are_not_described(tmp_path: Path, model: str, said: str) -> None:
    for collator in (PADDED, "text_with_padding"):
        written(tmp_path, model, collator)
        done = estimate(tmp_path)
        assert done.returncode == 2 and f"model.model_name: found '{model}': {said}" in done.stderr
    (tmp_path / "infer.yaml").write_text(f'model:\n  model_name: "{model}"\nengine: VLLM\n')
    served = run("estimate", "infer.yaml", "--gpus", "1", folder=tmp_path)
    assert served.returncode == 2 and f"model.model_name: found '{model}': {said}" in served.stderr


GEMMA = "google/gemma-3-4b-it"
UNITS = """fsdp:
  enable_fsdp: True
  sharding_strategy: "FULL_SHARD"
  auto_wrap_policy: "TRANSFORMER_BASED_WRAP"
"""


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (GEMMA, "Gemma3DecoderLayer"),
        ("google/gemma-4-E2B-it", "Gemma4TextDecoderLayer"),
        ("google/gemma-4-12B-it", "Gemma4UnifiedTextDecoderLayer"),
    ],
)
def test_text_alone_under_fsdp(tmp_path: Path, model: str, layer: str) -> None:
    named = f'{UNITS}  transformer_layer_cls: "{layer}"\n'
    written(tmp_path, model, "text_with_padding", named)
    done = estimate(tmp_path)
    assert done.returncode in (0, 1) and "trainer 0-1" in done.stdout, done.stderr
    adapted = named.replace("fsdp:", '  use_peft: True\npeft:\n  lora_target_modules: ["q_proj"]\nfsdp:', 1)
    written(tmp_path, model, "text_with_padding", adapted)
    trainer = role("train.yaml", "--gpus", "2", folder=tmp_path)
    assert trainer["precision.cast_parameters"] is False  # accelerate has no policy: adapters are multiplied in fp32


@pytest.mark.parametrize("named", ["", '  transformer_layer_cls: "Gemma3DecoderLayer,SiglipEncoderLayer"\n'])
def test_units_of_a_tower(tmp_path: Path, named: str) -> None:
    written(tmp_path, GEMMA, "text_with_padding", UNITS + named)
    done = estimate(tmp_path)
    assert done.returncode == 2 and "fsdp.transformer_layer_cls: found" in done.stderr
    assert "not supported yet: blocks of a tower that are units of FSDP" in done.stderr


def test_images_under_fsdp(tmp_path: Path) -> None:
    units = UNITS + '  transformer_layer_cls: "Qwen2_5_VLDecoderLayer"\n'
    written(tmp_path, more=units)
    done = estimate(tmp_path, "--image-size", "280x280")
    assert done.returncode in (0, 1) and "trainer 0-1" in done.stdout, done.stderr
    written(tmp_path, more=units + "  use_orig_params: False\n")
    done = estimate(tmp_path, "--image-size", "280x280")
    assert done.returncode == 2 and "fsdp.use_orig_params: found" in done.stderr
    assert "the tower has no parameters of its own then" in done.stderr
    written(tmp_path, GEMMA, more=UNITS + '  transformer_layer_cls: "Gemma3DecoderLayer"\n')
    done = estimate(tmp_path)
    assert done.returncode == 2 and "not supported yet: this vision tower under this engine" in done.stderr


def test_releases_before_transformers_5(tmp_path: Path) -> None:
    written(tmp_path)
    done = estimate(tmp_path, "--framework-version", "0.4.2")
    assert done.returncode == 2 and "not supported yet: towers of older releases of transformers" in done.stderr
