"""slime's critics, servers and trainers alone, files that flags name, and checkpoints that are stored in other formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_slime import SCRIPT, changed, job, refused, run, told

PPO = ("--advantage-estimator grpo", "--advantage-estimator ppo")
SHARED = "   --colocate \\\n"


def test_a_critic_has_a_process_of_its_own_on_the_actors_gpus(tmp_path: Path) -> None:
    """One of both is paused while the other is at work. The head is a row of 2,560 columns beside the actor's model."""
    path = changed(tmp_path, PPO)
    read = job(path)
    assert (read["critic"]["beside"], read["critic"]["in_process"]) == ("actor", False)
    assert read["critic"]["offload"] == ["parameters", "optimizer"]
    answer = json.loads(run("estimate", "--json", path).stdout)
    phases = {p["phase"]: p["by_category_bytes"] for p in answer["gpus"][0]["phases"]}
    for kind in ("weights", "optimizer"):
        assert abs(phases["critic.optimizer"][kind] - phases["actor.optimizer"][kind]) < 2**20
    assert phases["critic.forward"].get("logits", 0) == 0


def test_a_critic_apart_from_the_servers_takes_turns_with_the_actor(tmp_path: Path) -> None:
    read = job(changed(tmp_path, PPO, (SHARED, "   --rollout-num-gpus 8 \\\n")))
    assert (read["actor"]["beside"], read["critic"]["beside"]) == ("none", "actor")
    assert read["actor"]["offload"] == ["parameters", "optimizer"]
    assert read["gpus"] == "16 x H100-80GB"


def test_servers_alone_are_servers(tmp_path: Path) -> None:
    read = job(changed(tmp_path, (SHARED, "   --colocate --debug-rollout-only \\\n")))
    assert read["server"]["layout"] == "d4t2"
    assert "actor" not in read and "rollout" not in read
    fewer = changed(tmp_path, (SHARED, "   --rollout-num-gpus 4 --debug-rollout-only \\\n"))
    assert job(fewer)["server"]["layout"] == "d2t2"


def test_kept_rollouts_need_no_servers(tmp_path: Path) -> None:
    read = job(changed(tmp_path, (SHARED, "   --load-debug-rollout-data kept.pt \\\n")))
    assert "rollout" not in read
    assert read["actor"]["layout"] == "d4t2"


GROUPS = """F=$(mktemp /tmp/groups_XXXXXX.yaml)
cat > "${F}" <<EOF
sglang:
  - name: default
    server_groups:
      - {worker_type: regular, num_gpus: 4, num_gpus_per_engine: 4, overrides: {mem_fraction_static: ${SHARE:-0.6}}}
      - {worker_type: regular, num_gpus: 4, num_gpus_per_engine: 4, overrides: {mem_fraction_static: ${SHARE:-0.6}}}
EOF
ray job submit"""


def test_groups_of_servers_that_are_alike_are_one(tmp_path: Path) -> None:
    """The script writes the file itself, under a name that mktemp gives."""
    path = changed(tmp_path, ("ray job submit", GROUPS), ('"$@"', "--sglang-config ${F}"))
    read = job(path)["rollout"]
    assert (read["layout"], read["mem_fraction_static"]) == ("d2t4", 0.6)
    assert job(path, "--set", "SHARE=0.5")["rollout"]["mem_fraction_static"] == 0.5


def test_a_custom_configuration_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "custom.yaml").write_text(
        "max_tokens_per_gpu: 4096\ntensor_model_parallel_size: 4\nsequence_parallel: false\nuse_kl_loss: false\n"
        "sglang_mem_fraction_static: 0.5\nmax_turns: 8\n"
    )
    path = changed(tmp_path, ('"$@"', f"--custom-config-path {tmp_path}/custom.yaml"))
    read = job(path)
    assert (read["actor"]["layout"], read["actor"]["sequence_parallel"]) == ("d2t4", False)
    assert read["rollout"]["mem_fraction_static"] == 0.5
    assert told(path, "roles.actor.micro_batch.tokens_per_gpu") == 4096
    assert told(path, "job.reference_needed") is False
    (tmp_path / "custom.yaml").unlink()
    assert "and are not read" in " ".join(run("estimate", path).stdout.split())


