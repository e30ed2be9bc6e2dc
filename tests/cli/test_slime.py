"""slime's scripts and commands: what they mean, and the job that is made of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve())
SCRIPT = ROOT / "examples" / "slime" / "grpo_4b.sh"


def run(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def changed(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """The example with other lines."""
    text = SCRIPT.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    (tmp_path / "run.sh").write_text(text)
    return str(tmp_path / "run.sh")


def facts(path: str, release: str = "0.3.1") -> dict[str, Any]:
    done = run("read", path, "--facts", "--framework-version", release)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def told(path: str, key: str, release: str = "0.3.1") -> Any:
    node: Any = facts(path, release)
    for part in key.split("."):
        node = node[part]
    return node["v"]


def job(path: str, *options: str) -> dict[str, Any]:
    done = run("read", path, *options)
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


def refused(path: str, release: str = "0.3.1") -> str:
    done = run("check", path, "--framework-version", release)
    assert done.returncode == 2, done.stdout
    return done.stderr


def test_three_families_of_flags_are_one_job() -> None:
    read = job(str(SCRIPT))
    assert read["framework"] == "slime 0.3.1"
    assert read["rollout"]["layout"] == "d4t2"
    assert read["rollout"]["mem_fraction_static"] == 0.7
    assert read["rollout"]["engine"] == "sglang 0.5.15"
    actor = read["actor"]
    assert (actor["beside"], actor["layout"], actor["sequence_parallel"]) == ("rollout", "d4t2", True)
    assert (actor["recompute"], actor["cross_entropy"], actor["distributed_optimizer"]) == ("full", "slime", True)
    assert actor["attention_mask"] is False
    assert actor["offload"] == ["parameters", "optimizer"]


def test_every_value_has_the_place_of_its_flag() -> None:
    fact = facts(str(SCRIPT))["roles"]["actor"]["micro_batch"]["tokens_per_gpu"]
    assert (fact["v"], fact["w"]) == (9216, "--max-tokens-per-gpu")


def test_a_line_in_an_array_that_is_commented_out_is_none(tmp_path: Path) -> None:
    """The example has `# --entropy-coef` inside GRPO_ARGS."""
    assert job(str(SCRIPT))["actor"]["entropy_loss"] is False
    on = changed(tmp_path, ("   # --entropy-coef 0.001", "   --entropy-coef 0.001"))
    assert job(on)["actor"]["entropy_loss"] is True
    off = changed(tmp_path, ("   --recompute-granularity full", "   # --recompute-granularity full"))
    assert job(off)["actor"]["recompute"] == "none"


def test_a_missing_backslash_ends_the_command(tmp_path: Path) -> None:
    said = refused(changed(tmp_path, ("   --colocate \\\n", "   --colocate\n")))
    assert "expected a backslash at the end of the line before: bash ends the command in front of it" in said
    assert "--hf-checkpoint: found nothing" in said


def test_the_reference_is_the_actors_memory() -> None:
    read = job(str(SCRIPT))
    assert "ref" not in read
    assert facts(str(SCRIPT))["roles"]["ref"]["placement"]["v"] == "swapped_into:actor"


def test_log_probs_of_the_training_pass_have_no_pass_of_their_own(tmp_path: Path) -> None:
    """Where nobody but the loss asks for them, and a rollout is one step."""
    told = "slime takes the log-probs of the training pass"
    alone = changed(tmp_path, ("   --use-kl-loss\n", ""))
    shown = run("estimate", alone).stdout
    assert told in shown.replace("\n    ", " ") and "actor.forward" in shown and "\n    actor.log_probs" not in shown
    steps = changed(tmp_path, ("   --use-kl-loss\n", ""), ("--global-batch-size 256", "--global-batch-size 128"))
    assert told not in run("estimate", steps).stdout.replace("\n    ", " ")
    assert told not in run("estimate", str(SCRIPT)).stdout.replace("\n    ", " ")


def test_log_probs_of_the_servers_have_no_pass(tmp_path: Path) -> None:
    told = "slime takes the log-probs of its servers"
    alone = changed(tmp_path, ("   --use-kl-loss\n", "   --use-rollout-logprobs\n"))
    assert told in run("estimate", alone).stdout.replace("\n    ", " ")
    assert told not in run("estimate", str(SCRIPT)).stdout.replace("\n    ", " ")


def test_a_coefficient_of_zero_has_a_reference_too(tmp_path: Path) -> None:
    assert told(changed(tmp_path, ("--kl-loss-coef 0.001", "--kl-loss-coef 0.00")), "job.reference_needed") is True
    assert told(changed(tmp_path, ("   --use-kl-loss\n", "")), "job.reference_needed") is False


def test_the_budget_counts_the_tokens_of_a_gpu(tmp_path: Path) -> None:
    """Times the context-parallel degree, padded to what the ranks split: 2 x 9217 tokens to a multiple of 2 x 256."""
    path = changed(
        tmp_path,
        ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 --context-parallel-size 2"),
        ("--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 9217"),
    )
    assert told(path, "roles.actor.micro_batch.tokens_per_micro_batch_of_cp_group") == 2 * 9217
    assert job(path)["actor"]["tokens_per_micro_batch"] == 18944


def test_a_longer_sample_goes_alone(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 4096"))
    read = job(path)["actor"]
    assert (read["tokens_per_micro_batch"], read["micro_batches"]) == ("9k", 64)


def test_servers_apart_never_sleep(tmp_path: Path) -> None:
    path = changed(tmp_path, ("   --colocate \\\n", "   --rollout-num-gpus 4 \\\n"), ("NUM_GPUS:-8", "NUM_GPUS:-4"))
    read = job(path)
    assert read["gpus"] == "8 x H100-80GB"
    assert (read["actor"]["beside"], read["actor"]["offload"], read["rollout"]["layout"]) == ("none", [], "d2t2")


def test_the_asynchronous_trainer_shares_no_gpus(tmp_path: Path) -> None:
    assert "--colocate: found the flag" in refused(changed(tmp_path, ("train.py", "train_async.py")))


def test_supervised_training_has_no_servers(tmp_path: Path) -> None:
    path = changed(
        tmp_path, ("   --colocate \\\n", "   --loss-type sft_loss --debug-train-only \\\n"), ("   --use-kl-loss\n", "")
    )
    read = job(path)
    assert "rollout" not in read
    assert read["trainer"]["cross_entropy"] == "slime"


def test_steps_of_a_rollout_say_the_batch(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--global-batch-size 256", "--num-steps-per-rollout 4"))
    assert job(path)["sequences_per_step"] == 64
    both = changed(tmp_path, ("--global-batch-size 256", "--global-batch-size 128 --num-steps-per-rollout 4"))
    assert "--global-batch-size: found 128, expected 64, of 256 sequences in 4 steps" in refused(both)


def test_what_no_parser_knows_is_told(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--use-dynamic-batch-size", "--use-dynamic-batch-size --tensor_model_parallel_size 4"))
    notes = facts(path)["notes"]
    expected = "no flag of slime 0.3.1: its parsers pass over it; did you mean --tensor-model-parallel-size?"
    assert expected in notes
    assert told(path, "roles.actor.layout.tp") == 2


def test_a_flag_of_another_release_is_told_with_them(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--use-dynamic-batch-size", "--use-dynamic-batch-size --train-memory-margin-bytes 0"))
    notes = facts(path)["notes"]
    assert "no flag of slime 0.3.1: its parsers pass over it; slime 0.2.0 to 0.3.0 has it" in notes


def test_the_release_is_the_newest_that_has_all_flags(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--use-dynamic-batch-size", "--use-dynamic-batch-size --train-memory-margin-bytes 0"))
    assert job(path)["framework"] == "slime 0.3.0"
    newer = changed(tmp_path, ("--use-dynamic-batch-size", "--use-dynamic-batch-size --freeze-indexer"))
    done = run("read", newer, "--facts")
    assert json.loads(done.stdout)["framework_version"] == "0.4.0"


@pytest.mark.parametrize("release", ["0.1.0", "0.2.0", "0.2.1", "0.2.2", "0.2.3", "0.2.4", "0.3.0", "0.3.1", "0.4.0"])
def test_every_release_answers(release: str) -> None:
    done = run("estimate", "--json", str(SCRIPT), "--framework-version", release)
    assert done.returncode == 0, done.stderr
    phases = {phase["phase"] for group in json.loads(done.stdout)["gpus"] for phase in group["phases"]}
    assert {"rollout.start", "actor.log_probs", "actor.backward", "actor.optimizer"} <= phases


def test_the_loss_of_a_release_is_its_own() -> None:
    """One sample of full length fills the budget: what 0.3.0 and before copy are two tensors of fp32 logits more."""
    logits = 4 * 9216 * (152064 // 2)  # tokens x a rank's part of the padded vocabulary

    def highest(release: str) -> int:
        done = run("estimate", "--json", str(SCRIPT), "--framework-version", release)
        assert done.returncode == 0, done.stderr
        phases = json.loads(done.stdout)["gpus"][0]["phases"]
        return next(int(phase["allocated_bytes"]) for phase in phases if phase["phase"] == "actor.forward")

    of = {release: highest(release) for release in ("0.2.1", "0.2.4", "0.3.0", "0.3.1")}
    assert of["0.3.0"] - of["0.3.1"] == pytest.approx(2 * logits, rel=0.001)
    assert of["0.2.4"] - of["0.3.1"] == pytest.approx(2 * logits, rel=0.001)
    assert of["0.2.1"] - of["0.2.4"] == pytest.approx(logits, rel=0.001)  # divided by a temperature of 1


def test_servers_start_on_empty_gpus() -> None:
    done = run("estimate", "--json", str(SCRIPT))
    names = [phase["phase"] for phase in json.loads(done.stdout)["gpus"][0]["phases"]]
    assert names.index("rollout.start") < names.index("actor.load")


def test_an_optimizer_on_the_host_leaves_the_gpu(tmp_path: Path) -> None:
    def weights_and_states(path: str) -> int:
        done = run("estimate", "--json", path)
        assert done.returncode == 0, done.stderr
        phases = {p["phase"]: p["capacity_needed_bytes"] for p in json.loads(done.stdout)["gpus"][0]["phases"]}
        return int(phases["actor.optimizer"])

    host = changed(
        tmp_path,
        ("   --attention-backend flash", "   --attention-backend flash --optimizer-cpu-offload --use-precision-aware-optimizer"),
    )
    # fp32 masters and two states of a rank: 12 bytes x 2.01e9 parameters / 4 ranks
    assert weights_and_states(str(SCRIPT)) - weights_and_states(host) > 5.0e9


def test_our_own_job_files_know_slime(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(run("read", str(SCRIPT)).stdout)
    again = json.loads(run("estimate", "--json", str(tmp_path / "job.yaml")).stdout)
    first = json.loads(run("estimate", "--json", str(SCRIPT)).stdout)
    assert again["gpus"] == first["gpus"]
    (tmp_path / "job.yaml").write_text(
        "oomplan: 1\ngpus: 8 x H100-80GB\nmodel: qwen3-4b\nframework: slime\nprompt_tokens: 1k\nresponse_tokens: 1k\n"
        "actor: {engine: fsdp2, layout: d8, beside: rollout, tokens_per_micro_batch: 8k}\nrollout: {engine: sglang, layout: d4t2}\n"
    )
    assert "megatron, or slime 0.2.0 to 0.2.2" in run("check", str(tmp_path / "job.yaml")).stderr
    ddp = (tmp_path / "job.yaml").read_text().replace("fsdp2", "ddp")
    (tmp_path / "job.yaml").write_text(ddp)
    assert "not supported yet: slime's other engines" in run("check", str(tmp_path / "job.yaml")).stderr


def remedies(path: str, *options: str) -> list[dict[str, Any]]:
    done = run("advise", "--json", path, *options)
    assert done.returncode in (0, 1), done.stderr
    return list(json.loads(done.stdout)["remedies"])


def test_advice_is_flags_behind_the_command(tmp_path: Path) -> None:
    """Each gain is that of the command with the flags appended: the last one of a name counts."""
    small = ("--gpu", "A100-40GB")
    larger = [("--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 40960"), ("response-len 8192", "response-len 16384")]
    path = changed(tmp_path, *larger)
    budget = next(r for r in remedies(path, *small) if r["key"] == "--max-tokens-per-gpu")

    def worst(script: str) -> int:
        answer = json.loads(run("estimate", "--json", script, *small).stdout)
        return int(max(p["capacity_needed_bytes"] for g in answer["gpus"] for p in g["phases"]))

    before = worst(path)
    after = worst(changed(tmp_path, *larger, ('"$@"', " ".join(budget["overrides"]))))
    assert before - after == budget["gain_bytes"] > 0


def test_a_remedy_is_a_diff_of_the_script_that_patch_applies(tmp_path: Path) -> None:
    """A value in its place, a new flag beside others of its array: both say what the words behind the command say."""
    script = tmp_path / "run.sh"
    text = SCRIPT.read_text()
    script.write_text(text)
    told = json.loads(run("advise", "run.sh", "--gpu", "A100-40GB", "--json", folder=tmp_path).stdout)
    written = [remedy for remedy in told["remedies"] if remedy["diff"]]
    assert len(written) == len(told["remedies"]) >= 3
    assert any("=" not in flag and flag.startswith("--") for remedy in written for flag in remedy["overrides"])
    for remedy in written:
        script.write_text(text)
        done = subprocess.run(["patch", "-p0"], cwd=tmp_path, input=remedy["diff"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
        patched = json.loads(run("estimate", "run.sh", "--gpu", "A100-40GB", "--json", folder=tmp_path).stdout)
        behind = " ".join(flag for flag in remedy["overrides"] if not flag.startswith("~"))
        script.write_text(text.replace('"$@"', f'{behind} "$@"'))
        out = [flag for flag in remedy["overrides"] if flag.startswith("~")]
        appended = json.loads(run("estimate", "run.sh", *out, "--gpu", "A100-40GB", "--json", folder=tmp_path).stdout)
        assert patched["verdict"] == appended["verdict"]


def test_a_flag_is_taken_out(tmp_path: Path) -> None:
    assert job(str(SCRIPT))["actor"]["recompute"] == "full"
    assert job(str(SCRIPT), "~--recompute-granularity")["actor"]["recompute"] == "none"
    done = run("check", str(SCRIPT), "~--recompute-granularty")
    assert done.returncode == 2
    assert (
        "command line ~--recompute-granularty: found no such flag in the command, expected a flag to take out of it"
        " (did you mean '--recompute-granularity'?)"
    ) in done.stderr
    # in a command of one line, the value goes with its flag
    line = ["python3", "train.py", *["--actor-num-gpus-per-node", "8", "--colocate", "--rollout-batch-size", "32"]]
    line += ["--hf-checkpoint", "Qwen/Qwen3-4B", "--num-rollout", "3"]
    done = run("check", "~--rollout-batch-size", "--", *line)
    assert "--rollout-batch-size: found nothing" in done.stderr


def test_adam_without_states_keeps_masters_alone(tmp_path: Path) -> None:
    usual = json.loads(run("estimate", str(SCRIPT), "--json").stdout)
    path = changed(tmp_path, ("--lr 1e-6", "--lr 1e-6\n   --use-stateless-adam\n   --no-save-optim"))
    done = run("estimate", path, "--framework-version", "0.4.0", "--json")
    phase = {p["phase"]: p for p in json.loads(done.stdout)["gpus"][0]["phases"]}["actor.optimizer"]
    before = {p["phase"]: p for p in usual["gpus"][0]["phases"]}["actor.optimizer"]
    states = before["by_category_bytes"]["optimizer"] - phase["by_category_bytes"]["optimizer"]
    assert 0 < states < before["by_category_bytes"]["optimizer"] * 2 // 3  # two of three, and the step makes some
    path = changed(tmp_path, ("--lr 1e-6", "--lr 1e-6\n   --use-stateless-adam"))
    assert "expected --no-save-optim beside it: slime itself asks for it" in refused(path, "0.4.0")


def test_where_little_is_free_the_cache_is_emptied_all_the_time(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 24576"))
    words = ["estimate", path, "--gpu", "A100-40GB", "--sequence-tokens", "24576", "--framework-version"]
    shown = run(*words, "0.3.1").stdout.replace("\n    ", " ")
    assert "less than 3.00 GiB: the cache is emptied before every collective" in shown
    assert "is emptied before" not in run(*words, "0.2.2").stdout.replace("\n    ", " ")


def test_a_search_says_flags_that_mean_what_was_found(tmp_path: Path) -> None:
    found = json.loads(run("search", str(SCRIPT), "--keep", "3", "--json").stdout)
    best = found["best"]
    assert len(best) == 3 and best[0]["relative_step_time"] < found["as_it_stands"]["relative_step_time"]
    for candidate in best:
        out = [o for o in candidate["overrides"] if o.startswith("~")]
        flags = [o for o in candidate["overrides"] if not o.startswith("~")]
        again = run("estimate", changed(tmp_path, ('"$@"', " ".join(flags))), *out, "--json")
        assert again.returncode == 0
        assert json.loads(again.stdout)["gpus"][0]["headroom_bytes"] == candidate["estimate"]["gpus"][0]["headroom_bytes"]


def test_a_search_leaves_a_flag_that_is_fixed_alone() -> None:
    found = run("search", str(SCRIPT), "--keep", "3", "--fix", "--tensor-model-parallel-size", "--json")
    for candidate in json.loads(found.stdout)["best"]:
        assert not any("tensor-model-parallel-size" in o for o in candidate["overrides"])


# ---- layers that slime brings itself

QWEN35 = """
   --spec "slime_plugins.models.qwen3_5" "get_qwen3_5_spec"
   --swiglu --disable-bias-linear --qk-layernorm --group-query-attention --use-gated-attention --attention-output-gate
   --num-layers 32 --hidden-size 4096 --ffn-hidden-size 12288
   --num-attention-heads 16 --num-query-groups 4 --kv-channels 256
   --normalization RMSNorm --apply-layernorm-1p --norm-epsilon 1e-6
   --position-embedding-type rope --rotary-percent 0.25 --rotary-base 10000000
   --untie-embeddings-and-output-weights --vocab-size 248320
