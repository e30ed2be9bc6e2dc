"""Relax's scripts and commands: what they mean, and the job that is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from test_slime import ROOT, run

SCRIPT = ROOT / "examples" / "relax" / "grpo_4b.sh"
RESOURCE = '{"actor": [1, 8], "rollout": [1, 8]}'
COLOCATED = "   --colocate \\\n"
PENALTY = "   --use-kl-loss\n   --kl-loss-coef 0.001\n"
APART = '{"actor": [1, 2], "rollout": [1, 2], "reference": [1, 2], "actor_fwd": [1, 2], "advantages": [1, 0]}'


def changed(tmp_path: Path, *changes: tuple[str, str], name: str = "run.sh") -> str:
    """The example with other lines."""
    text = SCRIPT.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def fully_async(tmp_path: Path, *changes: tuple[str, str], flags: str = "") -> str:
    """Every role on GPUs of its own; a rollout is two global batches."""
    return changed(
        tmp_path,
        (RESOURCE, APART),
        (COLOCATED, f"   --fully-async --max-staleness 2 {flags} \\\n"),
        ("--global-batch-size 256", "--global-batch-size 128"),
        *changes,
    )


def facts(path: str, *options: str) -> dict[str, Any]:
    done = run("read", path, "--facts", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def told(path: str, key: str) -> Any:
    node: Any = facts(path)
    for part in key.split("."):
        node = node[part]
    return node["v"]


def job(path: str, *options: str) -> dict[str, Any]:
    done = run("read", path, *options)
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


def notes(path: str) -> str:
    done = run("read", path)
    assert done.returncode == 0, done.stderr
    return done.stderr


def refused(path: str, *options: str) -> str:
    done = run("check", path, *options)
    assert done.returncode == 2, done.stdout
    return done.stderr


def test_a_python_of_a_folder_that_nobody_set_is_python(tmp_path: Path) -> None:
    path = changed(tmp_path, ("-- python3 -m", '-- "${TRAIN_VENV}/bin/python" -m'))
    assert job(path) == job(str(SCRIPT))
    path = changed(tmp_path, ("-- python3 -m relax.entrypoints.train", "-- python3 ${RELAX}/relax/entrypoints/train.py"))
    assert job(path) == job(str(SCRIPT))


def test_what_is_not_described_is_said_where_a_value_is_not_known(tmp_path: Path) -> None:
    path = changed(tmp_path, (COLOCATED, COLOCATED + '   --custom-model-provider-path "${OURS}" \\\n'))
    said = "--custom-model-provider-path: found '${OURS}', expected nothing: not supported yet: a model of your own code"
    assert said in refused(path)


def test_three_families_of_flags_are_one_job() -> None:
    read = job(str(SCRIPT))
    assert read["framework"] == "relax 2026.08"
    assert (read["rollout"]["layout"], read["rollout"]["engine"]) == ("d4t2", "sglang 0.5.15")
    actor = read["actor"]
    assert (actor["beside"], actor["layout"], actor["sequence_parallel"]) == ("rollout", "d4t2", True)
    assert (actor["cross_entropy"], actor["offload"]) == ("slime_sliced", ["parameters", "optimizer"])


def test_the_servers_are_those_of_the_states_image() -> None:
    for state, server in (("2026.05", "0.5.9"), ("2026.07", "0.5.9"), ("2026.08", "0.5.15"), ("2026.09", "0.5.17")):
        read = job(str(SCRIPT), "--framework-version", state)
        assert (read["framework"], read["rollout"]["engine"]) == (f"relax {state}", f"sglang {server}")
        assert read["actor"]["cross_entropy"] == ("slime_sliced" if state >= "2026.08" else "slime_samples")


def test_a_state_is_taken_that_has_the_flags_and_the_words(tmp_path: Path) -> None:
    """Newer than the one that a command without a version means only where a flag or word asks for it."""
    with_data = RESOURCE.replace("}", ', "sft": [1, 0]}')
    for more in ("--vit-lr 1e-7", "--loss-type dpo --prompt-data pairs.jsonl"):
        read = job(changed(tmp_path, (RESOURCE, with_data), ("--lr 1e-6", f"--lr 1e-6 {more}"), ("   --use-kl-loss\n", "")))
        assert read["framework"] == "relax 2026.09", more
    read = job(changed(tmp_path, ("--lr 1e-6", "--lr 1e-6 --vit-lr 1e-7")))
    assert (read["rollout"]["engine"], read["actor"]["cross_entropy"]) == ("sglang 0.5.17", "slime_sliced")


def test_pairs_of_a_preference_have_a_reference_on_the_host(tmp_path: Path) -> None:
    apart = (RESOURCE, '{"actor": [1, 8], "sft": [1, 0]}'), (COLOCATED, ""), ("   --use-kl-loss\n", "")
    pairs = "--lr 1e-6 --loss-type dpo --prompt-data pairs.jsonl"
    read = job(changed(tmp_path, *apart, ("--lr 1e-6", pairs)))
    assert read["trainer"]["weights_on_host"] == 2
    read = job(changed(tmp_path, *apart, ("--lr 1e-6", pairs + " --dpo-reference-free")))
    assert read["trainer"]["weights_on_host"] == 1


def test_estimators_of_branches_are_read_with_a_warning(tmp_path: Path) -> None:
    plain = job(str(SCRIPT))
    for word, more in (("p3o", ""), ("gdpo", " --gdpo-reward-keys correctness format"), ("dr_grpo", "")):
        path = changed(tmp_path, ("--advantage-estimator grpo", f"--advantage-estimator {word}{more}"))
        assert job(path) == plain
        said = notes(path)
        assert f"{word} is of a branch, redai-infra/Relax" in said
        assert "gdpo-reward-keys" not in said
    other = refused(changed(tmp_path, ("--advantage-estimator grpo", "--advantage-estimator p4o --gdpo-reward-keys a")))
    assert "--advantage-estimator: found 'p4o', expected grpo" in other


def test_python_that_prints_a_literal_is_read(tmp_path: Path) -> None:
    code = """import json

