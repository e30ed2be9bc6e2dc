"""Relax's critics, judges and teachers, servers on a part of the trainer's GPUs and beside supervised training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_relax import COLOCATED, PENALTY, RESOURCE, changed, facts, fully_async, job, notes, refused
from test_slime import run

GIB = 1 << 30
VOCABULARY, HIDDEN = 151936, 5120
JUDGE = "--genrm-model-path Qwen/Qwen3-8B --genrm-num-gpus-per-engine 2"
TEACHER = "--use-opd --opd-type sglang --teacher-hf-checkpoint Qwen/Qwen3-8B"
PPO = (("--advantage-estimator grpo", "--advantage-estimator ppo"), (PENALTY, ""))
OF_PPO = (RESOURCE, '{"actor": [1, 8], "critic": [1, 8], "rollout": [1, 8]}')


def with_flags(tmp_path: Path, resource: str, flags: str, *changes: tuple[str, str]) -> str:
    """The example with other roles, and more flags behind --colocate."""
    return changed(tmp_path, (RESOURCE, resource), (COLOCATED, f"   --colocate {flags} \\\n"), *changes)


def split(role: str) -> str:
    return f'{{"actor": [1, 8], "rollout": [1, 4], "{role}": [1, 4]}}'


def estimated(*words: str) -> dict[str, Any]:
    done = run("estimate", "--json", *words)
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def phases(group: dict[str, Any]) -> dict[str, int]:
    return {p["phase"]: p["capacity_needed_bytes"] for p in group["phases"]}


def order(group: dict[str, Any]) -> list[str]:
    return [p["phase"] for p in group["phases"]]


# ---- a generative reward model


def test_a_judge_that_shares_all_gpus_is_awake_while_responses_are_made(tmp_path: Path) -> None:
    """It starts last, when the rollout's servers sleep, and both sleep before the trainer wakes."""
    path = with_flags(
        tmp_path,
        '{"actor": [1, 8], "rollout": [1, 8], "genrm": [1, 8]}',
        f"{JUDGE} --genrm-engine-config '{{\"mem_fraction_static\": 0.3}}'",
        ("--sglang-mem-fraction-static 0.7", "--sglang-mem-fraction-static 0.4"),
    )
    read = job(path)["reward"]
    assert (read["model"], read["layout"], read["beside"], read["first_gpu"]) == ("Qwen/Qwen3-8B", "d4t2", "actor", 0)
    assert (read["sleep"], read["mem_fraction_static"], read["pooling"]) == (1, 0.3, False)
    group = estimated(path)["gpus"][0]
    turns, most = order(group), phases(group)
    assert turns.index("actor.load") < turns.index("rollout.start") < turns.index("reward.start")
    assert turns.index("rollout.generate") < turns.index("reward.generate") < turns.index("actor.forward")
    assert most["reward.start"] < 0.4 * 80 * GIB < 0.65 * 80 * GIB < most["reward.generate"]
    alone = phases(estimated(changed(tmp_path, name="alone.sh"))["gpus"][0])
    assert 0 < most["actor.forward"] - alone["actor.forward"] < 4 * GIB  # contexts and communicators of the sleeping one


def test_a_judge_may_have_a_part_of_the_trainers_gpus(tmp_path: Path) -> None:
    path = with_flags(tmp_path, split("genrm"), JUDGE)
    read = job(path)
    assert (read["rollout"]["beside"], read["rollout"]["layout"], read["rollout"]["first_gpu"]) == ("actor", "d2t2", 0)
    assert (read["reward"]["layout"], read["reward"]["first_gpu"], read["actor"]["beside"]) == ("d2t2", 4, "none")
    for group in estimated(path)["gpus"]:
        has_judge, has_rollout = ("reward.start" in order(group), "rollout.start" in order(group))
        assert has_judge != has_rollout == (min(group["gpus"]) < 4)
        assert "actor.forward" in order(group)


