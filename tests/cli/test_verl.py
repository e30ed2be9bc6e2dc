"""verl's own command line and files: what they mean, what they cost, and changes in verl's words."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
ARR = "actor_rollout_ref"
GRPO = [
    "algorithm.adv_estimator=grpo",
    f"{ARR}.model.path=Qwen/Qwen3-8B",
    "data.train_batch_size=256",
    "data.max_prompt_length=1024",
    "data.max_response_length=4096",
    f"{ARR}.actor.strategy=fsdp2",
    f"{ARR}.actor.use_dynamic_bsz=True",
    f"{ARR}.actor.ppo_max_token_len_per_gpu=16384",
    f"{ARR}.actor.ppo_mini_batch_size=64",
    f"{ARR}.actor.use_kl_loss=True",
    f"{ARR}.actor.fsdp_config.param_offload=True",
    f"{ARR}.actor.fsdp_config.optimizer_offload=True",
    f"{ARR}.rollout.name=vllm",
    f"{ARR}.rollout.n=8",
    f"{ARR}.rollout.gpu_memory_utilization=0.6",
    f"{ARR}.rollout.log_prob_use_dynamic_bsz=True",
    f"{ARR}.ref.log_prob_use_dynamic_bsz=True",
]


def run(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    given = {"HOME": "/root", "PATH": "/usr/bin:/bin"}
    return subprocess.run([PROGRAM, *words], cwd=folder, env=given, capture_output=True, text=True, timeout=120, check=False)


def command(*overrides: str, module: str = "verl.trainer.main_ppo") -> list[str]:
    return ["--", "python3", "-m", module, *overrides]


def facts(*words: str, release: str = "0.8.0") -> dict[str, Any]:
    done = run("read", "--facts", "--framework-version", release, *words)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def value(of: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        of = of[part]
    return of["v"]


SGLANG_SHARE = "SGLang mem_fraction_static: share of memory free at server start"
MEANINGS: list[tuple[str, str, list[str], dict[str, Any]]] = [
    (
        "defaults of a silent command",
        "0.9.0",
        [],
        {
            "cluster.gpus_per_node": 8,
            "roles.actor.engine": "fsdp2",
            "roles.actor.param_dtype": "fp32",
            "roles.actor.recompute": {"granularity": "full"},
            "roles.ref.forced_param_offload": True,
            "roles.rollout.layout.tp": 2,
            "roles.rollout.max_running_requests": 256,
            "weight_update.buffer_bytes": 2 << 30,
        },
    ),
    (
        "Ulysses multiplies a budget",
        "0.8.0",
        [f"{ARR}.actor.ulysses_sequence_parallel_size=4"],
        {
            "roles.actor.layout.dp": 2,
            "roles.actor.layout.cp": 4,
            "roles.actor.micro_batch.tokens_per_micro_batch_of_group": 65536,
        },
    ),
    ("fsdp_config.strategy has no effect", "0.8.0", [f"{ARR}.actor.strategy=fsdp"], {"roles.actor.engine": "fsdp1"}),
    ("HSDP", "0.8.0", ["trainer.nnodes=2", f"{ARR}.actor.fsdp_config.fsdp_size=8"], {"roles.actor.sharding": "hybrid_shard"}),
    (
        "a critic is not linked to the actor",
        "0.8.0",
        ["algorithm.adv_estimator=gae", "critic.model.path=Qwen/Qwen3-8B"],
        {"roles.critic.engine": "fsdp1", "roles.critic.placement": "in_process:actor"},
    ),
    (
        "an explicit length is lost in 0.7.0",
        "0.7.0",
        [f"{ARR}.rollout.max_model_len=4096"],
        {"roles.rollout.max_model_len": "max_position_embeddings of the model"},
    ),
    ("... and holds in 0.8.0", "0.8.0", [f"{ARR}.rollout.max_model_len=8192"], {"roles.rollout.max_model_len": 8192}),
    (
        "... and is the sum up to 0.6.1",
        "0.6.1",
        [],
        {"roles.rollout.max_model_len": 5120, "roles.rollout.max_running_requests": 1024},
    ),
    (
        "the older name of SGLang",
        "0.4.1",
        [f"{ARR}.rollout.name=sglang_async"],
        {"roles.rollout.engine": "sglang", "roles.rollout.memory_fraction_meaning": SGLANG_SHARE},
    ),
    (
        "the bucket has another key before 0.7.1",
        "0.7.0",
        [f"{ARR}.rollout.update_weights_bucket_megabytes=256"],
        {"weight_update.buffer_bytes": 256 << 20},
    ),
]


@pytest.mark.parametrize(("release", "overrides", "wanted"), [row[1:] for row in MEANINGS], ids=[row[0] for row in MEANINGS])
def test_what_a_command_means(release: str, overrides: list[str], wanted: dict[str, Any]) -> None:
    told = facts(*command(*GRPO, *overrides), release=release)
    assert {key: value(told, key) for key in wanted} == wanted


def test_a_group_replaces_the_whole_engine() -> None:
    kept = [word for word in GRPO if "fsdp" not in word]
    more = [f"{ARR}.actor.megatron.tensor_model_parallel_size=2", f"{ARR}.actor.megatron.param_offload=True"]
    told = facts(*command("model_engine=megatron", *kept, *more), release="0.8.0")
    assert value(told, "roles.actor.engine") == "megatron" and value(told, "roles.actor.layout.dp") == 4
    assert value(told, "roles.ref.layout.tp") == 2, "ref.megatron follows the actor"
    assert value(told, "roles.actor.grad_offload_effective") is True
    old = facts(*command("--config-name=ppo_megatron_trainer.yaml", *kept, *more), release="0.7.0")
    assert value(old, "roles.actor.engine") == "megatron"


def test_roles_that_are_not_built_are_told() -> None:
    told = facts(*command(*GRPO, f"{ARR}.actor.use_kl_loss=False"))
    assert "ref" not in told["roles"] and told["absent_roles"]["ref"]["v"] == "no KL loss and no KL in reward"
    adapters = facts(*command(*GRPO, f"{ARR}.model.lora_rank=16"))
    assert adapters["absent_roles"]["ref"]["v"].startswith("LoRA")


def test_the_world_of_sft_is_torchruns() -> None:
    words = [
        "--",
        "torchrun",
        "--nnodes=2",
        "--nproc_per_node",
        "4",
        "-m",
        "verl.trainer.sft_trainer",
        "model.path=Qwen/Qwen3-8B",
    ]
    told = facts(*words, release="0.8.0")
    assert value(told, "job.gpus_used") == 8 and value(told, "roles.trainer.layout.dp") == 8


def test_servers_of_an_asynchronous_trainer_have_gpus_of_their_own() -> None:
    words = command(
        *GRPO,
        "rollout.nnodes=1",
        "rollout.n_gpus_per_node=4",
        "trainer.n_gpus_per_node=4",
        module="verl.experimental.one_step_off_policy.main_ppo",
    )
    told = facts(*words, release="0.9.0")
    assert value(told, "job.placement") == "separated" and value(told, "job.gpus_used") == 8
    assert value(told, "roles.rollout.placement") == "own" and value(told, "weight_update.buffers") == 2


def job_of(*words: str, folder: Path = ROOT) -> dict[str, Any]:
    done = run("read", "--json", *words, folder=folder)
    assert done.returncode == 0, done.stderr
    job = dict(json.loads(done.stdout))
    job.pop("origins")
    return job


def test_a_file_and_a_command_are_one_job(tmp_path: Path) -> None:
    """A YAML of the user's own over verl's, one that Hydra composed before, and a script."""
    asked = ["--framework-version", "0.8.0"]
    typed = job_of(*asked, *command(*GRPO))
    tree: dict[str, Any] = {}
    for word in GRPO:
        key, text = word.split("=")
        at = tree
        *parents, last = key.split(".")
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = json.loads(text.lower()) if text in ("True", "False") or text[0].isdigit() else text
    (tmp_path / "composed.yaml").write_text(yaml.safe_dump(tree))
    own = {"defaults": ["ppo_trainer", "_self_"], "hydra": {"searchpath": ["file://verl/trainer/config"]}, **tree}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own, sort_keys=False))
    (tmp_path / "run.sh").write_text(
        "uv run --frozen --all-packages --extra vllm python3 -m verl.trainer.main_ppo "
        + " \\\n  ".join(GRPO)
        + ' "$@" 2>&1 | tee log\n'
    )
    assert job_of("own.yaml", *asked, folder=tmp_path) == typed
    assert job_of("composed.yaml", *asked, folder=tmp_path) == typed
    assert job_of("run.sh", *asked, folder=tmp_path) == typed


def test_a_script_of_an_older_release_is_read_as_one(tmp_path: Path) -> None:
    old = [*GRPO, f"{ARR}.rollout.update_weights_bucket_megabytes=512"]
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo " + " ".join(old) + "\n")
    done = run("read", "run.sh", folder=tmp_path)
    assert done.returncode == 0 and "read as of verl 0.7.0, the newest release that takes it" in done.stderr


REFUSED = {
    "an unknown key": ([f"{ARR}.actor.ppo_max_tokens=1"], "refused_by_framework", "ppo_max_tokens"),
    "a plus before a key that is there": ([f"+{ARR}.actor.ppo_mini_batch_size=8"], "refused_by_framework", "not there yet"),
    "a group at the wrong place": ([f"{ARR}.actor.model_engine=megatron"], "refused_by_framework", "model_engine=megatron"),
    "a number beyond all bounds": (["data.max_prompt_length=9223372036854775807"], "malformed", "data.max_prompt_length"),
    "no machine": (["trainer.n_gpus_per_node=-8"], "malformed", "trainer.n_gpus_per_node"),
    "no machine at all": (["trainer.nnodes=0"], "malformed", "trainer.nnodes"),
    "no degree": ([f"{ARR}.rollout.tensor_model_parallel_size=0"], "malformed", "tensor_model_parallel_size"),
    "a text for a number": (["trainer.nnodes=two"], "malformed", "trainer.nnodes"),
    "a flag that Hydra has not": (["--config-nam=x"], "malformed", "--config-name"),
    "no server": ([f"{ARR}.rollout.name=null"], "refused_by_framework", "vllm or sglang"),
    "no micro-batch": ([f"{ARR}.actor.use_dynamic_bsz=False"], "refused_by_framework", "ppo_micro_batch_size_per_gpu"),
    "another server": ([f"{ARR}.rollout.name=trtllm"], "not_supported", "the server 'trtllm'"),
    "another engine": (["model_engine=veomni"], "not_supported", "the engine 'veomni'"),
    "fused kernels of no backend": (
        [f"{ARR}.model.use_fused_kernels=True", f"{ARR}.model.fused_kernel_options.impl_backend=null"],
        "refused_by_framework",
        "impl_backend=torch or triton",
    ),
    "fused kernels of a critic": (
        ["algorithm.adv_estimator=gae", "critic.model.use_fused_kernels=True"],
        "not_supported",
        "use_fused_kernels of a critic",
    ),
    "a reward model of no name": (["reward.reward_model.enable=True"], "refused_by_framework", "reward.reward_model.model_path"),
    "an unknown model": ([f"{ARR}.model.path=nobody/has-this-8b"], "unknown_model", "hf download nobody/has-this-8b config.json"),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_refused_for_its_reason(row: tuple[list[str], str, str]) -> None:
    overrides, kind, words = row
    kept = [word for word in GRPO if "fsdp" not in word] if "model_engine=veomni" in overrides else GRPO
    done = run("estimate", "--json", "--framework-version", "0.8.0", *command(*kept, *overrides))
    assert done.returncode == 2, done.stdout
    error = json.loads(done.stdout)
    assert error["kind"] == kind and words in json.dumps(error), error


def fullest(done: subprocess.CompletedProcess[str]) -> int:
    """Bytes that the device must have which needs most."""
    assert done.returncode in (0, 1), done.stderr
    return max(int(phase["capacity_needed_bytes"]) for gpu in json.loads(done.stdout)["gpus"] for phase in gpu["phases"])


def test_advice_is_said_in_overrides_that_do_what_they_say() -> None:
    """Appended to the command, a remedy takes away what was told, and the release takes it."""
    asked = ["--framework-version", "0.8.0", "--gpu", "A100-40GB"]
    advice = json.loads(run("advise", "--json", *asked, *command(*GRPO)).stdout)
    worst = fullest(run("estimate", "--json", *asked, *command(*GRPO)))
    checked = 0
    for remedy in advice["remedies"]:
        assert all(word.lstrip("+").startswith((ARR, "data.", "critic.", "trainer.")) for word in remedy["overrides"]), remedy
        if checked == 4:
            continue
        after = fullest(run("estimate", "--json", *asked, *command(*GRPO, *remedy["overrides"])))
        assert worst - after == remedy["gain_bytes"], remedy
        checked += 1
    assert checked == 4


def test_search_is_said_in_overrides() -> None:
    asked = ["--framework-version", "0.8.0"]
    found = json.loads(run("search", "--json", "--keep", "3", *asked, *command(*GRPO)).stdout)
    for row in found["best"]:
        words = row["overrides"]
        again = json.loads(run("estimate", "--json", *asked, *command(*GRPO, *words)).stdout)
        assert again["fits"] and again["fit_probability"] == row["estimate"]["fit_probability"], words


def test_a_release_that_is_not_known_is_told() -> None:
    for asked, told in (("9.9", "0.10.0"), ("0.8.5", "0.8.0")):
        done = run("read", "--framework-version", asked, *command(*GRPO))
        assert done.returncode == 0 and f"called '{asked}'; read as {told}" in done.stderr, done.stderr
    for known in ("0.8", "v0.8.0", "0.3.0.post1", "head", "0.10.0.dev"):
        assert "no release of verl" not in run("read", "--framework-version", known, *command(*GRPO)).stderr


FUSED = f"{ARR}.model.use_fused_kernels=True"
TRITON = f"{ARR}.model.fused_kernel_options.impl_backend=triton"
FSDP1 = [word.replace("strategy=fsdp2", "strategy=fsdp") for word in GRPO]


@pytest.mark.parametrize(
    ("release", "overrides", "actor", "reference"),
    [
        ("0.7.1", [], "verl_fused_log_softmax", "verl_fused_log_softmax"),
        ("0.8.0", [], "verl_fused", "verl_fused"),
        ("0.8.0", [f"{ARR}.actor.entropy_coeff=0.01"], "verl_fused_entropy", "verl_fused"),
        ("0.10.0", [TRITON], "verl_fused_triton", "verl_fused_triton"),
        ("0.10.0", [TRITON, f"{ARR}.actor.entropy_coeff=0.01"], "verl_fused_triton_entropy", "verl_fused_triton"),
        # an entropy by chunks is not asked for
        (
            "0.9.0",
            [f"{ARR}.actor.entropy_coeff=0.01", f"{ARR}.actor.entropy_checkpointing=True"],
            "verl_fused_entropy",
            "verl_fused",
        ),
    ],
)
def test_fused_kernels_are_a_head_of_the_release(release: str, overrides: list[str], actor: str, reference: str) -> None:
    done = run("read", "--framework-version", release, *command(*FSDP1, FUSED, *overrides))
    assert done.returncode == 0, done.stderr
    job = yaml.safe_load(done.stdout)
    assert (job["actor"]["head"], job["ref"]["head"]) == (actor, reference)


def test_fused_kernels_need_less() -> None:
    asked = ["--json", "--framework-version", "0.9.0"]
    whole = fullest(run("estimate", *asked, *command(*FSDP1, f"{ARR}.rollout.gpu_memory_utilization=0.1")))
    for backend in ([], [TRITON]):
        fused = run("estimate", *asked, *command(*FSDP1, f"{ARR}.rollout.gpu_memory_utilization=0.1", FUSED, *backend))
        assert fullest(fused) < whole


def test_fused_kernels_of_fsdp2_want_a_tied_output_layer_or_an_old_release() -> None:
    """verl's own code reads the weight of a unit that nobody gathered."""
    small = [word.replace("Qwen3-8B", "Qwen3-0.6B") for word in GRPO]
    for release, overrides, status in (("0.9.0", GRPO, 2), ("0.7.0", GRPO, 0), ("0.9.0", small, 0)):
        done = run("estimate", "--quick", "--framework-version", release, *command(*overrides, FUSED))
        assert done.returncode == status, done.stderr
    told = run("estimate", "--framework-version", "0.9.0", *command(*GRPO, FUSED)).stderr
    assert "use_fused_kernels" in told and "strategy: fsdp" in told, told


