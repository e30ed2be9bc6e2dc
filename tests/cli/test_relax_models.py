"""Models that Megatron-Bridge makes under Relax: linear attention, images, frozen towers, blocks that predict more tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_relax import COLOCATED, changed, fully_async, job, notes
from test_relax_roles import OF_PPO, PPO
from test_slime import run

VISION = ("Qwen/Qwen3-4B\n", "Qwen/Qwen3-VL-4B-Instruct\n")
IMAGES = """   --colocate --multimodal-keys '{"image": "images"}' \\\n"""
SHAPE = [
    ("--hf-checkpoint Qwen/Qwen3-4B\n", "--hf-checkpoint Qwen/Qwen3.5-9B\n"),
    ("--num-layers 36", "--num-layers 32 --attention-output-gate --use-gated-attention --untie-embeddings-and-output-weights"),
    ("--hidden-size 2560", "--hidden-size 4096"),
    ("--ffn-hidden-size 9728", "--ffn-hidden-size 12288"),
    ("--num-attention-heads 32", "--num-attention-heads 16"),
    ("--num-query-groups 8", "--num-query-groups 4"),
    ("--vocab-size 151936", "--vocab-size 248320"),
]

GEMMA = [
    ("--hf-checkpoint Qwen/Qwen3-4B\n", "--hf-checkpoint google/gemma-4-31B-it\n"),
    ("--num-layers 36", "--num-layers 60"),
    ("--hidden-size 2560", "--hidden-size 5376"),
    ("--ffn-hidden-size 9728", "--ffn-hidden-size 21504"),
    ("--num-query-groups 8", "--num-query-groups 16 --no-rope-fusion"),
    ("--kv-channels 128", "--kv-channels 256"),
    ("--vocab-size 151936", "--vocab-size 262144"),
    ("--rotary-base 1000000", "--rotary-base 10000"),
    ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 8"),
    ("--rollout-num-gpus-per-engine 2", "--rollout-num-gpus-per-engine 8"),
]


def levels(path: str, *options: str) -> dict[str, int]:
    """Bytes that the phases need."""
    done = run("estimate", "--json", path, *options)
    assert done.returncode in (0, 1), done.stderr
    return {phase["phase"]: phase["device_bytes"] for gpu in json.loads(done.stdout)["gpus"] for phase in gpu["phases"]}


def actor(path: str, *options: str) -> dict[str, Any]:
    return dict(job(path, *options)["actor"])


def test_the_bridge_says_what_arguments_do_not(tmp_path: Path) -> None:
    assert actor(changed(tmp_path))["models_by"] == "megatron-bridge"
    assert actor(changed(tmp_path))["activation_fusion"] is False
    raw = actor(changed(tmp_path, ("--megatron-to-hf-mode bridge", "--megatron-to-hf-mode raw")))
    assert raw["activation_fusion"] is True and raw.get("models_by", "mbridge") == "mbridge"


def test_linear_attention_needs_no_specification(tmp_path: Path) -> None:
    path = changed(tmp_path, *SHAPE)
    assert levels(path)["actor.backward"] > 0
    assert "samples are taken to be text: the tower does not run" in notes(path)
    shared = changed(
        tmp_path, *SHAPE, (COLOCATED, "   --colocate --context-parallel-size 2 --calculate-per-token-loss \\\n"), name="shared.sh"
    )
    assert levels(shared)["actor.backward"] > 0


def test_a_sample_has_an_image_as_large_as_a_prompt_allows(tmp_path: Path) -> None:
    path = changed(tmp_path, VISION, (COLOCATED, IMAGES))
    assert "a sample is taken to have one image as large as a prompt of" in notes(path)
    large, small, none = levels(path), levels(path, "--image-size", "448x336"), levels(path, "--image-size", "none")
    text = levels(changed(tmp_path, VISION))
    assert none == text
    assert text["actor.forward"] < small["actor.forward"] < large["actor.forward"]
    capped = changed(tmp_path, VISION, (COLOCATED, IMAGES.replace("--colocate", "--colocate --image-max-token-num 256")))
    assert actor(capped)["vision"]["width"] == 16 * 32


def test_a_frozen_tower_has_neither_gradients_nor_states(tmp_path: Path) -> None:
    whole = changed(tmp_path, VISION, (COLOCATED, IMAGES), name="whole.sh")
    body = changed(
        tmp_path, VISION, (COLOCATED, IMAGES.replace("--colocate", "--colocate --freeze-vision-model")), name="body.sh"
    )
    flags = "--colocate --freeze-vision-model --freeze-vision-projection"
    tower = changed(tmp_path, VISION, (COLOCATED, IMAGES.replace("--colocate", flags)), name="tower.sh")
    assert [actor(path)["vision"]["train"] for path in (whole, body, tower)] == ["all", "projector", "none"]
    for phase in ("actor.load", "actor.backward", "actor.optimizer"):
        assert levels(whole)[phase] > levels(body)[phase] > levels(tower)[phase]


PATTERNS = [
    (r"--freeze-params-name-list '^(vision_model|visual)\.(?!merger\.)'", "projector"),
    (r"--freeze-params-name-list vision_model", "none"),
    (r"--only-train-params-name-list ^language_model merger", "projector"),
    (r"--only-train-params-name-list ^language_model", "none"),
    (r"--freeze-params-name-list nothing --freeze-vision-model", "projector"),
    (r"--only-train-params-name-list . --freeze-vision-model", "all"),
]


@pytest.mark.parametrize(("flags", "trained"), PATTERNS)
def test_patterns_of_names_freeze_the_tower(tmp_path: Path, flags: str, trained: str) -> None:
    path = changed(tmp_path, *SHAPE, (COLOCATED, f"   --colocate {flags} \\\n"))
    assert actor(path)["vision"]["train"] == trained


def test_roles_apart_see_the_images_too(tmp_path: Path) -> None:
    path = fully_async(tmp_path, VISION, flags="""--multimodal-keys '{"image": "images"}'""")
    read = job(path)
    assert read["ref"]["models_by"] == read["actor_fwd"]["models_by"] == "megatron-bridge"
    assert read["ref"]["vision"]["images"] >= 1


def test_blocks_that_predict_more_tokens_are_trained(tmp_path: Path) -> None:
    text = changed(tmp_path, *SHAPE)
    flags = "   --colocate --mtp-num-layers 1 --enable-mtp-training \\\n"
    trained = levels(changed(tmp_path, *SHAPE, (COLOCATED, flags), name="mtp.sh"))
    idle = levels(changed(tmp_path, *SHAPE, (COLOCATED, flags.replace(" --enable-mtp-training", "")), name="idle.sh"))
    plain = levels(text)
    assert plain["actor.load"] < idle["actor.load"] == trained["actor.load"]
    assert plain["actor.backward"] < idle["actor.backward"] < trained["actor.backward"]


def test_blocks_are_trained_as_the_command_says(tmp_path: Path) -> None:
    flags = "   --colocate --mtp-num-layers 1 --enable-mtp-training \\\n"
    apart = changed(tmp_path, *SHAPE, (COLOCATED, flags), name="apart.sh")
    fused = changed(
        tmp_path, *SHAPE, (COLOCATED, flags.replace("-training", "-training --cross-entropy-loss-fusion")), name="fused.sh"
    )
    reaches = changed(
        tmp_path, *SHAPE, (COLOCATED, flags.replace("-training", "-training --mtp-detach-paths none")), name="none.sh"
    )
    assert actor(fused)["mtp_fused_loss"] is True
    assert actor(reaches)["mtp_detached"] is False
    assert levels(apart)["actor.load"] == levels(fused)["actor.load"] == levels(reaches)["actor.load"]


def test_a_search_finds_layouts_with_blocks_that_predict(tmp_path: Path) -> None:
    flags = "   --colocate --mtp-num-layers 1 --enable-mtp-training \\\n"
    found = json.loads(run("search", changed(tmp_path, *SHAPE, (COLOCATED, flags)), "--keep", "1", "--json").stdout)
    assert len(found["best"]) == 1


def test_replayed_routes_lie_on_the_host(tmp_path: Path) -> None:
    replayed = changed(tmp_path, (COLOCATED, "   --colocate --use-rollout-routing-replay \\\n"), name="replayed.sh")
    assert levels(replayed) == levels(changed(tmp_path))


def test_a_critic_keeps_the_tower(tmp_path: Path) -> None:
    whole = levels(changed(tmp_path, *SHAPE, OF_PPO, *PPO))
    assert 0 < whole["critic.backward"] < whole["actor.backward"]  # no words to choose from


def test_two_frames_of_a_video_are_an_image(tmp_path: Path) -> None:
    flags = '--colocate --multimodal-keys \'{"video": "videos"}\' --video-max-token-num 128'
    path = changed(tmp_path, VISION, (COLOCATED, COLOCATED.replace("--colocate", flags)))
    vision = actor(path)["vision"]
    assert (vision["width"], vision["height"]) == (16 * 32, 8 * 32)
    assert "a sample is taken to have a video of 16 frames, 512 x 256 pixels" in notes(path)
    short = changed(
        tmp_path, VISION, (COLOCATED, COLOCATED.replace("--colocate", flags + " --video-fps-max-frames 4")), name="s.sh"
    )
    assert actor(short)["vision"]["images"] * 4 == vision["images"]
    assert levels(short)["actor.forward"] < levels(path)["actor.forward"]


def test_ranks_that_share_images_out_have_the_tower_whole(tmp_path: Path) -> None:
    served = ("--rollout-num-gpus-per-engine 2", "--rollout-num-gpus-per-engine 4")
    cut = levels(changed(tmp_path, VISION, served))
    path = changed(tmp_path, VISION, served, (COLOCATED, "   --colocate --sglang-mm-enable-dp-encoder \\\n"), name="whole.sh")
    assert job(path)["rollout"]["whole_tower"] is True
    assert levels(path)["rollout.load"] > cut["rollout.load"]


def test_gemma_4_is_trained_as_text(tmp_path: Path) -> None:
    path = changed(tmp_path, *GEMMA)
    assert "the trainer has the text of Gemma 4 alone" in notes(path)
    assert job(path)["rollout"]["model"] == "google/gemma-4-31B-it"
    assert job(path)["actor"]["model"] == "google/gemma-4-31B-it:text"
    # of an eighth of what Gemma4DenseProvider makes: 30.85 billion parameters in bf16
    assert (
        7.0
        < json.loads(run("estimate", "--json", path).stdout)["gpus"][0]["phases"][0]["by_category_bytes"]["weights"] / 2**30
        < 7.3
    )