def test_a_judge_of_the_fully_asynchronous_mode_never_sleeps(tmp_path: Path) -> None:
    path = fully_async(tmp_path, ('"advantages": [1, 0]', '"advantages": [1, 0], "genrm": [1, 2]'), flags=JUDGE)
    read = job(path)
    assert (read["reward"]["beside"], read["reward"]["sleep"], read["reward"]["layout"]) == ("none", 0, "t2")
    assert facts(path)["job"]["gpus_used"]["v"] == 10
    told = estimated(path)
    own = next(g for g in told["gpus"] if "reward.start" in order(g))
    assert order(own) == ["reward.load", "reward.start", "reward.generate"]


def test_a_judge_has_the_rollouts_flags_but_its_degrees(tmp_path: Path) -> None:
    """relax/backends/sglang/sglang_engine.py: _compute_genrm_server_args."""
    path = with_flags(
        tmp_path,
        '{"actor": [1, 8], "rollout": [1, 8], "genrm": [1, 8]}',
        f"{JUDGE} --sglang-max-running-requests 64 --sglang-pp-size 2"
        ' --genrm-engine-config \'{"disable_cuda_graph": true, "max_context_len": 10240}\'',
    )
    read = job(path)["reward"]
    assert (read["max_running_requests"], read["enforce_eager"], read["layout"]) == (64, True, "d4t2")
    assert "--genrm-engine-config: no flag of SGLang" in " ".join(notes(path).split())


def test_a_judge_without_an_entry_in_the_resource_is_not_started(tmp_path: Path) -> None:
    path = with_flags(tmp_path, RESOURCE, JUDGE)
    assert "reward" not in job(path)
    assert "Relax starts no generative reward model" in " ".join(notes(path).split())


# ---- teachers


def test_a_teacher_beside_the_rollout_starts_in_front_of_the_trainer(tmp_path: Path) -> None:
    flags = (
        f"{TEACHER} --teacher-num-gpus-per-engine 2 --teacher-sglang-mem-fraction-static 0.5 --teacher-sglang-disable-cuda-graph"
    )
    path = with_flags(tmp_path, split("teacher"), flags)
    read = job(path)
    teacher = read["teacher"]
    assert (teacher["model"], teacher["layout"], teacher["beside"], teacher["first_gpu"]) == ("Qwen/Qwen3-8B", "d2t2", "actor", 4)
    assert (teacher["mem_fraction_static"], teacher["enforce_eager"]) == (0.5, True)
    # relax/utils/opd/opd_utils.py: maybe_enable_sglang_weights_cpu_backup, of 2026.08
    assert (teacher["sleep"], read["rollout"]["sleep"]) == (1, 1)
    before = job(path, "--framework-version", "2026.07")
    assert (before["teacher"]["sleep"], before["rollout"]["sleep"]) == (2, 2)
    group = next(g for g in estimated(path)["gpus"] if "teacher.start" in order(g))
    turns = order(group)
    assert turns.index("teacher.start") < turns.index("teacher.sleep") < turns.index("actor.load")
    assert turns.index("teacher.generate") < turns.index("actor.forward")
    assert "teacher.receive_weights" not in turns


def test_the_rows_of_a_pass_have_logits_in_fp32_twice(tmp_path: Path) -> None:
    """8 bytes for each of 8,192 tokens and 151,936 words, beside what the pass itself left: its hidden states, twice."""
    path = with_flags(
        tmp_path, split("teacher"), f"{TEACHER} --teacher-sglang-chunked-prefill-size 8192 --teacher-sglang-disable-cuda-graph"
    )
    group = next(g for g in estimated(path)["gpus"] if "teacher.start" in order(g))
    held = next(p for p in group["phases"] if p["phase"] == "teacher.generate")["by_category_bytes"]
    assert held["logits"] == pytest.approx(8 * 8192 * VOCABULARY + 8192 * 4096 * 2, rel=0.01)


