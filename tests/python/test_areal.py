"""AReaL's own files through the Python face."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import oomplan

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "areal"


def test_a_file_of_areal_is_read_estimated_and_explained() -> None:
    job = oomplan.read(EXAMPLES / "grpo_7b.yaml", "actor.mb_spec.max_tokens_per_mb=65536", framework_version="1.0.4", gpu="h200")
    answer = oomplan.estimate(job)
    assert answer.fits
    assert any("H200" in gpu.gpu for gpu in answer.gpus)


def test_facts_say_who_told_them() -> None:
    facts = oomplan.config_facts(EXAMPLES / "grpo_7b.yaml", framework_version="2.0.0")
    assert facts["roles"]["actor"]["layout"]["dp"]["v"] == 4
    assert facts["roles"]["actor"]["param_dtype"] == {
        "v": "float32",
        "o": "default",
        "w": "areal/api/cli_args.py:TrainEngineConfig",
    }
    assert facts["roles"]["rollout"]["model"]["o"] == "interpolated"
    assert facts["absent_roles"]["ref"]["v"].startswith("configured but never built")


def test_a_defaults_list_is_followed() -> None:
    job = oomplan.read(EXAMPLES / "grpo_1.5b_ref.yaml", framework_version="1.0.4")
    assert "ref:" in job.to_yaml()


def test_a_defaults_list_names_files_of_stated_folders(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"defaults:\n  - {os.path.relpath(EXAMPLES / 'grpo_7b', tmp_path)}@_global_\n  - _self_\n")
    with pytest.raises(oomplan.InputError, match="config_roots="):
        oomplan.read(tmp_path / "job.yaml", framework_version="1.0.4")
    named = oomplan.read(tmp_path / "job.yaml", framework_version="1.0.4", config_roots=[EXAMPLES])
    assert named.to_yaml() == oomplan.read(EXAMPLES / "grpo_7b.yaml", framework_version="1.0.4").to_yaml()
    facts = oomplan.config_facts(tmp_path / "job.yaml", framework_version="1.0.4", config_roots=[EXAMPLES])
    assert facts["roles"]


def test_what_is_wrong_names_the_line() -> None:
    with pytest.raises(oomplan.InputError, match=r"command line.*not supported yet: pipelines of Archon"):
        oomplan.read(EXAMPLES / "grpo_7b.yaml", "actor.backend=archon:d2p2", framework_version="1.0.4")


MEGATRON = ("actor.backend=megatron:d2t2", "actor.path=Qwen/Qwen2.5-1.5B-Instruct")


def levels(estimate: oomplan.Estimate, role: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for gpu in estimate.gpus:
        for moment in gpu.phases:
            name, _, step = moment.phase.partition(".")
            if name == role:
                found[step] = max(found.get(step, 0), moment.capacity_needed_bytes)
    return found


def test_megatron_is_answered_in_every_phase() -> None:
    job = oomplan.read(EXAMPLES / "grpo_7b.yaml", *MEGATRON, framework_version="1.0.4")
    found = levels(oomplan.estimate(job), "actor")
    assert set(found) == {"load", "log_probs", "forward", "backward", "optimizer", "send_weights"}
    assert found["log_probs"] < found["forward"] < found["backward"]
    assert levels(oomplan.estimate(job.to_yaml()), "actor") == found


def test_a_reference_and_a_critic_run_on_megatron() -> None:
    def on_megatron(file: str) -> oomplan.Estimate:
        return oomplan.estimate(oomplan.read(EXAMPLES / file, "actor.backend=megatron:d4", framework_version="1.0.4"))

    reference = levels(on_megatron("grpo_1.5b_ref.yaml"), "ref")
    assert set(reference) == {"load", "log_probs"}
    critic = levels(on_megatron("ppo_critic.yaml"), "critic")
    assert set(critic) == {"load", "values", "forward", "backward", "optimizer"}


def test_search_over_megatron_under_areal_is_refused_by_name() -> None:
    job = oomplan.read(EXAMPLES / "grpo_7b.yaml", *MEGATRON, framework_version="1.0.4")
    with pytest.raises(oomplan.InputError, match="a search over Megatron"):
        oomplan.search(job)