LORA = [
    "algorithm.adv_estimator=grpo",
    f"{ARR}.model.path=Qwen/Qwen2.5-7B-Instruct",
    f"{ARR}.model.lora_rank=32",
    f"{ARR}.rollout.name=vllm",
    f"{ARR}.rollout.load_format=safetensors",
    f"{ARR}.actor.use_dynamic_bsz=True",
    f"{ARR}.rollout.log_prob_use_dynamic_bsz=True",
    "trainer.n_gpus_per_node=4",
]


def phases(*words: str, release: str) -> dict[str, int]:
    done = run("estimate", "--json", "--framework-version", release, *words)
    assert done.returncode in (0, 1), done.stderr
    gpu = json.loads(done.stdout)["gpus"][0]
    return {phase["phase"]: phase["capacity_needed_bytes"] for phase in gpu["phases"]}


@pytest.mark.parametrize(("release", "strategy"), [("0.7.0", "fsdp"), ("0.9.0", "fsdp"), ("0.9.0", "fsdp2")])
def test_adapters_are_read_out_of_what_is_gathered_around_them(release: str, strategy: str) -> None:
    """FSDP1 gathers the whole model in the format of its parameters, or one layer after another; FSDP2 the adapters alone."""

    def sends(layered: bool) -> int:
        words = command(*LORA, f"{ARR}.actor.strategy={strategy}", f"{ARR}.rollout.layered_summon={layered}")
        return phases(*words, release=release)["actor.send_weights"]

    parameters = 4 * 7_615_616_512
    gained = sends(False) - sends(True)
    assert gained == 0 if strategy == "fsdp2" else 0.8 * parameters < gained < 1.3 * parameters


