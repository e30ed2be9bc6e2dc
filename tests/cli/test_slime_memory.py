"""slime's weight update, what stays of a trainer that sleeps, and what lies on the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from test_slime import SCRIPT, changed, job, run

GIB = 1 << 30


def estimated(path: str, *options: str) -> dict[str, Any]:
    done = run("estimate", path, "--gpu", "H100-80GB", "--json", *options)
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def phase(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return next(p for gpu in answer["gpus"] for p in gpu["phases"] if p["phase"] == name)


def beside(answer: dict[str, Any], name: str) -> dict[str, int]:
    """What another process has meanwhile."""
    return dict(phase(answer, name)["other_processes"][0]["by_category_bytes"])


def host(answer: dict[str, Any], name: str) -> int:
    return int(next(p["host_bytes"] for p in answer["hosts"][0]["phases"] if p["phase"] == name))


def test_a_bucket_is_gathered_while_the_trainer_sleeps() -> None:
    """The embedding is larger than a bucket: half of it, its pieces, NCCL's flat tensor and the whole, of two ranks."""
    update = phase(estimated(str(SCRIPT)), "actor.send_weights")
    embedding = 152064 * 2560 * 2
    tensors = update["by_category_bytes"]
    assert tensors["weights"] + tensors["communication"] == embedding // 2 + 3 * embedding
    assert set(tensors) == {"weights", "communication", "context", "nccl"}
    assert update["upper_bound"] is False
    assert update["other_processes"][0]["by_category_bytes"].get("kv_cache", 0) == 0


def test_the_size_of_a_bucket_is_slimes(tmp_path: Path) -> None:
    more = changed(
        tmp_path, ("   --use-dynamic-batch-size", f"   --update-weight-buffer-size {4 * GIB}\n   --use-dynamic-batch-size")
    )
    assert job(more)["sync"] == {"by": "ipc", "bucket": "4GiB"}
    assert job(str(SCRIPT))["sync"] == {"by": "ipc", "bucket": "512MiB"}
    level = phase(estimated(more), "actor.send_weights")["allocated_bytes"]
    assert 3.4 * 4 * GIB < level < 3.6 * 4 * GIB


def test_servers_on_gpus_of_their_own_have_a_bucket_beside_their_cache(tmp_path: Path) -> None:
    apart = changed(tmp_path, ("   --colocate \\\n", "   --rollout-num-gpus 8 \\\n"))
    assert job(apart)["sync"] == {"by": "nccl", "bucket": "512MiB"}
    received = phase(estimated(apart), "rollout.receive_weights")["by_category_bytes"]
    assert received["communication"] == 151936 * 2560 * 2  # one parameter that is larger
    assert received["kv_cache"] > 20 * GIB


def test_communicators_go_and_that_of_all_ranks_stays_up_to_0_3_0() -> None:
    """The one of eight GPUs of a machine: 1 GiB."""
    new, old = (estimated(str(SCRIPT), "--framework-version", release) for release in ("0.3.1", "0.3.0"))
    assert set(beside(new, "rollout.generate")) == {"context"}
    assert GIB < beside(old, "rollout.generate")["nccl"] < 1.01 * GIB
    assert beside(new, "rollout.generate")["context"] == beside(old, "rollout.generate")["context"]


def test_gradients_are_there_while_log_probs_are_made() -> None:
    assert phase(estimated(str(SCRIPT)), "actor.log_probs")["by_category_bytes"]["gradients"] > 7 * GIB


def test_the_margin_of_the_saver_stays_free(tmp_path: Path) -> None:
    assert job(str(SCRIPT), "--framework-version", "0.3.0")["actor"]["memory_margin"] == "1GiB"
    assert job(str(SCRIPT), "--framework-version", "0.3.1")["actor"]["memory_margin"] == 0
    none = changed(tmp_path, ("   --use-dynamic-batch-size", "   --train-memory-margin-bytes 0\n   --use-dynamic-batch-size"))
    needed = [
        phase(estimated(path, "--framework-version", "0.3.0"), "actor.backward")["capacity_needed_bytes"]
        for path in (str(SCRIPT), none)
    ]
    assert needed[0] - needed[1] == GIB