print(
    json.dumps(
        {
            "actor": [1, 8],  # the trainer
            'rollout': [1, 8],
        }
    )
)
"""
    here = f"$(\n  python3 - <<'PY'\n{code}PY\n)"
    assert job(changed(tmp_path, (f"'{RESOURCE}'", f'"{here}"'))) == job(str(SCRIPT))
    short = """$(python3 -c 'import json; print(json.dumps({"actor": [1, 8], "rollout": [1, 8]}))')"""
    assert job(changed(tmp_path, (f"'{RESOURCE}'", f'"{short}"'))) == job(str(SCRIPT))
    more = here.replace("[1, 8],  #", "[1, 4 * 2],  #")
    said = refused(changed(tmp_path, (f"'{RESOURCE}'", f'"{more}"')))
    assert "expected an object of JSON: `$(" in said and "is known only where it runs" in said


def test_ray_as_a_module_is_ray(tmp_path: Path) -> None:
    path = changed(tmp_path, ("ray job submit --address", "${VENV}/bin/python -m ray.scripts.scripts job submit --address"))
    assert job(path) == job(str(SCRIPT))


def test_the_root_of_a_checkout_is_found(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "more.sh").write_text("MORE=(--entropy-coef 0.01)\n")
    root = """HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "$(git -C "$HERE" rev-parse --show-toplevel)/more.sh"

ray job submit"""
    changed(tmp_path, ("ray job submit", root), ('   "$@"', '   "${MORE[@]}" "$@"'), name="scripts/run.sh")
    done = run("read", "scripts/run.sh", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["actor"]["entropy_loss"] is True


def test_a_script_that_counts_gpus_is_told_how_many(tmp_path: Path) -> None:
    counts = """N="$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)"
[[ "$N" == 4 ]] || { echo "4 GPUs are needed" >&2; exit 3; }