def test_a_layered_summon_needs_servers_that_have_the_base() -> None:
    words = command(*[word for word in LORA if "load_format" not in word], f"{ARR}.rollout.layered_summon=True")
    done = run("check", "--framework-version", "0.9.0", *words)
    assert done.returncode == 2
    assert "verl itself refuses it beside layered_summon" in done.stderr


MEGATRON = [
    "algorithm.adv_estimator=grpo",
    f"{ARR}.model.path=Qwen/Qwen3-8B",
    f"{ARR}.rollout.name=vllm",
    f"{ARR}.actor.use_dynamic_bsz=True",
    f"{ARR}.rollout.log_prob_use_dynamic_bsz=True",
    f"{ARR}.actor.megatron.tensor_model_parallel_size=4",
    f"{ARR}.actor.megatron.param_offload=True",
    f"{ARR}.actor.megatron.optimizer_offload=True",
]


@pytest.mark.parametrize(
    ("release", "vanilla", "maker"), [("0.8.0", "", "mbridge"), ("0.9.0", "", "megatron-bridge"), ("0.9.0", "True", "mbridge")]
)
def test_who_makes_megatrons_models(release: str, vanilla: str, maker: str) -> None:
    more = [f"{ARR}.actor.megatron.vanilla_mbridge={vanilla}"] if vanilla else []
    done = run("read", "--framework-version", release, *command("model_engine=megatron", *MEGATRON, *more))
    assert done.returncode == 0, done.stderr
    assert f"models_by: {maker}" in done.stdout