def test_two_teachers_share_their_gpus_out(tmp_path: Path) -> None:
    routes = '{"math": "/root/Qwen3-8B-math-teacher", "code": "Qwen/Qwen3-4B"}'
    flags = f"--use-opd --opd-type sglang --opd-teacher-routes '{routes}' --teacher-num-gpus-per-engine 2"
    path = with_flags(tmp_path, split("teacher"), flags)
    read = job(path)
    assert [read[name]["model"] for name in ("teacher", "teacher_2")] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B"]
    assert [read[name]["first_gpu"] for name in ("teacher", "teacher_2")] == [4, 6]
    assert [read[name]["layout"] for name in ("teacher", "teacher_2")] == ["t2", "t2"]
    assert "taken as Qwen/Qwen3-8B, with whose name it begins" in " ".join(notes(path).split())
    seats = [
        (group["gpus"], "teacher.start" in order(group), "teacher_2.start" in order(group)) for group in estimated(path)["gpus"]
    ]
    assert ([4, 5], True, False) in seats and ([6, 7], False, True) in seats


def test_a_tuned_teacher_in_another_format_is_not_guessed(tmp_path: Path) -> None:
    path = with_flags(tmp_path, split("teacher"), TEACHER.replace("Qwen/Qwen3-8B", "/root/Qwen3-8B-mine-AWQ"))
    assert "--teacher-hf-checkpoint: found '/root/Qwen3-8B-mine-AWQ'" in refused(path)


def test_a_teacher_of_the_fully_asynchronous_mode_has_gpus_of_its_own(tmp_path: Path) -> None:
    path = fully_async(tmp_path, ('"advantages": [1, 0]', '"advantages": [1, 0], "teacher": [1, 2]'), flags=TEACHER)
    read = job(path)["teacher"]
    assert (read["beside"], read["layout"], read["sleep"]) == ("none", "t2", 0)


def test_chunks_of_log_probs_are_the_environments(tmp_path: Path) -> None:
    path = with_flags(
        tmp_path, split("teacher"), f"{TEACHER} --teacher-sglang-chunked-prefill-size 8192 --teacher-sglang-disable-cuda-graph"
    )
    text = Path(path).read_text()
    Path(path).write_text(text.replace("set -ex\n", "set -ex\nexport SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK=1\n"))
    assert job(path)["teacher"]["score_chunk"] == "2k"
    Path(path).write_text(
        text.replace(
            "set -ex\n",
            "set -ex\nexport SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK=1\nexport SGLANG_LOGITS_PROCESSER_CHUNK_SIZE=1024\n",
        )
    )
    group = next(g for g in estimated(path)["gpus"] if "teacher.start" in order(g))
    held = next(p for p in group["phases"] if p["phase"] == "teacher.generate")["by_category_bytes"]
    # logits and log-probs of the chunk before, and of this one in 16 bits and in fp32
    assert held["logits"] == pytest.approx((4 + 4 + 2 + 4) * 1024 * VOCABULARY + 8192 * 4096 * 2, rel=0.01)


SCORED = """oomplan: 1
framework: relax 2026.08
gpus: 4 x H100-80GB
gpus_per_node: 4
model: qwen3-4b
prompt_tokens: 1k
response_tokens: 15k
rollout: {{engine: sglang 0.5.9, layout: d1}}
teacher: {{engine: sglang 0.5.9, model: Qwen/Qwen3-32B, layout: t2, mem_fraction_static: 0.7, batched_tokens: {tokens}, score_chunk: {chunk}}}
actor: {{engine: megatron, layout: d1, tokens_per_micro_batch: 16k}}
"""


@pytest.mark.truth
@pytest.mark.parametrize(
    ("tokens", "chunk", "mib", "within"),
    [
        (16384, 0, 78119, 0.01),  # one request of 16,384 tokens, log-probs of all at once
        (4096, 0, 68221, 0.03),  # the same in passes of 4,096 tokens
        (16384, 2048, 65083, 0.04),  # in chunks of 2,048 rows; 67,561 MiB in two steps of training
    ],
)
def test_a_teacher_that_was_measured(tmp_path: Path, tokens: int, chunk: int, mib: int, within: float) -> None:
    """nvidia-smi's peak of Qwen3-32B on two GPUs of 80 GB with --mem-fraction-static 0.7, as a teacher of slime's on-policy
    distillation: return_logprob with logprob_start_len 0. Notes of a user, July 2026, "OPD Teacher-Rollout", seen in an index
    that names no repository: a guard of the arithmetic, and no evidence."""
    (tmp_path / "job.yaml").write_text(SCORED.format(tokens=tokens, chunk=chunk))
    group = next(g for g in estimated(str(tmp_path / "job.yaml"))["gpus"] if "teacher.start" in order(g))
    device = next(p for p in group["phases"] if p["phase"] == "teacher.generate")["device_bytes"]
    assert device == pytest.approx(mib << 20, rel=within)