def test_arguments_of_a_role_that_take_no_memory_are_passed_over(tmp_path: Path) -> None:
    roles = "megatron:\n  - {name: default, role: critic, overrides: {lr: 1e-5, load: critic, kl_coef: 0.1}}\n"
    (tmp_path / "roles.yaml").write_text(roles)
    assert "critic" in job(changed(tmp_path, PPO, ('"$@"', f"--megatron-config-path {tmp_path}/roles.yaml")))


def test_samples_may_be_longer_than_the_flags_say(tmp_path: Path) -> None:
    """A sample longer than the budget goes alone, padded to a multiple of 2 x 128 tokens."""
    read = job(str(SCRIPT), "--sequence-tokens", "50000")
    assert read["actor"]["tokens_per_micro_batch"] == "49k"  # 50,176
    assert (read["prompt_tokens"], read["response_tokens"]) == ("1k", 48976)
    alone = changed(tmp_path, (SHARED, "   --loss-type sft_loss --debug-train-only \\\n"), ("   --use-kl-loss\n", ""))
    assert job(alone, "--sequence-tokens", "50000")["trainer"]["tokens_per_micro_batch"] == "49k"


MOE = (
    ("--num-layers 36", "--num-layers 48 --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-grouped-gemm"),
    ("   --hidden-size 2560", "   --hidden-size 2048 --untie-embeddings-and-output-weights"),
    ("--ffn-hidden-size 9728", "--ffn-hidden-size 6144 --moe-token-dispatcher-type alltoall"),
    ("--num-query-groups 8", "--num-query-groups 4"),
    ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 --expert-model-parallel-size 4"),
)
CHECKPOINT = "--hf-checkpoint Qwen/Qwen3-4B\n"


@pytest.mark.parametrize(
    ("folder", "taken", "weights"),
    [
        # billions of parameters: 30.53, of which 0.62 are tables, 0.01 routers and 28.99 experts
        ("Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", 2 * 30.53e9),
        ("Qwen3-30B-A3B-FP8/", "Qwen/Qwen3-30B-A3B-FP8", 2 * 0.64e9 + 29.89e9 * (1 + 4 / 128**2)),
        ("Qwen3-30B-A3B-INT4", "Qwen/Qwen3-30B-A3B:int4_experts_g128", 2 * 1.54e9 + 28.99e9 * (4 + 16 / 128) / 8),
    ],
)
def test_servers_have_the_format_of_the_checkpoint(tmp_path: Path, folder: str, taken: str, weights: float) -> None:
    """The trainer has the model in 16 bits whatever the checkpoint is stored in."""
    path = changed(tmp_path, *MOE, (CHECKPOINT, f"--hf-checkpoint /root/{folder}\n"))
    group = ("--set", "OPEN_TRAINING_INT4_GROUP_SIZE=128")
    assert job(path, *group)["model"] == taken
    phases = {p["phase"]: p for p in json.loads(run("estimate", "--json", path, *group).stdout)["gpus"][0]["phases"]}
    assert 2 * phases["rollout.generate"]["by_category_bytes"]["weights"] == pytest.approx(weights, rel=0.02)
    # an eighth of the experts (4 x 2), half of the rest, in 16 bits
    assert phases["actor.optimizer"]["by_category_bytes"]["weights"] == pytest.approx(2 * (28.99e9 / 8 + 1.54e9 / 2), rel=0.02)


COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"