"""
QWEN3_NEXT = """
   --spec "slime_plugins.models.qwen3_next" "get_qwen3_next_spec"
   --swiglu --disable-bias-linear --qk-layernorm --group-query-attention --use-gated-attention --attention-output-gate
   --num-layers 48 --hidden-size 2048 --ffn-hidden-size 5120
   --num-attention-heads 16 --num-query-groups 2 --kv-channels 256
   --normalization RMSNorm --apply-layernorm-1p --norm-epsilon 1e-6
   --position-embedding-type rope --rotary-percent 0.25 --rotary-base 10000000
   --untie-embeddings-and-output-weights --vocab-size 151936
   --num-experts 512 --moe-ffn-hidden-size 512 --moe-router-topk 10 --moe-shared-expert-intermediate-size 512
   --moe-shared-expert-gate --moe-grouped-gemm --moe-permute-fusion --moe-router-dtype fp32 --moe-aux-loss-coeff 0
   --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 --expert-tensor-parallel-size 1
"""
GLM4 = """
   --spec "slime_plugins.models.glm4" "get_glm_spec"
   --swiglu --disable-bias-linear --add-qkv-bias --group-query-attention
   --num-layers 40 --hidden-size 4096 --ffn-hidden-size 13696 --num-attention-heads 32 --num-query-groups 2
   --normalization RMSNorm --norm-epsilon 1e-5 --post-self-attn-layernorm --post-mlp-layernorm
   --use-rotary-position-embeddings --rotary-interleaved --rotary-percent 0.5 --rotary-base 10000 --no-rope-fusion
   --untie-embeddings-and-output-weights --vocab-size 151552