# ---- most likely tokens

MOST_LIKELY = (
    f"{TEACHER} --opd-token-selection {{chosen}} --opd-log-prob-top-k {{k}} --opd-kl-coef {{kl}} --opd-loss-coef {{loss}}"
)


def of_most_likely(tmp_path: Path, chosen: str, k: int, kl: float, loss: float, more: str = "") -> str:
    return with_flags(tmp_path, split("teacher"), MOST_LIKELY.format(chosen=chosen, k=k, kl=kl, loss=loss) + more)


def test_most_likely_tokens_of_a_rollout_lie_beside_its_training(tmp_path: Path) -> None:
    path = of_most_likely(tmp_path, "student_topk", 16, 0.0, 1.0)
    read = job(path)["actor"]
    # 32 x 8 samples of 8,192 tokens on four data-parallel ranks
    rows = 256 // 4 * 8192
    assert (read["teacher_topk"], read["teacher_rows"], read["teacher_in_advantages"]) == (16, "512k", False)
    held = {p["phase"]: p["by_category_bytes"] for p in estimated(path)["gpus"][0]["phases"]}
    plain = estimated(with_flags(tmp_path, split("teacher"), TEACHER))["gpus"][0]
    least = {p["phase"]: p["by_category_bytes"] for p in plain["phases"]}
    columns = 8 * 16 * 9216  # of the micro-batch's tokens, which the gather keeps
    assert held["actor.forward"]["inputs"] - least["actor.forward"]["inputs"] == 12 * 16 * rows + columns
    assert held["actor.forward"]["logits"] >= 1.9 * least["actor.forward"]["logits"]


def test_the_number_of_most_likely_tokens_has_no_effect_on_sampled_ones(tmp_path: Path) -> None:
    read = job(of_most_likely(tmp_path, "student_sampled", 64, 1.0, 0.0))["actor"]
    assert (read["teacher_topk"], read["teacher_rows"]) == (0, 0)


def test_a_union_has_twice_as_many_and_advantages_keep_nothing(tmp_path: Path) -> None:
    assert job(of_most_likely(tmp_path, "union", 16, 0.0, 1.0))["actor"]["teacher_topk"] == 32
    assert job(of_most_likely(tmp_path, "student_topk", 16, 1.0, 0.0))["actor"]["teacher_in_advantages"] is True


def test_the_entropys_gate_of_a_later_state_has_both_coefficients(tmp_path: Path) -> None:
    path = of_most_likely(tmp_path, "teacher_topk", 16, 1.0, 1.0, " --opd-fkl-entropy-gate --opd-fkl-entropy-threshold 0.8")
    assert job(path)["actor"]["teacher_topk"] == 16
    without = of_most_likely(tmp_path, "teacher_topk", 16, 1.0, 1.0)
    assert "expected one of --opd-kl-coef and --opd-loss-coef other than 0" in refused(without)


# ---- several judges


def test_judges_of_a_later_state_sit_behind_each_other(tmp_path: Path) -> None:
    judges = json.dumps(
        {
            "quality": {"model_path": "Qwen/Qwen3-8B", "num_gpus": 2, "num_gpus_per_engine": 2},
            "safety": {"model_path": "Qwen/Qwen3-4B", "num_gpus": 2, "engine_config": {"mem_fraction_static": 0.3}},
        }
    )
    path = with_flags(tmp_path, split("genrm"), f"--genrm-instances '{judges}'")
    read = job(path)
    assert [(read[r]["model"], read[r]["layout"], read[r]["first_gpu"]) for r in ("reward", "reward_2")] == [
        ("Qwen/Qwen3-8B", "t2", 4),
        ("Qwen/Qwen3-4B", "d2", 6),
    ]
    assert (read["reward"]["mem_fraction_static"], read["reward_2"]["mem_fraction_static"]) == (0.7, 0.3)
    seats = [
        (group["gpus"], "reward.start" in order(group), "reward_2.start" in order(group)) for group in estimated(path)["gpus"]
    ]
    assert ([4, 5], True, False) in seats and ([6, 7], False, True) in seats