def test_log_probs_under_megatron_have_a_budget_of_their_own() -> None:
    def log_probs(tokens: int) -> int:
        words = command("model_engine=megatron", *MEGATRON, f"{ARR}.rollout.log_prob_max_token_len_per_gpu={tokens}")
        told = phases(*words, release="0.9.0")
        return told["actor.log_probs"]

    assert log_probs(8192) < log_probs(16384) < log_probs(32768)
    logits = 2 * 16384 * 151936 // 4 * 4  # the entropy's copy and softmax beside the logits, of a rank
    assert log_probs(32768) - log_probs(16384) > logits


def test_servers_that_share_the_experts() -> None:
    words = [
        "algorithm.adv_estimator=grpo",
        f"{ARR}.model.path=Qwen/Qwen3-30B-A3B",
        f"{ARR}.rollout.name=vllm",
        f"{ARR}.actor.use_dynamic_bsz=True",
        f"{ARR}.rollout.tensor_model_parallel_size=2",
        f"{ARR}.rollout.data_parallel_size=4",
    ]
    done = run("read", "--framework-version", "0.9.0", *command(*words, f"{ARR}.rollout.expert_parallel_size=8"))
    assert done.returncode == 0, done.stderr
    assert "attention_data: 4" in done.stdout
    assert "layout: d4t2e8" in done.stdout
    done = run("read", "--framework-version", "0.9.0", *command(*words, f"{ARR}.rollout.expert_parallel_size=4"))
    assert done.returncode == 2
    assert "tensor_model_parallel_size x data_parallel_size (8)" in done.stderr


