"""trainer_type VERL_GRPO: Oumi fills in verl's configuration and starts verl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from test_oumi import EXAMPLES, run

BELOW = "training.verl_config_overrides."


def settings(*arguments: str, folder: Path = EXAMPLES) -> dict[str, dict[str, object]]:
    done = run("read", "--json", *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return {role["name"]: dict(role["settings"]) for role in json.loads(done.stdout)["roles"]}


def test_it_is_read_as_the_same_command_of_verl(tmp_path: Path) -> None:
    """What Oumi's own keys fill in and what stands below its overrides, over verl's defaults."""
    said = yaml.safe_load((EXAMPLES / "grpo_verl.yaml").read_text())["training"]["verl_config_overrides"]
    rollout = said["actor_rollout_ref"]["rollout"]
    rollout |= {"name": "vllm", "temperature": 0.9, "gpu_memory_utilization": 0.4}
    said["actor_rollout_ref"]["model"] = {"path": "Qwen/Qwen2.5-3B-Instruct", "enable_gradient_checkpointing": True}
    said["data"]["max_response_length"] = 1024
    said["algorithm"] = {"adv_estimator": "grpo"}
    (tmp_path / "verl.yaml").write_text(yaml.safe_dump(said))
    for ours, theirs in (("0.8", "0.7.0"), ("0.5.0", "0.5.0"), ("0.3.0", "0.4.0")):
        by_oumi = settings("grpo_verl.yaml", "--framework-version", ours)
        by_verl = settings("verl.yaml", "--framework-version", theirs, folder=tmp_path)
        assert set(by_oumi) == {"rollout", "actor", "ref"}
        assert by_oumi == by_verl


def test_overrides_win_over_its_own_keys() -> None:
    told = settings("grpo_verl.yaml", f"{BELOW}actor_rollout_ref.rollout.gpu_memory_utilization=0.6")
    assert told["rollout"]["gpu_memory_utilization"] == 0.6
    told = settings("grpo_verl.yaml", "training.grpo.vllm_gpu_memory_utilization=0.3")
    assert told["rollout"]["gpu_memory_utilization"] == 0.3


def test_changes_are_written_below_the_key_of_overrides() -> None:
    advice = run("advise", "grpo_verl.yaml", "--gpu", "A100-40GB", "--json")
    remedies = json.loads(advice.stdout)["remedies"]
    assert len(remedies) >= 3
    assert all(remedy["key"].startswith(BELOW) for remedy in remedies)
    assert all(word.startswith(f"--{BELOW}") for remedy in remedies for word in remedy["overrides"])
    diff = run("advise", "grpo_verl.yaml", "--gpu", "A100-40GB", "--diff", "1").stdout
    assert diff.startswith("--- ") and "\n+" in diff
    found = run("search", "grpo_verl.yaml", "--keep", "1", "--json")
    assert found.returncode == 0
    (best,) = json.loads(found.stdout)["best"]
    assert all(word.startswith(f"--{BELOW}") for word in best["overrides"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [f"{BELOW}actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3"],
            "command line training.verl_config_overrides.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu: found '3'",
        ),
        (["training.grpo.use_vllm=False"], "command line training.grpo.use_vllm: found 'hf', expected vllm or sglang"),
        (["model.model_name=Qwen/Qwen0-1B"], "command line model.model_name: found 'Qwen/Qwen0-1B'"),
        (["data.validation.datasets=[]"], "data.validation: found no dataset, expected one at least"),
        (
            ["model.enable_liger_kernel=True"],
            "model.enable_liger_kernel: found true, expected false beside trainer_type VERL_GRPO",
        ),
    ],
)
def test_what_is_wrong_is_said_at_the_key_of_the_file(words: list[str], said: str) -> None:
    done = run("estimate", "grpo_verl.yaml", *words)
    assert done.returncode == 2 and said in done.stderr


def test_a_key_that_verl_lacks_is_told() -> None:
    done = run("read", "grpo_verl.yaml", f"{BELOW}actor_rollout_ref.actor.param_offload=True")
    assert done.returncode == 0
    assert "actor.param_offload: found a key that verl 0.7.0 does not have: it does nothing" in done.stderr
    told = run("read", "grpo_verl.yaml", f"{BELOW}actor_rollout_ref.rollout.gpu_memory_utilisation=0.3").stderr
    assert "did you mean 'gpu_memory_utilization'?" in told