# ---- search


def test_a_job_with_a_teacher_is_searched_and_the_teacher_stays(tmp_path: Path) -> None:
    path = with_flags(tmp_path, split("teacher"), f"{TEACHER} --teacher-sglang-mem-fraction-static 0.5")
    done = run("search", path, "--keep", "1")
    assert done.returncode == 0, done.stderr
    assert "configurations judged by a lower bound" in done.stdout
    assert "--teacher" not in done.stdout


# ---- a critic


def test_a_critic_takes_turns_with_the_actor(tmp_path: Path) -> None:
    path = changed(tmp_path, OF_PPO, *PPO)
    read = job(path)
    assert (read["critic"]["beside"], read["critic"]["offload"]) == ("actor", ["parameters", "optimizer"])
    # relax/backends/megatron/actor.py: a critic returns in front of the copies
    assert (read["critic"]["weights_on_host"], read["actor"]["weights_on_host"]) == (0, 1)
    group = estimated(path)["gpus"][0]
    held = {p["phase"]: p["by_category_bytes"] for p in group["phases"]}
    assert abs(held["critic.optimizer"]["optimizer"] - held["actor.optimizer"]["optimizer"]) < 1 << 20
    assert held["critic.forward"].get("logits", 0) == 0


def test_with_a_critic_there_is_no_reference(tmp_path: Path) -> None:
    path = changed(tmp_path, OF_PPO, PPO[0])
    assert job(path)["actor"]["weights_on_host"] == 1


def test_critics_of_2026_07_are_gone(tmp_path: Path) -> None:
    assert "supports no critics any more" in refused(changed(tmp_path, OF_PPO, *PPO), "--framework-version", "2026.07")


# ---- servers


SUPERVISED = (
    (RESOURCE, '{"sft": [1, 0], "actor": [1, 8], "rollout": [1, 8]}'),
    (
        "   --advantage-estimator grpo\n",
        "   --loss-type sft --sft-predict-interval 10 --eval-size 0.01 --save out --save-interval 100\n",
    ),
    (PENALTY, ""),
)


def test_supervised_training_sleeps_where_it_predicts(tmp_path: Path) -> None:
    """The trainer is awake when servers start and from step to step (relax/engine/sft/predict/runner.py)."""
    path = changed(tmp_path, *SUPERVISED)
    read = job(path)
    assert (read["trainer"]["beside"], read["trainer"]["offload"]) == ("rollout", ["parameters", "optimizer"])
    group = estimated(path)["gpus"][0]
    turns, most = order(group), phases(group)
    assert turns.index("trainer.load") < turns.index("rollout.start") < turns.index("trainer.sleep")
    assert turns.index("trainer.sleep") < turns.index("rollout.generate") < turns.index("trainer.forward")
    held = {p["phase"]: sum(one["device_bytes"] for one in p.get("other_processes", [])) for p in group["phases"]}
    assert held["rollout.generate"] < 3 * GIB < 10 * GIB < held["rollout.start"]
    assert most["rollout.start"] < 80 * GIB


def test_what_is_moved_tensor_by_tensor_leaves_the_workspaces(tmp_path: Path) -> None:
    """torch_memory_saver puts gradients on the host, too; --selective-offload frees them (train_offload.py)."""
    saver, moved = changed(tmp_path), changed(tmp_path, (COLOCATED, "   --colocate --selective-offload \\\n"), name="moved.sh")
    assert job(moved)["actor"]["selective_offload"] is True

    def asleep(path: str) -> tuple[int, int]:
        told = estimated(path)
        generate = next(p for p in told["gpus"][0]["phases"] if p["phase"] == "rollout.generate")
        held = sum(sum(one["by_category_bytes"].values()) for one in generate["other_processes"] if one["roles"] == "actor")
        host = next(p["host_bytes"] for p in told["hosts"][0]["phases"] if p["phase"] == "rollout.generate")
        return held, host

    (by_saver, saver_host), (by_move, moved_host) = asleep(saver), asleep(moved)
    # TransformerEngine's placeholders of gradients, the output layer's buffer, cuBLAS's workspaces
    assert 0.4 * GIB < by_move - by_saver < 0.8 * GIB
    # of 8 ranks: 4 bytes of gradient for each of four billion parameters, of which a rank has half, and what stays on the GPU
    assert saver_host - moved_host == pytest.approx(8 * (4 * 4.02e9 / 2 + by_move - by_saver), rel=0.02)