ray job submit"""
    path = changed(tmp_path, ("ray job submit", counts), (RESOURCE, '{"actor": [1, 4], "rollout": [1, 4]}'))
    assert "'4 GPUs are needed'; nobody said how many GPUs a machine has: --gpus N says it" in refused(path)
    assert job(path, "--gpus", "4")["gpus"] == "4 x H100-80GB"


def test_what_nobody_set_is_shown_by_its_name(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--hf-checkpoint Qwen/Qwen3-4B", "--hf-checkpoint ${MODELS}/Qwen3-4B"))
    assert told(path, "roles.actor.model") == "${MODELS}/Qwen3-4B"
    assert "no folder ${MODELS}/Qwen3-4B here" in notes(path)


def test_the_script_by_its_path_and_the_module_are_the_same(tmp_path: Path) -> None:
    by_path = changed(tmp_path, ("python3 -m relax.entrypoints.train", "python3 relax/entrypoints/train.py"))
    by_module = changed(tmp_path, name="module.sh")
    assert job(by_path) == job(by_module)


def test_a_line_in_an_array_that_is_commented_out_is_none(tmp_path: Path) -> None:
    """The example has `# --log-probs-max-tokens-per-gpu` and `# --entropy-coef` inside arrays."""
    actor = job(str(SCRIPT))["actor"]
    assert (actor["entropy_loss"], actor["logprob_tokens_per_micro_batch"]) == (False, "auto")
    on = job(
        changed(
            tmp_path,
            ("   # --entropy-coef 0.001", "   --entropy-coef 0.001"),
            ("   # --log-probs-max-tokens-per-gpu", "   --log-probs-max-tokens-per-gpu"),
        )
    )["actor"]
    assert (on["entropy_loss"], on["logprob_tokens_per_micro_batch"]) == (True, "18k")
    off = changed(tmp_path, ("   --recompute-granularity full", "   # --recompute-granularity full"))
    assert job(off)["actor"]["recompute"] == "none"


def test_a_missing_backslash_ends_the_command(tmp_path: Path) -> None:
    said = refused(changed(tmp_path, (COLOCATED, "   --colocate\n")))
    assert "expected a backslash at the end of the line before: bash ends the command in front of it" in said
    assert "--hf-checkpoint: found nothing" in said


def test_the_resource_counts_whatever_the_files_name_says(tmp_path: Path) -> None:
    path = changed(tmp_path, (RESOURCE, '{"actor": [1, 4], "rollout": [1, 4]}'), name="run-qwen3-4B-64xgpu-async.sh")
    assert (told(path, "job.gpus_used"), told(path, "job.mode")) == (4, "colocated")
    assert job(path)["gpus"] == "4 x H100-80GB"


def test_a_role_that_says_less_than_the_actor_is_told(tmp_path: Path) -> None:
    """With --colocate Relax gives the servers the actor's GPUs."""
    path = changed(tmp_path, (RESOURCE, '{"actor": [1, 8], "rollout": [1, 4]}'))
    assert job(path)["rollout"]["layout"] == "d4t2"
    assert "4 GPUs of the servers: with --colocate Relax takes the 8 of the actor" in notes(path)


def test_flags_of_gpus_give_way_to_the_resource(tmp_path: Path) -> None:
    """Where they are as they are by default."""
    path = changed(tmp_path, (RESOURCE, '{"actor": [1, 16], "rollout": [1, 16]}'))
    assert (told(path, "job.gpus_used"), job(path)["gpus"]) == (16, "16 x H100-80GB")


def test_servers_apart_never_sleep(tmp_path: Path) -> None:
    path = changed(tmp_path, (RESOURCE, '{"actor": [1, 4], "rollout": [1, 4]}'), (COLOCATED, ""))
    read = job(path)
    assert (read["gpus"], told(path, "job.mode")) == ("8 x H100-80GB", "separated")
    assert (read["actor"]["beside"], read["actor"]["offload"], read["rollout"]["layout"]) == ("none", [], "d2t2")


def test_fully_asynchronous_roles_have_gpus_of_their_own(tmp_path: Path) -> None:
    path = fully_async(tmp_path, flags="--ref-actor-config '{\"tensor_model_parallel_size\": 1}'")
    read = job(path)
    assert (told(path, "job.gpus_used"), read["gpus"]) == (8, "8 x H100-80GB")
    assert [read[role]["layout"] for role in ("rollout", "actor", "ref", "actor_fwd")] == ["t2", "t2", "d2", "d2"]
    assert [read[role]["beside"] for role in ("ref", "actor_fwd")] == ["none", "none"]
    shown = run("estimate", path).stdout
    assert "ref.log_probs" in shown and "actor_fwd.log_probs" in shown and "actor_fwd.backward" not in shown
    assert "actor.log_probs is not there" in shown.replace("\n    ", " ")


def test_the_forward_of_the_actor_is_not_started_where_a_rollout_is_one_batch(tmp_path: Path) -> None:
    path = changed(tmp_path, (RESOURCE, APART), (COLOCATED, "   --fully-async \\\n"))
    assert told(path, "roles.actor_fwd.starts") is False
    assert (told(path, "job.gpus_used"), "actor_fwd" in job(path)) == (6, False)


