"""A framework's configuration that a program holds already: dict, dataclass, OmegaConf."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import oomplan

CONFIG: dict[str, Any] = {
    "algorithm": {"adv_estimator": "grpo"},
    "actor_rollout_ref": {
        "model": {"path": "Qwen/Qwen3-8B"},
        "actor": {"use_dynamic_bsz": True, "strategy": "fsdp2"},
        "rollout": {"name": "vllm", "log_prob_use_dynamic_bsz": True},
    },
}


@dataclasses.dataclass
class Held:
    algorithm: dict[str, Any]
    actor_rollout_ref: dict[str, Any]
    folder: Path = Path("/tmp")


def read(config: Any) -> str:
    return oomplan.read(config, framework_version="0.9.0", gpu="H200-141GB").to_yaml()


def test_a_dict_is_read_as_its_command() -> None:
    told = read(CONFIG)
    assert "verl 0.9.0" in told
    assert "H200-141GB" in told
    command = oomplan.read(
        command=[
            *(
                "python3",
                "-m",
                "verl.trainer.main_ppo",
                "algorithm.adv_estimator=grpo",
                "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
            ),
            *("actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.strategy=fsdp2"),
            *("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True"),
        ],
        framework_version="0.9.0",
        gpu="H200-141GB",
    )
    assert told == command.to_yaml()


def test_a_dataclass_is_read_as_what_it_holds() -> None:
    assert read(Held(CONFIG["algorithm"], CONFIG["actor_rollout_ref"])) == read(CONFIG)


def test_an_omegaconf_object_is_read_as_what_it_holds() -> None:
    made = OmegaConf.create(CONFIG | {"data": {"train_batch_size": "${batch}"}, "batch": 512})
    assert read(made) == read(CONFIG | {"data": {"train_batch_size": 512}, "batch": 512})


class Trainer(enum.Enum):
    TRL_SFT = "trl_sft"


class Sharding(str, enum.Enum):
    FULL_SHARD = "full"


@dataclasses.dataclass
class Oumi:
    """As Oumi's TrainingConfig is: nested, with members of Enums."""

    model: dict[str, Any]
    training: dict[str, Any]
    fsdp: dict[str, Any]


def test_members_of_enums_are_read_by_their_names() -> None:
    model = {"model_name": "Qwen/Qwen3-8B", "model_max_length": 4096, "torch_dtype_str": "bfloat16"}
    sharding = {"enable_fsdp": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    held = Oumi(model, {"trainer_type": Trainer.TRL_SFT}, {**sharding, "sharding_strategy": Sharding.FULL_SHARD})
    job = oomplan.read(held, gpus=4, gpu="H200-141GB")
    said = oomplan.read(
        {
            "model": model,
            "training": {"trainer_type": "TRL_SFT"},
            "fsdp": {**sharding, "sharding_strategy": "FULL_SHARD"},
        },
        "gpus=4",
        gpu="H200-141GB",
    )
    assert job.to_yaml() == said.to_yaml()
    assert "gpus: 4 x H200-141GB" in job.to_yaml() and "engine: fsdp1" in job.to_yaml()
    with pytest.raises(oomplan.InputError, match="expected --gpus N"):
        oomplan.read(held)


def test_what_is_wrong_has_its_key() -> None:
    with pytest.raises(oomplan.InputError) as caught:
        oomplan.read(CONFIG | {"data": {"max_prompt_length": -1}}, framework_version="0.9.0")
    assert "data.max_prompt_length" in str(caught.value)
    with pytest.raises(oomplan.InputError):
        oomplan.read(object())