"""
MINIMAX = """
   --spec "slime_plugins.models.minimax_m2" "get_minimax_m2_layer_spec"
   --swiglu --disable-bias-linear --qk-layernorm --group-query-attention
   --num-layers 62 --hidden-size 3072 --ffn-hidden-size 1536
   --num-attention-heads 48 --num-query-groups 8 --kv-channels 128
   --normalization RMSNorm --norm-epsilon 1e-6
   --position-embedding-type rope --rotary-percent 0.5 --rotary-base 5000000 --no-rope-fusion
   --untie-embeddings-and-output-weights --vocab-size 200064
   --num-experts 256 --moe-ffn-hidden-size 1536 --moe-router-topk 8 --moe-router-score-function sigmoid
   --moe-router-pre-softmax --moe-router-enable-expert-bias --moe-router-load-balancing-type none --moe-grouped-gemm
   --moe-permute-fusion --moe-router-dtype fp32 --moe-aux-loss-coeff 0 --moe-token-dispatcher-type alltoall
   --expert-model-parallel-size 8 --expert-tensor-parallel-size 1
"""
MIMO = """
   --swiglu --disable-bias-linear --add-qkv-bias --group-query-attention
   --num-layers 36 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --num-query-groups 8
   --normalization RMSNorm --norm-epsilon 1e-5 --use-rotary-position-embeddings --rotary-base 640000
   --untie-embeddings-and-output-weights --vocab-size 151680 --max-position-embeddings 32768
   --mtp-num-layers 1 --enable-mtp-training --mtp-loss-scaling-factor 0.2
