"""Reward models under verl: servers from 0.7.0 on, in a pool of their own or beside the trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_verl import GRPO, command, facts, fullest, run, value
from test_verl_teachers import phases

REWARD = "reward.reward_model"
LLAMA = "meta-llama/Llama-3.1-8B"
ON = [f"{REWARD}.enable=True", f"{REWARD}.model_path={LLAMA}", f"{REWARD}.rollout.name=vllm"]
ALONE = [f"{REWARD}.rollout.tensor_model_parallel_size=1"]
POOL = [f"{REWARD}.enable_resource_pool=True", f"{REWARD}.nnodes=1", f"{REWARD}.n_gpus_per_node=4"]
JUDGE = "reward.custom_reward_function.path=judge.py"
OF_070 = ["reward_model.enable=True", f"reward_model.model.path={LLAMA}", "reward_model.rollout.name=vllm"]
GIB = 1 << 30
KV_TOKEN = 32 * 2 * 8 * 128 * 2  # of Llama 3.1 8B: layers, keys and values, heads, their width, 16 bits


def written(*overrides: str, release: str = "0.9.0") -> dict[str, Any]:
    done = run("read", "--framework-version", release, *command(*GRPO, *overrides))
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


def estimated(*overrides: str, release: str = "0.9.0") -> dict[str, Any]:
    done = run("estimate", "--json", "--framework-version", release, "--gpu", "H100-80GB", *command(*GRPO, *overrides))
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def order(told: dict[str, Any], group: int = 0) -> list[str]:
    return [phase["phase"] for phase in told["gpus"][group]["phases"]]


def server(told: dict[str, Any], role: str) -> dict[str, Any]:
    return dict(next(one for one in told["servers"] if one["role"] == role))


@pytest.mark.parametrize("release", ["0.7.1", "0.8.0", "0.9.0", "0.10.0"])
def test_a_pool_of_its_own_is_taken_whole_and_never_sleeps(release: str) -> None:
    told = facts(*command(*GRPO, *ON, *POOL), release=release)
    assert value(told, "roles.reward.gpus") == 4
    assert value(told, "roles.reward.placement") == "own"
    assert value(told, "job.gpus_used") == 12
    job = written(*ON, *POOL, release=release)["reward"]
    assert (job["layout"], job["beside"], job["sleep"]) == ("d2t2", "none", 0)
    assert (job["gpu_memory_utilization"], job["enforce_eager"], job["pooling"]) == (0.5, True, True)
    assert "reward" not in written(*ON, *POOL, f"{REWARD}.enable=False", release=release)


def test_the_words_of_0_7_0_mean_the_same_there_and_in_the_releases_that_take_them_over() -> None:
    old = [*OF_070, "reward_model.enable_resource_pool=True", "reward_model.nnodes=1", "reward_model.n_gpus_per_node=4"]
    there, later, new = (
        written(*words, release=release)["reward"] for words, release in ((old, "0.7.0"), (old, "0.8.0"), ([*ON, *POOL], "0.8.0"))
    )
    assert later == new
    assert {key for key in there if there[key] != later[key]} == set()
    assert written(*old, "reward_model.rollout.gpu_memory_utilization=0.3", release="0.7.1")["reward"][
        "gpu_memory_utilization"
    ] == pytest.approx(0.3)


def test_a_pool_leaves_the_trainer_as_it_was() -> None:
    alone, beside = phases(estimated()), phases(estimated(*ON, *POOL))
    own = {phase: most for phase, most in beside.items() if phase.startswith("reward")}
    assert set(own) == {"reward.load", "reward.start", "reward.generate"}
    assert {phase: most for phase, most in beside.items() if phase not in own} == alone


def test_beside_the_trainer_it_wakes_behind_the_sleeping_rollout_and_sleeps_before_training() -> None:
    told = estimated(*ON, *ALONE)
    turns = order(told)
    assert turns.index("reward.start") < turns.index("reward.sleep") < turns.index("rollout.start")
    assert turns.index("rollout.generate") < turns.index("reward.wake") < turns.index("reward.generate")
    assert turns.index("reward.generate") < turns.index("actor.log_probs")
    assert "reward.receive_weights" not in turns
    # what a sleeping one holds is no more than context, workspaces and tables: under 1 GiB
    without, held = phases(estimated()), phases(told)
    assert 0 < held["actor.backward"] - without["actor.backward"] < GIB


def test_in_0_7_0_it_starts_in_front_of_the_trainer() -> None:
    first, later = order(estimated(*OF_070, release="0.7.0")), order(estimated(*OF_070, release="0.7.1"))
    assert first.index("reward.sleep") < first.index("actor.load") < first.index("rollout.start")
    assert later.index("actor.load") < later.index("reward.load") < later.index("rollout.start")


def test_one_that_stays_awake_is_beside_training_with_all_it_has() -> None:
    asleep = phases(estimated(*ON, *ALONE))
    awake = phases(estimated(*ON, *ALONE, f"{REWARD}.rollout.free_cache_engine=False"))
    pool = server(estimated(*ON, *ALONE), "reward")
    assert awake["actor.backward"] - asleep["actor.backward"] > 0.9 * 0.5 * 80e9 - 8 * GIB
    assert pool["weights_bytes"] < 15 * GIB


def test_weights_of_one_that_sleeps_lie_on_the_host() -> None:
    """Level 1 of eight servers of one GPU each."""
    beside, alone = estimated(*ON, *ALONE), estimated()

    def of_training(told: dict[str, Any]) -> int:
        return int(next(p["host_bytes"] for p in told["hosts"][0]["phases"] if p["phase"] == "actor.backward"))

    assert of_training(beside) - of_training(alone) == 8 * server(beside, "reward")["weights_bytes"]


def test_one_that_scores_has_a_number_where_one_that_generates_has_a_head() -> None:
    """Llama 3.1 8B: 128,256 x 4,096 in 16 bits go, 4,096 in fp32 come."""
    scores, generates = (server(estimated(*ON, *ALONE, *POOL, *more), "reward") for more in ([], [JUDGE]))
    head = 128256 * 4096 * 2
    layers_and_embedding = (8_030_261_248 - 128256 * 4096) * 2
    cosines = 131072 * 128 * 2
    assert scores["weights_bytes"] == layers_and_embedding + cosines + 4096 * 4
    assert generates["weights_bytes"] == layers_and_embedding + cosines + head
    # the profile run has no logits, so that the cache is larger by more than the head
    assert (scores["kv_tokens_per_replica"] - generates["kv_tokens_per_replica"]) * KV_TOKEN > head


def test_a_config_of_a_class_that_scores_is_read(tmp_path: Path) -> None:
    """What a reward model's folder has: another class and labels, the layers of Llama."""
    config = {
        "architectures": ["LlamaForSequenceClassification"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert phases(estimated(*ON, *ALONE, f"{REWARD}.model_path={tmp_path}")) == phases(estimated(*ON, *ALONE))


@pytest.mark.parametrize(
    ("model", "published", "parameters", "cosines"),
    [
        ("Skywork/Skywork-Reward-Llama-3.1-8B", 7.50, 7_504_928_768, 131072 * 128),
        ("/root/models/Skywork/Skywork-Reward-V2-Llama-3.2-1B", 1.24, 1_235_816_448, 131072 * 64),
    ],
)
def test_published_reward_models_have_the_body_of_what_they_were_made_from(
    model: str, published: float, parameters: int, cosines: int
) -> None:
    """Their cards count billions: the base model's parameters without its head, and one row in its place. An embedding of
    501 MiB takes 502."""
    assert round(parameters / 1e9, 2) == published
    hidden = 4096 if published > 2 else 2048
    told = server(estimated(*ON, *ALONE, f"{REWARD}.model_path={model}"), "reward")
    rounded = -2 * 128256 * hidden % (2 << 20)
    assert told["weights_bytes"] == 2 * (parameters - hidden) + 2 * cosines + 4 * hidden + rounded


def test_with_a_function_of_its_own_it_is_taken_to_generate_and_a_note_says_so() -> None:
    assert written(*ON, JUDGE)["reward"]["pooling"] is False
    done = run("estimate", "--framework-version", "0.9.0", "--gpu", "H100-80GB", *command(*GRPO, *ON, JUDGE))
    assert "the reward model is taken to generate, as a function of your own asks it" in " ".join(done.stdout.split())


def test_determinism_scores_one_request_at_a_time() -> None:
    assert written(*ON, f"{REWARD}.rollout.full_determinism=True")["reward"]["max_running_requests"] == 1
    assert written(*ON, JUDGE, f"{REWARD}.rollout.full_determinism=True")["reward"]["max_running_requests"] == "1k"


def test_sglang_captures_nothing_of_one_that_scores() -> None:
    """Whether graphs are asked for or not."""
    asked = [*ON[:2], f"{REWARD}.rollout.name=sglang", *ALONE, *POOL]
    eager, graphs = (phases(estimated(*asked, f"{REWARD}.rollout.enforce_eager={word}")) for word in ("True", "False"))
    assert eager == graphs
    judged = phases(estimated(*asked, JUDGE, f"{REWARD}.rollout.enforce_eager=False"))
    assert judged["reward.start"] > graphs["reward.start"]


def test_a_job_file_says_the_same(tmp_path: Path) -> None:
    for words in ([*ON, *ALONE], [*ON, *POOL]):
        done = run("read", "--framework-version", "0.9.0", *command(*GRPO, *words))
        (tmp_path / "job.yaml").write_text(done.stdout)
        told = run("estimate", "--json", str(tmp_path / "job.yaml"))
        assert phases(json.loads(told.stdout)) == phases(estimated(*words))


OF_JOB_FILE = {
    "oomplan": 1,
    "gpus": "8 x H100-80GB",
    "framework": "verl 0.9.0",
    "model": "qwen3-8b",
    "prompt_tokens": 512,
    "response_tokens": 512,
    "rollout": {"engine": "vllm 0.12.0", "layout": "d4"},
    "actor": {"engine": "fsdp2", "layout": "d2", "tokens_per_micro_batch": 4096},
    "reward": {"engine": "vllm 0.12.0", "layout": "d2", "pooling": True},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "of AReaL": ({"framework": "areal 1.0.4"}, "a reward model's server under areal; of verl it is"),
    "a worker of later releases": (
        {"reward": {"engine": "fsdp2", "layout": "d2"}},
        "from 0.7.1 on verl's reward models are servers",
    ),
    "an old vLLM": ({"reward": {"engine": "vllm 0.11.0", "layout": "d2", "pooling": True}}, "older servers of models that score"),
    "scores of a rollout": (
        {"rollout": {"engine": "vllm 0.12.0", "layout": "d4", "pooling": True}},
        "'pooling' is a setting of a reward model's server",
    ),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_a_job_file_with_a_server_that_is_none_is_refused(row: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    more, said = row
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(OF_JOB_FILE, sort_keys=False))
    assert run("check", str(job)).returncode != 2
    job.write_text(yaml.safe_dump({**OF_JOB_FILE, **more}, sort_keys=False))
    done = run("check", str(job))
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_what_it_may_be_changed_to_is_a_key_of_its_own() -> None:
    """Appended, a remedy gives the gain that was told."""
    asked = ["--json", "--framework-version", "0.9.0", "--gpu", "H100-80GB"]
    full = [f"{REWARD}.model_path=Qwen/Qwen3-32B", f"{REWARD}.rollout.gpu_memory_utilization=0.97"]
    words = command(*GRPO, *ON, *ALONE, *POOL, *full)
    remedy = json.loads(run("advise", *asked, *words).stdout)["remedies"][0]
    assert remedy["overrides"] == [f"{REWARD}.rollout.gpu_memory_utilization=0.92"]
    before = fullest(run("estimate", *asked, *words))
    after = fullest(run("estimate", *asked, *words, *remedy["overrides"]))
    assert before - after == pytest.approx(remedy["gain_bytes"], abs=1 << 20)
