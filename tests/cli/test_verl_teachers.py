"""On-policy distillation under verl: teachers are servers in a pool of their own, which score what was generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_verl import ARR, FIXED, command, facts, run, value

POOL = ["distillation.enabled=True", "distillation.nnodes=1"]
LOSS = ["distillation.distillation_loss.loss_mode=k1", "distillation.distillation_loss.use_policy_gradient=True"]
OF_DEFAULTS = "distillation.teacher_models.teacher_model"
ONE = [*POOL, *LOSS, "distillation.n_gpus_per_node=4", f"{OF_DEFAULTS}.model_path=Qwen/Qwen3-32B"]


def named(name: str, model: str, replicas: int, *more: str) -> list[str]:
    at = f"+distillation.teacher_models.{name}"
    words = [f"key={name}", f"model_path={model}", f"num_replicas={replicas}", "inference.name=vllm", *more]
    return [f"{at}.{word}" for word in words]


TWO = [
    *POOL,
    *LOSS,
    "distillation.n_gpus_per_node=4",
    *named("gsm8k", "Qwen/Qwen3-32B", 1, "inference.tensor_model_parallel_size=2", "inference.max_model_len=5121"),
    *named("code", "Qwen/Qwen3-8B", 2, "inference.tensor_model_parallel_size=1", "inference.gpu_memory_utilization=0.4"),
]


def written(*overrides: str, release: str = "0.9.0") -> dict[str, Any]:
    done = run("read", "--framework-version", release, *command(*FIXED, *overrides))
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


def estimated(*words: str) -> dict[str, Any]:
    release = ["--framework-version", "0.9.0", "--gpu", "H100-80GB"] if words[0] == "--" else []
    done = run("estimate", "--json", *release, *words)
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def phases(told: dict[str, Any]) -> dict[str, int]:
    """The most that a GPU needs in every phase, in bytes."""
    out: dict[str, int] = {}
    for group in told["gpus"]:
        for phase in group["phases"]:
            out[phase["phase"]] = max(out.get(phase["phase"], 0), phase["capacity_needed_bytes"])
    return out


@pytest.mark.parametrize("release", ["0.8.0", "0.9.0", "0.10.0"])
def test_one_teacher_takes_the_whole_pool(release: str) -> None:
    told = facts(*command(*FIXED, *ONE), release=release)
    assert value(told, "roles.teacher.gpus") == 4
    assert value(told, "roles.teacher.placement") == "own"
    assert value(told, "job.gpus_used") == 12
    job = written(*ONE, release=release)
    assert job["teacher"]["model"] == "Qwen/Qwen3-32B"
    assert job["teacher"]["layout"] == "d2t2"
    assert job["teacher"]["gpu_memory_utilization"] == 0.5
    assert job["teacher"]["enforce_eager"] is True
    assert "teacher" not in written(*ONE, "distillation.enabled=False", release=release)


def test_of_several_each_says_its_replicas_and_the_one_of_the_defaults_is_dropped() -> None:
    job = written(*TWO)
    assert [job[name]["model"] for name in ("teacher", "teacher_2")] == ["Qwen/Qwen3-32B", "Qwen/Qwen3-8B"]
    assert [job[name]["layout"] for name in ("teacher", "teacher_2")] == ["t2", "d2"]
    assert [job[name]["gpu_memory_utilization"] for name in ("teacher", "teacher_2")] == [0.5, 0.4]
    assert job["teacher"]["max_model_len"] == 5121
    assert value(facts(*command(*FIXED, *TWO), release="0.9.0"), "job.gpus_used") == 12


def test_a_teacher_scores_and_leaves_the_student_as_it_was() -> None:
    """Its phases are its own; those of the other GPUs need what they needed without it."""
    alone, beside = phases(estimated(*command(*FIXED))), phases(estimated(*command(*FIXED, *TWO)))
    own = {phase: most for phase, most in beside.items() if phase.startswith("teacher")}
    assert {"teacher.generate", "teacher_2.generate"} <= own.keys()
    assert {phase: most for phase, most in beside.items() if phase not in own} == alone
    assert own["teacher.generate"] > own["teacher_2.generate"]


def test_a_job_file_says_the_same(tmp_path: Path) -> None:
    done = run("read", "--framework-version", "0.9.0", *command(*FIXED, *TWO))
    (tmp_path / "job.yaml").write_text(done.stdout)
    assert phases(estimated(str(tmp_path / "job.yaml"))) == phases(estimated(*command(*FIXED, *TWO)))


def test_what_a_teacher_may_be_changed_to_is_a_key_of_its_own() -> None:
    """A remedy for a teacher that does not fit: its override, appended, gives the gain that was told."""
    small = ["advise", "--json", "--framework-version", "0.9.0", "--gpu", "A100-40GB"]
    wide = [*ONE, f"{OF_DEFAULTS}.inference.tensor_model_parallel_size=1", f"{OF_DEFAULTS}.inference.gpu_memory_utilization=0.9"]
    done = run(*small, *command(*FIXED, *wide))
    assert done.returncode in (0, 1), done.stderr
    texts = json.dumps(json.loads(done.stdout))
    assert f"{OF_DEFAULTS}.inference." in texts


def test_a_teacher_of_releases_before_the_first_is_no_role(tmp_path: Path) -> None:
    done = run("read", "--framework-version", "0.9.0", *command(*FIXED, *ONE))
    older = done.stdout.replace("framework: verl 0.9.0", "framework: verl 0.7.0")
    assert older != done.stdout
    (tmp_path / "job.yaml").write_text(older)
    done = run("check", str(tmp_path / "job.yaml"))
    assert done.returncode == 2
    assert "verl has teachers from 0.8 on" in done.stderr


def test_a_pool_that_fills_no_machine_stands_on_one_of_its_own() -> None:
    """Eight GPUs a machine of the trainer's, four of the teachers': two machines, and what they leave free is said."""
    assert written(*ONE)["gpus"] == "16 x H100-80GB"
    assert written(*ONE, "trainer.n_gpus_per_node=4")["gpus"] == "8 x H100-80GB"
    said = run("read", "--framework-version", "0.9.0", *command(*FIXED, *ONE))
    assert "4 of 16 GPUs have no role" in said.stderr


def test_a_teacher_that_sglang_serves_is_refused_by_name() -> None:
    done = run(
        "estimate", "--framework-version", "0.9.0", "--gpu", "H100-80GB", *command(*FIXED, *ONE, f"{ARR}.rollout.name=sglang")
    )
    assert done.returncode == 2
    assert "not supported yet: log-probs of prompts by SGLang" in done.stderr


LIKELY = ["distillation.distillation_loss.loss_mode=forward_kl_topk", "distillation.distillation_loss.topk=64"]
OF_MEGATRON = [
    "--config-name=ppo_megatron_trainer.yaml",
    "algorithm.adv_estimator=grpo",
    f"{ARR}.model.path=Qwen/Qwen3-8B",
    f"{ARR}.rollout.name=vllm",
    f"{ARR}.actor.use_dynamic_bsz=True",
    f"{ARR}.rollout.log_prob_use_dynamic_bsz=True",
    f"{ARR}.actor.megatron.tensor_model_parallel_size=2",
    *POOL,
    "distillation.n_gpus_per_node=4",
    f"{OF_DEFAULTS}.model_path=Qwen/Qwen3-32B",
]


def test_the_most_likely_tokens_are_the_loss_of_megatron() -> None:
    """Alone they need no log-probs; beside a reward they do, and one tensor of the logits' size more is kept."""
    told = {}
    for name, more in {
        "alone": [f"{LIKELY[0][: LIKELY[0].rfind('.')]}.use_task_rewards=False"],
        "beside": [],
        "estimator": ["distillation.distillation_loss.loss_mode=k3"],
    }.items():
        words = command(*OF_MEGATRON, *LIKELY, *more)
        done = run("read", "--framework-version", "0.9.0", *words)
        assert done.returncode == 0, done.stderr
        actor = yaml.safe_load(done.stdout)["actor"]
        assert (actor["teacher_topk"], actor["teacher_alone"]) == (0 if name == "estimator" else 64, name == "alone")
        told[name] = phases(estimated("--framework-version", "0.9.0", "--gpu", "H100-80GB", *words))
    assert told["alone"]["actor.log_probs"] == told["estimator"]["actor.log_probs"]
    assert told["estimator"]["actor.backward"] < told["alone"]["actor.backward"] < told["beside"]["actor.backward"]
