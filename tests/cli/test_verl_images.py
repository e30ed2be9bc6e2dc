"""Vision-language models under verl: what images are taken, what the tower does, what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_verl import ARR, FIXED, command, fullest, run

IMAGES = [*FIXED[:1], f"{ARR}.model.path=Qwen/Qwen2.5-VL-7B-Instruct", *FIXED[2:], f"{ARR}.model.use_remove_padding=True"]


def trained(*words: str, release: str = "0.9.0", more: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """The actor of the job, and the notes of its estimate."""
    asked = ["--framework-version", release, "--gpu", "H100-80GB"]
    done = run("estimate", *asked, *more, "--json", *command(*IMAGES, *words))
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    notes = " ".join(note["text"] for note in told["notes"])
    return {"bytes": fullest(done), **told}, notes


def test_images_are_as_large_as_a_prompt_allows_or_as_is_said() -> None:
    """A data set or a key says that samples have images, an option how large they are; the tower is trained in any case."""
    text, said = trained()
    assert "samples are taken to be text" in said
    assert "verl itself fails at text beside this tower" in said
    full, said = trained("data.image_key=images")
    assert "one image as large as a prompt of 1024 tokens allows: 896 x 896 pixels" in said
    assert trained("data.train_files=/data/geo3k/train.parquet")[0]["bytes"] == full["bytes"]
    small, said = trained("data.image_key=images", more=("--image-size", "448x336"))
    assert "as large as a prompt" not in said
    assert trained(more=("--image-size", "448x336"))[0]["bytes"] == small["bytes"]
    assert text["bytes"] < small["bytes"] < full["bytes"]
    assert trained("data.image_key=images", more=("--image-size", "none"))[0]["bytes"] == text["bytes"]


def test_frozen_tower_is_frozen_where_verl_reads_the_key() -> None:
    key = [f"{ARR}.actor.freeze_vision_tower=True", "data.image_key=images"]
    old, _ = trained(*key, release="0.6.1")
    assert old["bytes"] < trained("data.image_key=images", release="0.6.1")[0]["bytes"]
    new, said = trained(*key, release="0.9.0")
    assert "from 0.8 on verl does not read freeze_vision_tower" in said
    assert new["bytes"] == trained("data.image_key=images", release="0.9.0")[0]["bytes"]


MEGATRON = [
    "--config-name=ppo_megatron_trainer.yaml",
    *IMAGES[:-1],
    *(f"{ARR}.{role}.megatron.tensor_model_parallel_size=2" for role in ("actor", "ref")),
    f"{ARR}.actor.use_kl_loss=True",
    f"{ARR}.ref.log_prob_micro_batch_size_per_gpu=32",
]
QWEN3 = f"{ARR}.model.path=Qwen/Qwen3-VL-8B-Instruct"


def under_megatron(*words: str, release: str = "0.8.0", more: tuple[str, ...] = ()) -> tuple[dict[str, int], str]:
    """The most that the first stage needs in every phase, and the notes."""
    asked = ["--framework-version", release, "--gpu", "H100-80GB", *more]
    done = run("estimate", *asked, "--json", *command(*MEGATRON, *words))
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    most: dict[str, int] = {}
    for phase in (phase for group in told["gpus"] for phase in group["phases"]):
        most[phase["phase"]] = max(most.get(phase["phase"], 0), phase["capacity_needed_bytes"])
    return most, " ".join(note["text"] for note in told["notes"])


def test_tower_of_transformers_is_whole_on_every_rank() -> None:
    """Megatron-Bridge's Qwen2.5-VL, of padded sequences."""
    words = [
        f"{ARR}.model.use_remove_padding=False",
        *(f"{ARR}.{key}=1" for key in ("actor.ppo_micro_batch_size_per_gpu", "ref.log_prob_micro_batch_size_per_gpu")),
    ]
    size = ("--image-size", "448x448")
    bridge, _ = under_megatron(*words, release="0.9.0", more=size)
    vanilla = [f"{ARR}.{role}.megatron.vanilla_mbridge=True" for role in ("actor", "ref")]
    split, _ = under_megatron(*words, *vanilla, release="0.9.0", more=size)
    tower = 676_550_656  # of 32 blocks, patches and the merger; half of it is on a rank of mbridge's
    assert bridge["actor.load"] - split["actor.load"] > 0.9 * (2 + 4) * tower / 2


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-VL-30B-A3B-Instruct"])
def test_tower_under_megatron(model: str) -> None:
    """Its parameters are part of the first stage; it runs where images come, of the reference too."""
    path = f"{ARR}.model.path={model}"
    text, said = under_megatron(path)
    assert "samples are taken to be text: the tower does not run" in said
    small, said = under_megatron(path, more=("--image-size", "224x224"))
    large, _ = under_megatron(path, more=("--image-size", "672x672"))
    for phase in ("actor.forward", "actor.backward"):
        assert text[phase] < small[phase] < large[phase], phase
    assert text["actor.load"] == large["actor.load"]