def test_servers_alone(tmp_path: Path) -> None:
    read = job(changed(tmp_path, (COLOCATED, "   --debug-rollout-only \\\n")))
    assert (read["server"]["layout"], "actor" in read) == ("d4t2", False)


def test_groups_of_servers_that_are_alike_are_one(tmp_path: Path) -> None:
    group = {"worker_type": "regular", "num_gpus": 4, "num_gpus_per_engine": 4, "overrides": {"mem_fraction_static": 0.6}}
    (tmp_path / "groups.yaml").write_text(yaml.safe_dump({"sglang": [{"name": "default", "engine_groups": [group, group]}]}))
    read = job(changed(tmp_path, (COLOCATED, f"   --colocate --sglang-config {tmp_path}/groups.yaml \\\n")))["rollout"]
    assert (read["layout"], read["mem_fraction_static"]) == ("d2t4", 0.6)


def test_servers_may_have_the_model_in_another_format(tmp_path: Path) -> None:
    path = changed(tmp_path, (COLOCATED, "   --colocate --sglang-hf-checkpoint /root/Qwen3-4B-FP8 \\\n"))
    read = job(path)
    assert (read["rollout"]["model"], read["rollout"]["weights"]) == ("Qwen/Qwen3-4B-FP8", "auto")
    other = changed(tmp_path, (COLOCATED, "   --colocate --sglang-hf-checkpoint Qwen/Qwen3-8B \\\n"), name="other.sh")
    assert "servers of another model than the trainer's" in refused(other)


def test_engines_that_come_later_change_nothing_on_a_gpu(tmp_path: Path) -> None:
    plain = fully_async(tmp_path)
    before = estimated(plain)["gpus"]
    path = fully_async(tmp_path, flags="--autoscaler-config autoscaler.yaml")
    assert estimated(path)["gpus"] == before
    assert "engines that are added later have GPUs of their own" in " ".join(notes(path).split())


def test_a_job_file_says_the_same(tmp_path: Path) -> None:
    path = with_flags(tmp_path, split("teacher"), TEACHER)
    done = run("read", path)
    (tmp_path / "job.yaml").write_text(done.stdout)
    as_file, as_script = (estimated(one)["gpus"] for one in (str(tmp_path / "job.yaml"), path))
    assert [phases(g) for g in as_file] == [phases(g) for g in as_script]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("first_gpu: 4", "first_gpu: 6"), "a part of the 8 GPUs of actor"),
        (("  beside: actor\n  first_gpu: 4", "  beside: none\n  first_gpu: 4"), "it counts the GPUs of the role beside it"),
    ],
)
def test_a_part_lies_within_the_trainers_gpus(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    done = run("read", with_flags(tmp_path, split("teacher"), TEACHER))
    text = "\n".join(line.split("  #")[0].rstrip() for line in done.stdout.splitlines())
    assert change[0] in text
    (tmp_path / "job.yaml").write_text(text.replace(*change))
    assert said in run("check", str(tmp_path / "job.yaml")).stderr


def test_advice_to_a_teacher_is_in_its_own_flags(tmp_path: Path) -> None:
    path = with_flags(tmp_path, split("teacher"), f"{TEACHER} --teacher-num-gpus-per-engine 2")
    said = run("advise", path, "--gpu", "A100-40GB").stdout
    assert "append  --teacher-sglang-mem-fraction-static=" in said
    assert "append  --teacher-num-gpus-per-engine=" in said