@pytest.mark.parametrize(
    ("folder", "taken"),
    [
        (f"hub/models--Qwen--Qwen3-4B/snapshots/{COMMIT}", "Qwen/Qwen3-4B"),
        (f"Qwen3-4B-{COMMIT}", "Qwen/Qwen3-4B"),
        ("Qwen3-4B-Instruct/", "Qwen/Qwen3-4B-Instruct-2507"),
    ],
)
def test_a_folder_may_be_named_by_a_commit_or_for_short(tmp_path: Path, folder: str, taken: str) -> None:
    assert job(changed(tmp_path, (CHECKPOINT, f"--hf-checkpoint /root/{folder}\n")))["model"] == taken


def test_experts_that_learn_in_4_bits_keep_rounded_copies(tmp_path: Path) -> None:
    """In 48 layers, of 32 experts on a rank, whose 768 columns are split over 2: gate, up and down in 16 bits."""
    plain = changed(
        tmp_path,
        *MOE,
        (CHECKPOINT, "--hf-checkpoint Qwen/Qwen3-30B-A3B\n"),
        ("   --recompute-granularity full\n   --recompute-method uniform\n   --recompute-num-layers 1\n", ""),
    )

    def held(*options: str) -> dict[str, int]:
        done = run("estimate", "--json", plain, *options)
        assert done.returncode in (0, 1), done.stderr
        phases = {p["phase"]: p for p in json.loads(done.stdout)["gpus"][0]["phases"]}
        return {name: int(p["allocated_bytes"]) for name, p in phases.items()}

    before, after = held(), held("--set", "OPEN_TRAINING_INT4_FAKE_QAT_FLAG=1")
    one_layer = 32 * 3 * (768 // 2) * 2048 * 2
    # but for the placeholders of their gradients, two matrices, which nobody asks for
    placeholders = 3 * (768 // 2) * 2048 * 2
    assert after["actor.forward"] - before["actor.forward"] == pytest.approx(48 * one_layer - placeholders, rel=0.001)
    assert -placeholders <= after["actor.log_probs"] - before["actor.log_probs"] <= one_layer  # nothing is kept


def test_rounded_experts_beside_products_in_8_bits_are_refused(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        *MOE,
        (CHECKPOINT, "--hf-checkpoint Qwen/Qwen3-30B-A3B\n"),
        ("--attention-backend flash", "--attention-backend flash --fp8-format e4m3 --fp8-recipe blockwise"),
    )
    told = run("check", path, "--set", "OPEN_TRAINING_INT4_FAKE_QAT_FLAG=1").stderr
    assert "OPEN_TRAINING_INT4_FAKE_QAT_FLAG: found 1" in told


def test_a_model_may_be_given_in_place_of_a_folder(tmp_path: Path) -> None:
    path = changed(tmp_path, (CHECKPOINT, "--hf-checkpoint /root/tuned/by-us\n"))
    assert "--model NAME of oomplan takes the place of this flag" in refused(path)
    assert job(path, "--model", "Qwen/Qwen3-4B")["model"] == "Qwen/Qwen3-4B"


def test_servers_may_have_a_part_of_the_trainers_gpus(tmp_path: Path) -> None:
    """slime/utils/arguments.py: until 0.3.0 the number is replaced by the actor's."""
    path = changed(tmp_path, (SHARED, "   --colocate --rollout-num-gpus 4 \\\n"))
    read = job(path, "--framework-version", "0.3.1")
    assert (read["rollout"]["beside"], read["rollout"]["layout"], read["actor"]["beside"]) == ("actor", "d2t2", "none")
    told = json.loads(run("estimate", "--json", path, "--framework-version", "0.3.1").stdout)
    for group in told["gpus"]:
        phases = {p["phase"] for p in group["phases"]}
        assert ("rollout.generate" in phases) == (max(group["gpus"]) < 4)
        assert {"actor.forward", "actor.send_weights"} <= phases
    before = job(path, "--framework-version", "0.3.0")
    assert (before["rollout"]["layout"], before["actor"]["beside"]) == ("d4t2", "rollout")