def test_recomputation_of_a_tower_under_megatron_follows_the_language_model() -> None:
    again = [
        f"+{ARR}.actor.megatron.override_transformer_config.{word}"
        for word in ("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1")
    ]
    size = ("--image-size", "672x672")
    kept, dropped = under_megatron(QWEN3, more=size)[0], under_megatron(QWEN3, *again, more=size)[0]
    assert kept["actor.backward"] > dropped["actor.backward"]
    assert kept["actor.log_probs"] == dropped["actor.log_probs"]


def test_frozen_tower_is_trained_under_megatron() -> None:
    plain, _ = under_megatron(QWEN3, release="0.7.1")
    frozen, said = under_megatron(QWEN3, f"{ARR}.actor.freeze_vision_tower=True", release="0.7.1")
    assert frozen == plain
    assert "verl's Megatron engine does not read freeze_vision_tower" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "verl itself fails: Megatron-Bridge does not pack the embeddings of Qwen2.5-VL"),
        (
            [
                "algorithm.adv_estimator=gae",
                f"critic.model.path={QWEN3.split('=')[1]}",
                QWEN3,
                "critic.ppo_micro_batch_size_per_gpu=1",
            ],
            "not supported yet: values of a model with a vision tower",
        ),
    ],
)
def test_towers_under_megatron_that_are_refused_by_name(words: list[str], said: str) -> None:
    done = run("estimate", "--framework-version", "0.9.0", "--gpu", "H100-80GB", *command(*MEGATRON, *words))
    assert done.returncode == 2, done.stdout
    assert said in done.stderr


def test_experts_of_megatron_bridge_are_frozen() -> None:
    """Its provider freezes language model and tower, and verl leaves it so: gradients and optimizer have the mergers alone."""
    experts, size = f"{ARR}.model.path=Qwen/Qwen3-VL-30B-A3B-Instruct", ("--image-size", "448x448")
    frozen, said = under_megatron(experts, release="0.9.0", more=size)
    assert "nothing else is trained" in said
    trained, said = under_megatron(experts, release="0.8.0", more=size)
    assert "nothing else is trained" not in said
    plain, said = under_megatron(experts, release="0.9.0")  # whatever the command says of images, samples have some
    assert "a sample is taken to have one image as large as a prompt of 1024 tokens allows" in said
    assert plain["actor.load"] == frozen["actor.load"]
    none = run("estimate", "--framework-version", "0.9.0", "--image-size", "none", *command(*MEGATRON, experts))
    assert none.returncode == 2
    assert "of text nothing has a gradient, and verl fails" in none.stderr
    assert frozen["actor.load"] < 0.4 * trained["actor.load"]
    assert frozen["actor.backward"] < trained["actor.backward"]


def test_dense_qwen3_vl_is_answered_as_megatron_bridge_makes_it() -> None:
    assert "actor.backward" in under_megatron(QWEN3, release="0.9.0")[0]


def test_image_column_of_a_text_model_is_no_image() -> None:
    words = ["estimate", "--json", "--framework-version", "0.9.0", "--gpu", "H100-80GB"]
    plain, column = (run(*words, *command(*FIXED, *more)) for more in ([], ["data.image_key=images"]))
    assert fullest(plain) == fullest(column)


@pytest.mark.parametrize(
    ("size", "found"),
    [("640", "'640'"), ("0x4", "'0x4'"), ("640x", "'640x'"), ("99999x4", "'99999x4'"), ("1e3x4", "'1e3x4'")],
)
def test_sizes_of_images_that_are_none_are_told(size: str, found: str) -> None:
    done = run("estimate", "--image-size", size, *command(*IMAGES))
    assert done.returncode == 2
    assert (
        f"--image-size: found {found}, expected width and height in pixels up to 16384, such as 640x480, or none" in done.stderr
    )


def test_sizes_of_images_are_for_jobs_of_verl() -> None:
    done = run("check", "examples/areal/grpo_7b.yaml", "--image-size", "640x480")
    assert done.returncode == 2
    assert "a job file says it as vision.height and vision.width" in done.stderr


