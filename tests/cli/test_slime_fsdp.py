"""slime's FSDP backend (--train-backend fsdp, 0.2.0 to 0.2.2): what is read of a script, the job, and its phases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_slime import job, run

SCRIPT = """python3 train.py --hf-checkpoint /root/Qwen3-4B --ref-load /root/Qwen3-4B --prompt-data d.jsonl --input-key prompt \\
   --num-rollout 100 --rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 4096 --global-batch-size 64 \\
   --advantage-estimator grpo --optimizer adam --lr 1e-6 --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.75 \\
   --train-backend fsdp --attn-implementation flash_attention_3 --update-weight-buffer-size 536870912 \\
   --use-dynamic-batch-size --max-tokens-per-gpu 9216 --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate"""


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def make(*more: str) -> str:
        path = tmp_path / "run.sh"
        path.write_text(SCRIPT + "".join(f" {word}" for word in more) + "\n")
        return str(path)

    return make


def estimate(path: str, *options: str) -> dict[str, Any]:
    done = run("estimate", path, "--framework-version", "0.2.2", "--gpu", "H100-80GB", "--json", *options)
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def refused(path: str, release: str = "0.2.2") -> str:
    done = run("check", path, "--framework-version", release)
    assert done.returncode == 2, done.stdout
    return done.stderr


def test_the_newest_release_that_has_it_is_taken(script: Any) -> None:
    assert job(script())["framework"] == "slime 0.2.2"


def test_the_actor_runs_fsdp2_on_fp32_parameters(script: Any) -> None:
    actor = job(script("--gradient-checkpointing"), "--framework-version", "0.2.2")["actor"]
    assert (actor["engine"], actor["layout"], actor["head"]) == ("fsdp2", "d8", "slime_fsdp")
    assert actor["precision"]["storage"] == "fp32"
    assert (actor["recompute"], actor["reentrant"], actor["root_reshard"]) == ("full", True, False)
    assert actor["tokens_per_micro_batch"] == "9k" or actor["tokens_per_micro_batch"] == 9216
    assert actor["offload"] == ["parameters", "optimizer"]


def test_a_reference_is_a_model_of_its_own(script: Any) -> None:
    assert "ref" not in job(script(), "--framework-version", "0.2.2")
    ref = job(script("--use-kl-loss"), "--framework-version", "0.2.2")["ref"]
    assert (ref["beside"], ref["in_process"], ref["cpu_offload_policy"]) == ("actor", True, True)
    old = job(script("--use-kl-loss"), "--framework-version", "0.2.0")["ref"]
    assert (old["cpu_offload_policy"], old["offload"]) == (False, ["parameters"])


def test_parameters_on_the_host_do_not_sleep(script: Any) -> None:
    actor = job(script("--fsdp-cpu-offload"), "--framework-version", "0.2.2")["actor"]
    assert (actor["cpu_offload_policy"], actor["offload"]) == (True, [])


def test_facts_tell_who_said_it(script: Any) -> None:
    done = run("read", script("--use-kl-loss"), "--facts", "--framework-version", "0.2.2")
    actor = json.loads(done.stdout)["roles"]["actor"]
    assert (actor["engine"]["v"], actor["engine"]["w"]) == ("fsdp2", "--train-backend")
    assert actor["attention"]["v"] == "flash_attention_3"
    assert actor["param_dtype"]["v"] == "float32"
    assert json.loads(done.stdout)["roles"]["ref"]["placement"]["v"] == "shares:actor"


def test_the_loss_is_the_highest_moment(script: Any) -> None:
    """Of 9,216 tokens and 151,936 words: 28 bytes each in backward, 16 in a pass for log-probs."""
    phases = {p["phase"]: p for p in estimate(script("--gradient-checkpointing"))["gpus"][0]["phases"]}
    head = 9216 * 151936
    assert phases["actor.backward"]["allocated_bytes"] > 28 * head
    beside = 4_022_468_096 // 8 * 12  # parameters and states: an eighth of 12 bytes each
    assert 16 * head < phases["actor.log_probs"]["allocated_bytes"] < 16 * head + beside + 10**9


def test_segments_may_be_expandable(script: Any) -> None:
    """No saver is in the way: the trainer's process is not paused."""
    said = '--train-env-vars \'{"PYTORCH_CUDA_ALLOC_CONF":"expandable_segments:True"}\''
    assert job(script(said), "--framework-version", "0.2.2")["expandable_segments"] is True
    assert job(script(), "--framework-version", "0.2.2")["expandable_segments"] is False


def test_the_beginning_of_a_flag_is_the_flag(script: Any) -> None:
    """argparse without allow_abbrev=False."""
    assert job(script("--gradient-check"), "--framework-version", "0.2.2")["actor"]["recompute"] == "full"


def test_a_flag_of_megatron_ends_the_run(script: Any) -> None:
    said = refused(script("--tensor-model-parallel-size", "2"))
    assert "--tensor-model-parallel-size: found --tensor-model-parallel-size, expected flags of slime" in said
    assert "slime itself refuses them" in said


@pytest.mark.parametrize(
    ("words", "release", "said"),
    [
        (["--true-on-policy-mode"], "0.2.2", "batch-invariant operators"),
        (["--context-parallel-size", "2"], "0.2.1", "ring attention"),
        (["--advantage-estimator", "reinforce_plus_plus"], "0.2.2", "slime itself has no others under FSDP"),
        (["--hf-checkpoint", "Qwen/Qwen3-30B-A3B"], "0.2.2", "experts and linear attention"),
        (["--attn-implementation", "flex_attention"], "0.2.2", "other implementations of attention"),
        (["--loss-type", "sft_loss"], "0.2.2", "another loss"),
    ],
)
def test_what_is_not_described_is_said(script: Any, words: list[str], release: str, said: str) -> None:
    assert said in refused(script(*words), release)


def test_advice_speaks_its_flags(script: Any) -> None:
    done = run("advise", script(), "--framework-version", "0.2.2", "--gpu", "A100-40GB")
    assert done.returncode in (0, 1), done.stderr
    assert re.search(r"--gradient-checkpointing|--fsdp-cpu-offload|--max-tokens-per-gpu", done.stdout), done.stdout


def test_a_job_that_was_read_is_read_again_as_the_same(script: Any, tmp_path: Path) -> None:
    words = script("--use-kl-loss", "--gradient-checkpointing")
    (tmp_path / "job.yaml").write_text(run("read", words, "--framework-version", "0.2.2").stdout)
    again = json.loads(run("estimate", "--json", str(tmp_path / "job.yaml")).stdout)
    assert again["gpus"] == estimate(words)["gpus"]


def test_search_varies_what_has_a_flag(script: Any) -> None:
    done = run("search", script(), "--framework-version", "0.2.2", "--gpu", "H100-80GB")
    assert done.returncode in (0, 1), done.stderr