def test_a_budget_in_the_references_configuration_has_no_effect(tmp_path: Path) -> None:
    path = fully_async(tmp_path, flags="--ref-actor-config '{\"max_tokens_per_gpu\": 16384}'")
    assert job(path)["ref"]["tokens_per_micro_batch"] == "9k"
    assert "max_tokens_per_gpu 16384 of ref has no effect" in notes(path)


def test_the_budget_of_log_probs_is_that_of_the_passes_that_are_swapped_in(tmp_path: Path) -> None:
    """With nobody to swap in the actor has its own budget for them."""
    budget = ("   # --log-probs-max-tokens-per-gpu", "   --log-probs-max-tokens-per-gpu")
    assert job(changed(tmp_path, budget))["actor"]["logprob_tokens_per_micro_batch"] == "18k"
    assert job(changed(tmp_path, budget, (PENALTY, "")))["actor"]["logprob_tokens_per_micro_batch"] == "auto"


def test_hybrid_swaps_the_reference_into_the_actor(tmp_path: Path) -> None:
    path = changed(tmp_path, (RESOURCE, '{"actor": [1, 4], "rollout": [1, 4]}'), (COLOCATED, "   --hybrid \\\n"))
    read = job(path)
    assert (told(path, "job.mode"), told(path, "roles.ref.placement")) == ("hybrid", "swapped_into:actor")
    assert (read["actor"]["beside"], read["actor"]["offload"], "ref" in read) == ("none", [], False)


def test_supervised_training_starts_no_servers(tmp_path: Path) -> None:
    """Not even where --resource has GPUs for them."""
    path = changed(
        tmp_path,
        (RESOURCE, '{"sft": [1, 0], "actor": [1, 8], "rollout": [1, 8]}'),
        (COLOCATED, "   --colocate --loss-type sft \\\n"),
        (PENALTY, ""),
    )
    read = job(path)
    assert ("rollout" in read, read["trainer"]["layout"], read["trainer"]["cross_entropy"]) == (False, "d4t2", "slime_sliced")
    assert told(path, "roles.rollout.starts") is False