"""


def of_model(tmp_path: Path, arguments: str, checkpoint: str, *changes: tuple[str, str]) -> str:
    """The example with another model."""
    text = SCRIPT.read_text()
    begin, end = text.index("MODEL_ARGS=("), text.index("CKPT_ARGS=(")
    text = text[:begin] + f"MODEL_ARGS=({arguments})\n" + text[end:]
    for before, after in (("--hf-checkpoint Qwen/Qwen3-4B", f"--hf-checkpoint {checkpoint}"), *changes):
        assert before in text, before
        text = text.replace(before, after)
    (tmp_path / "run.sh").write_text(text)
    return str(tmp_path / "run.sh")


def phases_of(path: str) -> set[str]:
    """Of the actor."""
    done = run("estimate", path, "--framework-version", "0.4.0", "--gpu", "H100-80GB")
    assert done.returncode in (0, 1), done.stderr
    return {line.split()[0].removeprefix("actor.") for line in done.stdout.splitlines() if line.startswith("    actor.")}


MODELS = {
    "Qwen/Qwen3.5-9B": (QWEN35, "Qwen/Qwen3.5-9B:text"),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (QWEN3_NEXT, "Qwen/Qwen3-Next-80B-A3B-Instruct"),
    "zai-org/GLM-4-9B-0414": (GLM4, "zai-org/GLM-4-9B-0414"),
    "MiniMaxAI/MiniMax-M2": (MINIMAX, "MiniMaxAI/MiniMax-M2"),
    "XiaomiMiMo/MiMo-7B-RL": (MIMO, "XiaomiMiMo/MiMo-7B-RL"),
}


@pytest.mark.parametrize("checkpoint", MODELS)
def test_layers_that_slime_brings_itself_are_answered(tmp_path: Path, checkpoint: str) -> None:
    arguments, trained = MODELS[checkpoint]
    path = of_model(tmp_path, arguments, checkpoint)
    read = job(path, "--framework-version", "0.4.0")
    assert read["rollout"].get("model", read.get("model")) == checkpoint
    assert read["actor"].get("model", read.get("model")) == trained  # the text alone where servers have a tower
    assert {"log_probs", "forward", "backward", "optimizer"} <= phases_of(path)


NOT_SO = [
    ("Qwen/Qwen3.5-9B", QWEN35, ('--spec "slime_plugins.models.qwen3_5" "get_qwen3_5_spec"', ""), "--spec: found nothing"),
    ("Qwen/Qwen3.5-9B", QWEN35, ("qwen3_5", "qwen3_next"), "--spec: found 'slime_plugins.models.qwen3_next'"),
    ("Qwen/Qwen3.5-9B", QWEN35, ("get_qwen3_5_spec", "get_mine"), "layers of another specification"),
    ("Qwen/Qwen3.5-9B", QWEN35, ("--attention-output-gate", ""), "--attention-output-gate: found nothing, expected the flag"),
    ("Qwen/Qwen3.5-9B", QWEN35, ("--swiglu", "--swiglu --qwen-gdn-backend flashqla"), "FlashQLA's gated delta rules"),
    ("Qwen/Qwen3.5-9B", QWEN35, ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 8"), "in 4 groups on 8 ranks"),
    ("zai-org/GLM-4-9B-0414", GLM4, ("--post-mlp-layernorm", ""), "--post-mlp-layernorm: found nothing, expected the flag"),
    ("zai-org/GLM-4-9B-0414", GLM4, ("--rotary-interleaved", ""), "expected --rotary-interleaved --no-rope-fusion"),
    (
        "XiaomiMiMo/MiMo-7B-RL",
        MIMO,
        ("--swiglu", "--swiglu --cross-entropy-loss-fusion --cross-entropy-fusion-impl te"),
        "another fused loss than Megatron's own",
    ),
]


@pytest.mark.parametrize(("checkpoint", "arguments", "change", "said"), NOT_SO)
def test_layers_that_are_not_the_checkpoints_are_refused(
    tmp_path: Path, checkpoint: str, arguments: str, change: tuple[str, str], said: str
) -> None:
    assert said in refused(of_model(tmp_path, arguments, checkpoint, change), "0.4.0")


def test_a_job_file_trains_the_text_alone(tmp_path: Path) -> None:
    read = run("read", of_model(tmp_path, QWEN35, "Qwen/Qwen3.5-9B"), "--framework-version", "0.4.0").stdout
    (tmp_path / "job.yaml").write_text(read)
    assert run("check", str(tmp_path / "job.yaml")).returncode in (0, 1)
    (tmp_path / "job.yaml").write_text(read.replace(":text", ""))
    done = run("check", str(tmp_path / "job.yaml"))
    assert done.returncode == 2
    assert "its language model by itself is model: Qwen/Qwen3.5-9B:text" in done.stderr


def test_layers_of_an_older_image_are_refused(tmp_path: Path) -> None:
    assert "layers of another specification" in refused(of_model(tmp_path, QWEN35, "Qwen/Qwen3.5-9B"), "0.2.2")


def test_blocks_that_are_not_trained_are_held_all_the_same(tmp_path: Path) -> None:
    path = of_model(tmp_path, MIMO.replace("--enable-mtp-training", ""), "XiaomiMiMo/MiMo-7B-RL")
    assert job(path, "--framework-version", "0.4.0")["actor"]["mtp_runs"] is False


def test_the_loss_of_blocks_is_fused_where_the_command_says_so(tmp_path: Path) -> None:
    plain = job(of_model(tmp_path, MIMO, "XiaomiMiMo/MiMo-7B-RL"), "--framework-version", "0.4.0")["actor"]
    path = of_model(tmp_path, MIMO, "XiaomiMiMo/MiMo-7B-RL", ("--swiglu", "--swiglu --cross-entropy-loss-fusion"))
    fused = job(path, "--framework-version", "0.4.0")["actor"]
    assert (plain.get("mtp_fused_loss", False), fused["mtp_fused_loss"]) == (False, True)


def test_a_padding_of_the_vocabulary_that_comes_out_the_same_is_one(tmp_path: Path) -> None:
    """On two ranks 248,320 rows are whole multiples of 64 and of 128 rows each; 151,680 ones become 151,808 of 128."""
    same = of_model(tmp_path, QWEN35 + "   --make-vocab-size-divisible-by 64\n", "Qwen/Qwen3.5-9B")
    assert run("check", same, "--framework-version", "0.4.0").returncode in (0, 1)
    other = of_model(tmp_path, MIMO + "   --make-vocab-size-divisible-by 64\n", "XiaomiMiMo/MiMo-7B-RL")
    assert "another padding of the vocabulary" in refused(other, "0.4.0")