def test_sets_of_weights_lie_on_the_host(tmp_path: Path) -> None:
    """The actor's and the reference's; each parameter in a block of a power of two."""
    alone = changed(tmp_path, ("   --use-kl-loss\n", ""))
    assert (job(str(SCRIPT))["actor"]["weights_on_host"], job(alone)["actor"]["weights_on_host"]) == (2, 1)
    a_set = host(estimated(str(SCRIPT)), "actor.load") - host(estimated(alone), "actor.load")
    layer = 16 + 16 + 64 + 32  # MiB: 15, 10, 47.5 and 23.75 of a rank's joint projection, output, gate with up, and down
    assert a_set > 8 * (36 * layer + 512) << 20
    assert a_set < 8 * (36 * (layer + 1) + 512) << 20
    without = changed(
        tmp_path,
        ("   --use-kl-loss\n", ""),
        ("   --use-dynamic-batch-size", "   --disable-weights-backuper\n   --use-dynamic-batch-size"),
    )
    assert job(without, "--framework-version", "0.2.4")["actor"]["weights_on_host"] == 0


def test_what_is_paused_has_copies_on_the_host_by_release() -> None:
    """Up to 0.2.4 all of it; then no flat buffers: six bytes a parameter of a rank less."""
    old, new = (
        host(estimated(str(SCRIPT), "--framework-version", release), "rollout.generate") for release in ("0.2.4", "0.3.0")
    )
    assert 8 * 6 * 2.0e9 < old - new < 8 * 6 * 2.3e9


BRIDGE = ("   --use-dynamic-batch-size", "   --megatron-to-hf-mode bridge\n   --use-dynamic-batch-size")
OLD = ("--framework-version", "0.2.4")


def test_the_update_through_megatron_bridge_goes_parameter_by_parameter(tmp_path: Path) -> None:
    """The embedding is the largest: half of it, its pieces and the whole. NCCL's flat tensor goes before it is put together."""
    path = changed(tmp_path, BRIDGE)
    assert job(path, *OLD)["sync"] == {"by": "ipc", "bucket": "512MiB", "bridge": True}
    tensors = phase(estimated(path, *OLD), "actor.send_weights")["by_category_bytes"]
    assert tensors["communication"] == 5 * 152064 * 2560


def test_megatron_bridge_changes_nothing_on_gpus_of_their_own(tmp_path: Path) -> None:
    apart = ("   --colocate \\\n", "   --rollout-num-gpus 8 \\\n")
    without, bridge = (phase(estimated(changed(tmp_path, apart, *more), *OLD), "actor.send_weights") for more in ((), (BRIDGE,)))
    assert without == bridge


def test_a_checkpoint_engine_is_relaxs(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(run("read", str(SCRIPT)).stdout)
    done = run("check", str(tmp_path / "job.yaml"), "sync.checkpoint_engine=true")
    assert done.returncode == 2
    assert "slime has no checkpoint engine" in done.stderr


def test_an_update_through_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(run("read", str(SCRIPT)).stdout)
    done = run("check", str(tmp_path / "job.yaml"), "sync.by=disk")
    assert done.returncode == 2
    assert "not supported yet: a weight update through files" in done.stderr


def test_sets_of_weights_on_the_host_are_slimes(tmp_path: Path) -> None:
    """A framework that keeps none is told so."""
    (tmp_path / "job.yaml").write_text(run("read", str(SCRIPT)).stdout)
    words = ("framework=verl 0.9.0", "actor.cross_entropy=verl_fused", "actor.weights_on_host=1")
    done = run("estimate", str(tmp_path / "job.yaml"), *words)
    assert "weights_on_host" in done.stdout + done.stderr