def test_a_remedy_is_a_diff_of_the_script_that_patch_applies(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text((ROOT / "examples/verl/grpo_8b.sh").read_text())
    words = ["--framework-version", "0.8.0", "--gpu", "A100-40GB"]
    told = json.loads(run("advise", "run.sh", *words, "--json", folder=tmp_path).stdout)
    written = [remedy for remedy in told["remedies"] if remedy["diff"]]
    assert len(written) >= 4
    assert {remedy["key"] for remedy in written} >= {f"{ARR}.rollout.enforce_eager", f"{ARR}.actor.ppo_max_token_len_per_gpu"}
    for remedy in written:
        script.write_text((ROOT / "examples/verl/grpo_8b.sh").read_text())
        done = subprocess.run(["patch", "-p0"], cwd=tmp_path, input=remedy["diff"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
        patched = json.loads(run("estimate", "run.sh", *words, "--json", folder=tmp_path).stdout)
        appended = json.loads(
            run("estimate", str(ROOT / "examples/verl/grpo_8b.sh"), *remedy["overrides"], *words, "--json").stdout
        )
        assert patched["verdict"] == appended["verdict"]


@pytest.mark.parametrize("more", [[], ["--algorithm", "ppo", "--reference"], ["--lora", "16"], ["--algorithm", "sft"]])
def test_a_described_job_is_a_script_that_is_estimated_as_its_row(more: list[str], tmp_path: Path) -> None:
    words = ["search", "--gpus", "8", "--model", "qwen2.5-7b", "--framework", "verl", "--keep", "2", *more]
    rows = json.loads(run(*words, "--json").stdout)["best"]
    script = tmp_path / "run.sh"
    for number, row in enumerate(rows, 1):
        script.write_text(run(*words, "--launch", str(number)).stdout)
        again = json.loads(run("estimate", "run.sh", "--framework-version", "0.9.0", "--json", folder=tmp_path).stdout)
        assert (again["verdict"], again["fit_probability"]) == (row["estimate"]["verdict"], row["estimate"]["fit_probability"])


def test_a_node_whose_memory_does_not_do_is_answered_like_a_gpu() -> None:
    """What breaks, when, and the remedy: what lies on the host between phases may stay on the GPU."""
    words = ["examples/verl/grpo_8b.sh", "--framework-version", "0.8.0", "--host-memory", "100GB"]
    done = run("estimate", *words)
    assert done.returncode == 1
    assert done.stdout.startswith("does not fit: the host memory of node 0 needs")
    advice = json.loads(run("advise", *words, "--json").stdout)
    first = advice["remedies"][0]
    assert (first["key"], first["to"], first["fits"]) == (f"{ARR}.actor.fsdp_config.optimizer_offload", "false", True)
    states = 8 * 8_190_735_360
    assert 0.9 * states < first["gain_bytes"] < 1.1 * states
    assert run("check", *words[:3], "--host-memory", "1TB").returncode == 0
    assert "--host-memory" in run("check", *words[:3], "--host-memory", "much").stderr


FIXED = [
    "algorithm.adv_estimator=grpo",
    f"{ARR}.model.path=Qwen/Qwen2.5-7B-Instruct",
    f"{ARR}.rollout.name=vllm",
    f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu=32",
    f"{ARR}.actor.ppo_micro_batch_size_per_gpu=32",
    f"{ARR}.actor.ppo_mini_batch_size=256",
    "data.max_prompt_length=1024",
    "data.max_response_length=1024",
]


def test_samples_may_be_shorter_than_the_settings_allow() -> None:
    """Batches that count sequences have as many tokens as these; the answer says what it took."""
    words = ["estimate", "--framework-version", "0.9.0", "--gpu", "H100-80GB"]
    as_allowed, shorter = (run(*words, *more, *command(*FIXED)) for more in ([], ["--sequence-tokens", "512"]))
    assert "as long as the settings allow, 2048 tokens; --sequence-tokens" in " ".join(as_allowed.stdout.split())
    assert "--sequence-tokens" not in shorter.stdout
    assert as_allowed.returncode == 1
    assert shorter.returncode == 0
    longer = run(*words, "--sequence-tokens", "1M", *command(*FIXED))
    assert longer.stdout.splitlines()[0] == as_allowed.stdout.splitlines()[0]


def test_lengths_are_for_jobs_whose_batches_count_sequences() -> None:
    done = run("check", "examples/areal/grpo_7b.yaml", "--sequence-tokens", "512")
    assert done.returncode == 2
    assert "their samples have lengths of their own; other jobs say their tokens" in done.stderr


SCRIPT = ["examples/verl/grpo_8b.sh", "--framework-version", "0.8.0", "--gpu", "A100-40GB"]


def test_guide_is_told_point_by_point_with_what_each_frees() -> None:
    done = run("advise", *SCRIPT, "--guide", "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    jsonschema.validate(told, json.loads((ROOT / "docs" / "schema" / "guide.schema.json").read_text()))
    assert list(dict.fromkeys(p["section"][:2] for p in told["points"])) == [f"{n}." for n in range(1, 10)]
    before = fullest(run("estimate", *SCRIPT, "--json"))
    changed = [p for p in told["points"] if p["overrides"]]
    assert len(changed) >= 8
    for point in changed:
        after = run("estimate", *SCRIPT, *point["overrides"], "--json")
        assert (point["gain_bytes"], point["fits"]) == (before - fullest(after), after.returncode == 0), point
    assert any(p["fits"] for p in changed)
    assert all(p["why"] for p in told["points"])


def test_guide_says_where_verl_s_guide_does_nothing() -> None:
    words = [
        f"{ARR}.model.path=Qwen/Qwen3-8B",
        "data.train_batch_size=64",
        f"{ARR}.actor.strategy=megatron",
        f"{ARR}.actor.megatron.tensor_model_parallel_size=4",
        f"{ARR}.actor.ppo_mini_batch_size=64",
        f"{ARR}.actor.ppo_micro_batch_size_per_gpu=1",
        f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu=1",
        f"{ARR}.rollout.name=vllm",
        "critic.enable=False",
        "algorithm.adv_estimator=grpo",
    ]
    asked = command("--config-name=ppo_megatron_trainer.yaml", *words)
    done = run("advise", "--framework-version", "0.8.0", "--gpu", "H100-80GB", "--guide", "--json", *asked)
    assert done.returncode in (0, 1), done.stderr
    points = {p["text"]: p for p in json.loads(done.stdout)["points"]}
    assert points["grad_offload"]["why"].startswith("verl parses it and does not read it")
    for text in ("gradient checkpointing", "activation offloading", "use_liger"):
        assert (points[text]["overrides"], points[text]["why"]) == ([], "it acts on FSDP alone")


@pytest.mark.parametrize("beside", [["--diff", "1"], ["--allow", "numerics"]])
def test_guide_takes_no_option_that_it_would_ignore(beside: list[str]) -> None:
    done = run("advise", *SCRIPT, "--guide", *beside)
    said = f"oomplan: command line {beside[0]}: found together with --guide, expected one of them"
    assert (done.returncode, done.stderr.startswith(said)) == (2, True), done.stderr


def test_guide_of_a_framework_without_one_is_refused_by_name() -> None:
    done = run("advise", "examples/areal/grpo_7b.yaml", "--framework-version", "1.0.4", "--guide")
    assert done.returncode == 2
    assert "--guide" in done.stderr and "not supported yet" in done.stderr


@pytest.mark.parametrize("installed", ["torch", "fla"])
def test_activations_of_linear_attention_may_be_offloaded(installed: str) -> None:
    """Passes without gradients have nothing to offload, whatever runs their loops."""
    model = [f"{ARR}.model.path=Qwen/Qwen3-Next-80B-A3B-Instruct", f"{ARR}.model.enable_activation_offload=True"]
    words = command(
        *GRPO, *model, f"{ARR}.actor.strategy=fsdp2", "trainer.nnodes=8", f"{ARR}.rollout.tensor_model_parallel_size=4"
    )
    done = run("check", "--framework-version", "0.10.0", "--gpu", "H100-80GB", "--linear-attention", installed, *words)
    assert done.returncode in (0, 1), done.stderr
