"""Relax's weight update: through Megatron-Bridge, by its checkpoint engine, and with --hybrid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_relax import COLOCATED, RESOURCE, SCRIPT, changed, fully_async, job
from test_relax_roles import SUPERVISED
from test_slime import run
from test_slime_memory import estimated, phase

EMBEDDING = 152064 * 2560 * 2  # of Qwen3-4B, padded for two ranks
BUCKET = 512 << 20


def sent(path: str) -> dict[str, Any]:
    return dict(phase(estimated(path), "actor.send_weights"))


def test_on_shared_gpus_relax_converts_what_it_has_gathered(tmp_path: Path) -> None:
    """The embedding is a bucket of its own: a part, its pieces and NCCL's flat tensor, beside the chunk that was sent before."""
    assert job(str(SCRIPT))["sync"] == {"by": "ipc", "bucket": "512MiB", "bridge": True}
    bridge = sent(str(SCRIPT))
    assert 5 * EMBEDDING // 2 < bridge["by_category_bytes"]["communication"] < 5 * EMBEDDING // 2 + 3 * BUCKET
    assert set(bridge["by_category_bytes"]) <= {"weights", "communication", "context", "nccl"}
    assert "bridge" not in job(changed(tmp_path, ("   --megatron-to-hf-mode bridge\n", "")))["sync"]


def test_buckets_are_as_large_as_the_flag_says(tmp_path: Path) -> None:
    more = changed(
        tmp_path,
        ("   --megatron-to-hf-mode bridge\n", f"   --megatron-to-hf-mode bridge --update-weight-buffer-size {4 << 30}\n"),
    )
    assert sent(more)["allocated_bytes"] > sent(str(SCRIPT))["allocated_bytes"] + (4 << 30)


def test_the_checkpoint_engine_sends_to_servers_and_to_the_policys_log_probs(tmp_path: Path) -> None:
    """A bucket is there as it was gathered and as it was converted; the receivers have it beside what they have."""
    path = fully_async(tmp_path)
    assert job(path)["sync"] == {"by": "nccl", "bucket": "512MiB", "bridge": True, "checkpoint_engine": True}
    answer = estimated(path)
    phases = [p["phase"] for gpu in answer["gpus"] for p in gpu["phases"]]
    assert {"actor.send_weights", "rollout.receive_weights", "actor_fwd.receive_weights"} <= set(phases)
    assert "ref.receive_weights" not in phases  # its weights stay
    gathered = {"rollout": 0, "actor_fwd": 9216 * 2560 * 2}  # Megatron's buffer for what sequence parallelism gathers
    for role, beside in gathered.items():
        received = phase(answer, f"{role}.receive_weights")["by_category_bytes"]["communication"]
        assert received == 151936 * 2560 * 2 + beside


def test_hybrid_updates_beside_a_trainer_that_is_awake(tmp_path: Path) -> None:
    path = changed(tmp_path, (RESOURCE, '{"actor": [1, 4], "rollout": [1, 4]}'), (COLOCATED, "   --hybrid \\\n"))
    assert job(path)["sync"] == {"by": "ipc", "bucket": "512MiB", "bridge": True}
    answer = estimated(path)
    update = phase(answer, "actor.send_weights")["by_category_bytes"]
    assert update["optimizer"] > 10 << 30
    assert not [p for gpu in answer["gpus"] for p in gpu["phases"] if p["phase"] == "rollout.receive_weights"]


def test_servers_of_hybrid_on_other_machines_get_tensors(tmp_path: Path) -> None:
    path = changed(tmp_path, (RESOURCE, '{"actor": [1, 8], "rollout": [1, 8]}'), (COLOCATED, "   --hybrid \\\n"))
    received = phase(estimated(path), "rollout.receive_weights")["by_category_bytes"]
    assert received["communication"] == 151936 * 2560 * 2


def test_settings_of_the_update_are_those_of_frameworks_that_have_them(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(run("read", str(SCRIPT)).stdout)
    done = run("check", str(tmp_path / "job.yaml"), "sync.checkpoint_engine=true")
    assert done.returncode == 2
    assert "the checkpoint engine sends over NCCL" in done.stderr


ADAPTERS = "   --lora-rank 32 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2"


def test_adapters_are_merged_in_fp32_before_they_are_sent(tmp_path: Path) -> None:
    """Gate and up of a rank: six times their size for a moment, beside the bucket that is loaded. The base alone has none of it."""
    flag = "   --megatron-to-hf-mode bridge\n"
    merged, apart = (
        sent(changed(tmp_path, (flag, f"{flag}{ADAPTERS} {mode}\n"), name=f"{mode}.sh"))["allocated_bytes"]
        for mode in ("--lora-merge-mode", "--lora-adapter-mode")
    )
    assert apart == sent(str(SCRIPT))["allocated_bytes"]
    assert merged >= apart


def test_supervised_training_updates_servers_before_they_predict(tmp_path: Path) -> None:
    answer = estimated(changed(tmp_path, *SUPERVISED))
    phases = [p["phase"] for p in answer["gpus"][0]["phases"]]
    assert phases.index("trainer.optimizer") < phases.index("trainer.send_weights")
    update = phase(answer, "trainer.send_weights")["by_category_bytes"]
    assert 5 * EMBEDDING // 2 < update["communication"] < 5 * EMBEDDING // 2 + 3 * BUCKET
    assert "optimizer" not in update  # it sleeps