def test_adapters_are_kept_out_of_the_tower_by_an_expression() -> None:
    lora = [f"{ARR}.model.lora_rank=32", f"{ARR}.model.target_modules=all-linear", f"{ARR}.rollout.load_format=safetensors"]
    spared, _ = trained(*lora, f"{ARR}.model.exclude_modules='.*visual.*'", "data.image_key=images")
    whole, _ = trained(*lora, "data.image_key=images")
    assert spared["bytes"] < whole["bytes"]
    asked = ["--framework-version", "0.9.0", "--gpu", "H100-80GB"]
    done = run("estimate", *asked, *command(*IMAGES, *lora, f"{ARR}.model.exclude_modules='.*lm_head'", "data.image_key=images"))
    assert done.returncode == 2
    assert "an expression that matches all of the tower's modules" in done.stderr


TOWER_JOB = """oomplan: 1
framework: verl 0.7.0
gpus: 8 x H100-80GB
trainer:
  model: Qwen/Qwen2.5-VL-7B-Instruct
  engine: fsdp1
  layout: d8
  kernels: hf_flash
  head: verl_flash_ce
  micro_batches: 2
  tokens_per_micro_batch: 4096
  sequence_tokens: 2048
  vision: {images: 2, height: 448, width: 448, train: none}
"""


@pytest.mark.parametrize("prefetch", ["pre", "post", "none"])
@pytest.mark.parametrize("recompute", ["full", "none"])
@pytest.mark.parametrize(
    "frozen", ["  use_orig_params: true\n", "  lora: {rank: 16}\n", "  lora: {rank: 16, exclude: .*visual.*}\n"]
)
def test_units_of_a_frozen_tower_are_gathered_before_they_are_freed(
    prefetch: str, recompute: str, frozen: str, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(TOWER_JOB + frozen + f"  backward_prefetch: {prefetch}\n  recompute: {recompute}\n", encoding="utf-8")
    done = run("estimate", "--quick", str(job))
    assert done.returncode == 0, done.stderr


def test_offload_of_activations_beside_a_tower_is_refused_with_text_too() -> None:
    asked = ["estimate", "--framework-version", "0.9.0", "--gpu", "H100-80GB"]
    for more in ([], ["data.image_key=images"]):
        done = run(*asked, *command(*IMAGES, f"{ARR}.model.enable_activation_offload=True", *more))
        assert done.returncode == 2, done.stdout
        assert "offload of activations beside a vision tower" in done.stderr


def test_fused_kernels_that_gather_for_themselves_are_not_called_a_failure() -> None:
    """Qwen3-VL's forward pass in verl gathers the output layer's weight, Qwen2.5-VL's does not. Stored in fp32 it fails, too."""
    fused = [f"{ARR}.actor.strategy=fsdp2", f"{ARR}.model.use_fused_kernels=True"]
    fused.append(f"{ARR}.model.fused_kernel_options.impl_backend=torch")
    bf16 = [f"{ARR}.actor.fsdp_config.model_dtype=bf16"]
    for model, more, why in (
        ("Qwen3-VL-8B-Instruct", bf16, "not supported yet: an output layer of FSDP2"),
        ("Qwen3-VL-8B-Instruct", [], "in backward they multiply it by hidden states in the compute format, and the run fails"),
        ("Qwen2.5-VL-7B-Instruct", bf16, "the run fails"),
    ):
        words = [word.replace("Qwen2.5-VL-7B-Instruct", model) for word in IMAGES]
        done = run("estimate", "--framework-version", "0.9.0", "--gpu", "H100-80GB", *command(*words, *fused, *more))
        assert done.returncode == 2, done.stdout
        assert why in done.stderr


def test_job_that_is_read_has_what_was_said_of_its_images() -> None:
    done = run("read", "--framework-version", "0.9.0", "--image-size", "640x480", *command(*IMAGES))
    assert done.returncode == 0, done.stderr
    assert "width: 640" in done.stdout
    assert "height: 480" in done.stdout


@pytest.mark.parametrize(("layers", "status"), [(0, (0, 1)), (1, (2,)), (24, (2,)), (25, (0, 1))])
def test_layers_that_are_computed_again_want_all_blocks_whose_features_they_get_to_be(
    layers: int, status: tuple[int, ...]
) -> None:
    """Megatron-Bridge's Qwen3-VL: features of blocks 8, 16 and 24 go to layers past their checkpoints' arguments."""
    at = f"+{ARR}.actor.megatron.override_transformer_config.recompute_"
    words = [
        *MEGATRON,
        f"{ARR}.model.path=Qwen/Qwen3-VL-8B-Instruct",
        f"{ARR}.actor.megatron.vanilla_mbridge=False",
        f"{at}granularity=full",
        f"{at}method=block",
        f"{at}num_layers={layers}",
    ]
    done = run("estimate", "--quick", "--framework-version", "0.9.0", "--image-size", "640x480", *command(*words))
    assert done.returncode in status, done.stderr
    if status == (2,):
        assert "with features of a tower's blocks that are not" in done.stderr