def test_a_file_of_values_replaces_flags(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("max_tokens_per_gpu: 16384\n")
    path = changed(tmp_path, (COLOCATED, f"   --colocate --custom-config-path {tmp_path}/more.yaml \\\n"))
    assert told(path, "roles.actor.micro_batch.tokens_per_gpu") == 16384
    away = changed(tmp_path, (COLOCATED, "   --colocate --custom-config-path elsewhere.yaml \\\n"))
    assert told(away, "roles.actor.micro_batch.tokens_per_gpu") == 9216
    assert "--custom-config-path" in notes(away)


def test_preferences_of_a_later_state_are_refused(tmp_path: Path) -> None:
    path = changed(tmp_path, (COLOCATED, "   --colocate --loss-type sft --sft-objective reward_model \\\n"))
    assert "--sft-objective: found 'reward_model', expected nothing: not supported yet: training of a reward model" in refused(
        path
    )


def test_dropout_of_a_model_that_megatron_bridge_makes_is_passed_over(tmp_path: Path) -> None:
    plain = changed(tmp_path, (COLOCATED, "   --colocate --megatron-to-hf-mode bridge \\\n"))
    before = run("estimate", plain).stdout
    path = changed(tmp_path, (COLOCATED, "   --colocate --megatron-to-hf-mode bridge --hidden-dropout 0.1 \\\n"))
    assert run("estimate", path).stdout == before


def test_tokens_of_a_server_may_be_stated(tmp_path: Path) -> None:
    path = changed(tmp_path, (COLOCATED, "   --colocate --sglang-max-total-tokens 20480 \\\n"))
    done = json.loads(run("estimate", "--json", path).stdout)
    assert done["servers"][0]["kv_tokens_per_replica"] == 20480


def test_a_classifiers_head_has_its_labels(tmp_path: Path) -> None:
    def trained(flags: str) -> dict[str, Any]:
        change = ('{"actor": [1, 8], "rollout": [1, 8]}', '{"actor": [1, 8], "sft": [1, 0]}')
        path = changed(tmp_path, (COLOCATED, f"   --colocate --megatron-to-hf-mode bridge --loss-type sft {flags} \\\n"), change)
        done = json.loads(run("estimate", "--json", path).stdout)
        return {p["phase"]: p["by_category_bytes"] for p in done["gpus"][0]["phases"]}

    plain, classes = trained(""), trained("--task-type seq_cls --num-labels 2")
    assert classes["trainer.forward"].get("logits", 0) == 0 < plain["trainer.forward"]["logits"]
    assert classes["trainer.load"]["weights"] >= plain["trainer.load"]["weights"] - (1 << 20)


def test_a_misspelt_flag_changes_nothing_and_is_told(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 9216\n   --max-stalenes 2"))
    assert "did you mean --max-staleness?" in notes(path)


def test_advice_is_in_flags(tmp_path: Path) -> None:
    done = run("advise", str(SCRIPT), "--gpu", "A100-40GB")
    assert "append  --sglang-mem-fraction-static=" in done.stdout


def test_a_job_file_may_name_the_framework(tmp_path: Path) -> None:
    done = run("read", str(SCRIPT))
    (tmp_path / "job.yaml").write_text(done.stdout)
    again = run("estimate", str(tmp_path / "job.yaml"))
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[0] == run("estimate", str(SCRIPT)).stdout.splitlines()[0]


def with_flags(tmp_path: Path, flags: str, *changes: tuple[str, str]) -> dict[str, Any]:
    return job(changed(tmp_path, (COLOCATED, f"{COLOCATED.rstrip()[:-1]} {flags} \\\n"), *changes))


def test_adapters_stand_beside_the_layers_that_are_named(tmp_path: Path) -> None:
    read = with_flags(tmp_path, "--lora-rank 16 --lora-alpha 64 --lora-target-modules linear_qkv linear_fc2")
    lora = read["actor"]["lora"]
    assert (lora["rank"], lora["alpha"], lora["targets"], lora["format"]) == (16, 64, ["linear_qkv", "linear_fc2"], "storage")
    assert (read["rollout"]["sleep"], read["rollout"]["lora"]["slots"]) == (2, "none")  # merged before they are sent


def test_servers_have_room_for_one_adapter_that_is_not_merged(tmp_path: Path) -> None:
    rollout = with_flags(tmp_path, "--lora-rank 16 --lora-adapter-mode")["rollout"]
    assert (rollout["sleep"], rollout["lora"]["slots"], rollout["lora"]["rank"]) == (1, 1, 16)
    assert rollout["lora"]["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_adapters_of_a_role_for_log_probs_are_not_described(tmp_path: Path) -> None:
    said = refused(fully_async(tmp_path, flags="--lora-rank 16"))
    assert "--lora-rank: found 16 of actor_fwd" in said and "not supported yet: adapters of a role that is not trained" in said


def test_half_precision_has_whole_masters(tmp_path: Path) -> None:
    read = with_flags(tmp_path, "--fp16")
    assert (read["actor"]["precision_aware_optimizer"], read["actor"]["fp32_masters"]) == (True, True)
    assert read["rollout"]["weights"] == "fp16"


def test_padded_samples_are_as_long_as_the_longest(tmp_path: Path) -> None:
    packed = ("   --use-dynamic-batch-size\n   --max-tokens-per-gpu 9216\n", "   --micro-batch-size 2\n")
    actor = with_flags(tmp_path, "--qkv-format bshd", packed)["actor"]
    assert (actor["sequences_per_micro_batch"], actor["sequence_tokens"]) == (2, "9k")


def test_a_degree_that_follows_the_sequences_is_the_largest(tmp_path: Path) -> None:
    flags = "--dynamic-context-parallel --calculate-per-token-loss --rollout-max-context-len 16384"
    actor = with_flags(tmp_path, flags)["actor"]
    assert actor["layout"] == "d2t2c2"
    assert actor["tokens_per_micro_batch"] == "24k"  # 2 x 9216, of which one of two ranks can have two thirds


def test_any_number_of_chunks_is_answered(tmp_path: Path) -> None:
    worst = [
        run(
            "estimate",
            changed(tmp_path, (COLOCATED, f"   --colocate --recompute-loss-function --log-probs-chunk-size {rows} \\\n")),
        )
        for rows in (1, 4, 256)
    ]
    assert [done.returncode for done in worst] == [0, 0, 0]
    peaks = [next(line for line in done.stdout.splitlines() if "actor.backward" in line).split()[1] for done in worst]
    assert max(map(float, peaks)) < 1.03 * min(map(float, peaks)), peaks


def test_the_longest_sample_may_be_longer_than_any_flag_says() -> None:
    read = job(str(SCRIPT), "--sequence-tokens", "20000")
    assert read["actor"]["tokens_per_micro_batch"] == 20224
