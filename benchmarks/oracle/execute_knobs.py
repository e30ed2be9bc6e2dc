"""Makes tests/data/executed_knobs.jsonl: settings of training that other scripts leave at their defaults, executed by PyTorch.

    python benchmarks/oracle/execute_knobs.py [--torchtitan CLONE] [--output tests/data/executed_knobs.jsonl]

Checkpoints around every n-th layer and checkpoints on the host (transformers on the meta device; save_on_cpu's copies are stand-ins
that hold shapes, which is what the device sees of them), optimizers on FSDP2's DTensors and on FSDP1's flat parameters, and
DistributedDataParallel with each of its options, by its own code on the CPU. With a clone of pytorch/torchtitan also
its own choice of every n-th layer. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import execute_fsdp1
import execute_parallel
import torch
import torch.distributed as dist
import transformers
import transformers.masking_utils
from execute import ROOT, SMALL, Row, Storages, half_to_float, job_of, make_model
from row_lines import write_rows
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.optimization import Adafactor

TOKENS = 256
CONFIGS: dict[str, Row] = {
    "llama, 7 layers": {"model_type": "llama", **SMALL, "num_hidden_layers": 7, "vocab_size": 1024},
    "qwen2, 6 layers, tied": {
        "model_type": "qwen2",
        **SMALL,
        "num_hidden_layers": 6,
        "vocab_size": 1024,
        "tie_word_embeddings": True,
    },
    "gemma2, 6 layers": {
        "model_type": "gemma2",
        **SMALL,
        "num_hidden_layers": 6,
        "vocab_size": 1024,
        "head_dim": 64,
        "sliding_window": 128,
        "query_pre_attn_scalar": 64,
    },
}
USUAL: Row = {"storage": "bf16", "compute": "bf16", "reduce": "bf16"}
FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}


@contextlib.contextmanager
def shapes_on_the_host(**_: Any) -> Iterator[None]:
    """save_on_cpu: the device's tensor goes, and another one comes back."""

    def leave(tensor: torch.Tensor) -> Any:
        return tensor.shape, tensor.dtype

    def come(kept: Any) -> torch.Tensor:
        return torch.empty(kept[0], dtype=kept[1], device="meta")

    with torch.autograd.graph.saved_tensors_hooks(leave, come):
        yield


def checkpointed(config: Row, every: int, offload: bool, reentrant: bool, sequences: int) -> Row:
    model = make_model(config, False, False)
    model.activation_checkpointing_enable({"use_reentrant": reentrant}, every_n_layers=every, offload=offload)
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    with storages:
        ids = torch.empty(sequences, TOKENS, dtype=torch.int64, device="meta")
        labels = torch.empty_like(ids)
        loss = model(input_ids=ids, labels=labels).loss
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    return {"forward": resident + forward, "backward": resident + storages.highest}


def checkpoint_rows() -> Iterator[Row]:
    for name, config in CONFIGS.items():
        for every, offload, reentrant, sequences in (
            (2, False, False, 1),
            (3, False, False, 2),
            (2, False, True, 1),
            (1, True, False, 1),
            (1, True, True, 1),
            (2, True, False, 2),
            (4, True, True, 1),
        ):
            job = job_of(sequences, TOKENS, True)
            job["trainer"] |= {"recompute_every": every, "offload_checkpoints": offload, "reentrant": reentrant}
            words = f"every {every}" + ("/offload" if offload else "") + ("/reentrant" if reentrant else "")
            row = {"id": f"{name}/b{sequences}/{words}", "config": name, "job": job}
            yield row | {"peaks": checkpointed(config, every, offload, reentrant, sequences)}


FLAT = [
    ({}, 2, False, False),
    ({}, 3, False, True),
    ({}, 2, True, False),
    ({}, 1, True, False),
    ({}, 1, True, True),
    ({"strategy": "SHARD_GRAD_OP"}, 2, True, True),
    ({"backward_prefetch": "post"}, 2, False, False),
    ({"backward_prefetch": "none"}, 3, False, False),
    ({"micro_batches": 3, "no_sync": True}, 2, False, False),
]


def flat_checkpoint_rows() -> Iterator[Row]:
    """The same under FSDP1, whose units are gathered for a layer's recomputation as for its backward pass."""
    name = "llama, 7 layers"
    made = execute_fsdp1.make_model
    for changes, every, offload, reentrant in FLAT:
        case = execute_fsdp1.USUAL | changes

        def with_checkpoints(
            config: Row, case: Row, every: int = every, offload: bool = offload, reentrant: bool = reentrant
        ) -> Any:
            model = made(config, case)
            model.module.activation_checkpointing_enable({"use_reentrant": reentrant}, every_n_layers=every, offload=offload)
            return model

        execute_fsdp1.make_model = with_checkpoints
        words = f"every {every}" + ("/offload" if offload else "") + ("/reentrant" if reentrant else "")
        job = execute_fsdp1.job_of(case | {"recompute": "reentrant" if reentrant else "nonreentrant"})
        job["trainer"] |= {"recompute_every": every, "offload_checkpoints": offload}
        said = "/".join(f"{key}={value}" for key, value in changes.items())
        row = {"id": "/".join(filter(None, ["fsdp1", words, said])), "config": name, "job": job}
        yield row | {"peaks": execute_fsdp1.execute(CONFIGS[name], case)}
    execute_fsdp1.make_model = made


# ---- optimizers on shards

RANKS = 4
OPTIMIZERS: dict[str, tuple[Row, Callable[[Any], torch.optim.Optimizer]]] = {
    "adamw": ({"optimizer": "adamw"}, lambda p: torch.optim.AdamW(p, foreach=True)),
    "adamw-loop": ({"optimizer": "adamw", "optimizer_form": "loop"}, lambda p: torch.optim.AdamW(p, foreach=False)),
    "amsgrad": ({"optimizer": "adamw", "amsgrad": True}, lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True)),
    "sgd_momentum": ({"optimizer": "sgd_momentum"}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True)),
}
SHAPELESS: dict[str, tuple[Row, Callable[[Any], torch.optim.Optimizer]]] = {
    "adafactor": (
        {"optimizer": "adafactor"},
        lambda p: Adafactor(p, lr=1e-3, scale_parameter=False, relative_step=False),
    ),
    "torch_adafactor": ({"optimizer": "torch_adafactor"}, torch.optim.Adafactor),
}


def sharded_step(config: Row, make: Callable[[Any], torch.optim.Optimizer], storage: str) -> Row:
    """Highest level of the second step on DTensors as fully_shard leaves them to the optimizer."""
    model = make_model(config, False, False)
    mesh = init_device_mesh("cpu", (RANKS,))

    def cut(whole: torch.Tensor) -> DTensor:
        local = torch.empty((-(-whole.shape[0] // RANKS), *whole.shape[1:]), dtype=FORMATS[storage], device="meta")
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())

    shards = [torch.nn.Parameter(cut(p)) for p in model.parameters()]
    buffers = sum(b.untyped_storage().nbytes() for b in model.buffers())
    optimizer = make(shards)
    gc.collect()
    gc.disable()
    lives = execute_parallel.LivesOfParts()
    resident = sum(lives.own(p.to_local()) for p in shards) + buffers
    with lives:
        ids = torch.empty(1, TOKENS, dtype=torch.int64, device="meta")
        labels = torch.empty_like(ids)
        for _ in range(2):
            for p in shards:
                p.grad = cut(p)
            lives.highest = lives.live
            optimizer.step()
            for p in shards:
                p.grad = None
    gc.enable()
    del ids, labels
    return {"optimizer": resident + lives.highest}


def sharded_job(settings: Row, storage: str) -> Row:
    job = job_of(1, TOKENS, False)
    job["trainer"] |= {"engine": "fsdp2", "layout": f"d{RANKS}", **settings}
    job["trainer"]["precision"] = {"storage": storage, "compute": "bf16", "reduce": storage}
    return job


def flat_step(config: Row, make: Callable[[Any], torch.optim.Optimizer], storage: str) -> Row:
    """The same on FSDP1's flat parameters, whose own code makes them."""
    case = execute_fsdp1.USUAL | {"storage": storage, "reduce": storage, "ranks": RANKS}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    model = execute_fsdp1.make_model(config, case)
    gc.collect()
    gc.disable()
    storages = execute_fsdp1.Resized()
    own = [tensor for tensor in [*model.parameters(), *model.buffers()] if tensor.untyped_storage().nbytes() > 0]
    resident = sum(storages.own(tensor) for tensor in own)
    del own
    optimizer = make(model.parameters())
    execute_fsdp1.Resized.now = storages
    with storages:
        for _ in range(2):
            ids = torch.empty(1, TOKENS, dtype=torch.int64, device="meta")
            labels = torch.empty_like(ids)
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            loss = loss.detach()
            storages.highest = storages.live
            optimizer.step()
            highest = storages.highest
            optimizer.zero_grad()
            del ids, labels, loss
    execute_fsdp1.Resized.now = None
    gc.enable()
    dist.destroy_process_group()
    return {"optimizer": resident + highest}


def flat_job(settings: Row, storage: str) -> Row:
    job = execute_fsdp1.job_of(execute_fsdp1.USUAL | {"storage": storage, "reduce": storage, "ranks": RANKS})
    job["trainer"] |= {"sequence_tokens": TOKENS, **settings}
    return job


def optimizer_rows() -> Iterator[Row]:
    name = "llama, 7 layers"
    config = CONFIGS[name]
    for storage in FORMATS:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
        for optimizer, (settings, make) in OPTIMIZERS.items():
            row = {"id": f"fsdp2/{optimizer}/{storage}", "config": name, "job": sharded_job(settings, storage)}
            yield row | {"peaks": sharded_step(config, make, storage)}
        dist.destroy_process_group()
        for optimizer, (settings, make) in (OPTIMIZERS | SHAPELESS).items():
            row = {"id": f"fsdp1/{optimizer}/{storage}", "config": name, "job": flat_job(settings, storage)}
            yield row | {"peaks": flat_step(config, make, storage)}


# ---- DistributedDataParallel

DDP: list[Row] = [
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    {"static_graph": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
    {"static_graph": True, "find_unused_parameters": True, "gradient_as_bucket_view": True},
    {"keep_gradients": True},
    {"keep_gradients": True, "gradient_as_bucket_view": True},
    {"find_unused_parameters": True, "micro_batches": 3, "gradient_sync_every_micro_batch": False},
    {
        "find_unused_parameters": True,
        "micro_batches": 3,
        "gradient_sync_every_micro_batch": False,
        "gradient_as_bucket_view": True,
    },
    {"static_graph": True, "recompute": "full"},
]
FEW = 16  # tokens: these steps are computed
OPTIONS = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph")


def on_the_cpu(config: Row) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32, attn_implementation="eager")
    model.train()
    return model


def replicated(config: Row, case: Row) -> Row:
    """Highest levels of the third step, which has had its buckets cut anew."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # buckets do not depend on the number of ranks
    model = on_the_cpu(config)
    if case.get("recompute") == "full":
        model.activation_checkpointing_enable({"use_reentrant": False})
    gc.collect()
    gc.disable()
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    peaks: Row = {}
    with storages:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **{k: v for k, v in case.items() if k in OPTIONS})
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(3):
            peaks = {"forward": 0, "backward": 0}
            micro_batches = case.get("micro_batches", 1)
            for number in range(micro_batches):
                ids = torch.zeros(1, FEW, dtype=torch.int64)
                labels = torch.zeros_like(ids)
                deferred = not case.get("gradient_sync_every_micro_batch", True) and number < micro_batches - 1
                storages.highest = storages.live
                with wrapped.no_sync() if deferred else contextlib.nullcontext():
                    loss = wrapped(input_ids=ids, labels=labels).loss
                    peaks["forward"] = max(peaks["forward"], storages.highest)
                    storages.highest = storages.live
                    loss.backward()
                peaks["backward"] = max(peaks["backward"], storages.highest)
                loss = loss.detach()
            storages.highest = storages.live
            optimizer.step()
            peaks["optimizer"] = storages.highest
            optimizer.zero_grad(set_to_none=not case.get("keep_gradients", False))
            del ids, labels, loss
    gc.enable()
    dist.destroy_process_group()
    return {phase: resident + level for phase, level in peaks.items()}


def ddp_rows() -> Iterator[Row]:
    name = "llama, 7 layers"
    for case in DDP:
        job = job_of(1, FEW, case.get("recompute") == "full")
        job["trainer"] |= {"engine": "ddp", "layout": "d2", "optimizer": "adamw", **case}
        job["trainer"]["precision"] = dict.fromkeys(("storage", "compute", "reduce"), "fp32")
        words = "/".join(f"{key}={value}" for key, value in case.items()) or "usual"
        yield {"id": f"ddp/{words}", "config": name, "job": job, "peaks": replicated(CONFIGS[name], case)}


# ---- torchtitan

TITAN = [
    ("0.2.2", "llama", 1024, 1, "every 2", 1, 2048, "cross_entropy"),
    ("0.2.2", "llama", 1024, 1, "every 3", 1, 2048, "cross_entropy"),
    ("2025-09", "qwen3", 1024, 1, "every 2", 2, 1024, "cross_entropy"),
]


def titan_rows(clone: Path) -> Iterator[Row]:
    wrap = execute_parallel.checkpoint_wrapper
    with tempfile.TemporaryDirectory() as folder:
        for run in TITAN:
            every, count = int(run[4].split()[1]), [0]

            def one_of(block: Any, every: int = every, count: list[int] = count, **options: Any) -> Any:
                count[0] += 1
                options.pop("context_fn", None)
                return wrap(block, **options) if count[0] % every == 0 else block

            execute_parallel.checkpoint_wrapper = one_of
            source = execute_parallel.unpack(clone, execute_parallel.COMMITS[run[0]], Path(folder) / run[0])
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
            peaks = execute_parallel.execute_run(run, {run[0]: source}, None)
            dist.destroy_process_group()
            job = execute_parallel.job_of(run)
            job["trainer"] |= {"recompute": "full", "recompute_every": every}
            config = f"titan {run[1]} {run[2]}"
            fields = execute_parallel.config_of(run[1], run[2])
            yield {"config": config, "fields": fields}
            yield {"id": "/".join(map(str, run)), "config": config, "job": job, "peaks": peaks}
    execute_parallel.checkpoint_wrapper = wrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchtitan", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_knobs.jsonl")
    options = parser.parse_args()
    softmax = torch.nn.functional.softmax
    execute_fsdp1.stand_in()
    torch.nn.functional.softmax = half_to_float(softmax)
    transformers.modeling_utils.save_on_cpu = shapes_on_the_host
    torch.Tensor.item = lambda _self: 1.0  # type: ignore[method-assign]  # norms and step counters of tensors without data
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # reads data: nothing is packed
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed without a device"
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    for rows in (checkpoint_rows(), flat_checkpoint_rows(), optimizer_rows(), ddp_rows()):
        for row in rows:
            lines.append({**row, "source": by})
            print(json.dumps(lines[-1], separators=(",", ":")), flush=True)
    if options.torchtitan is not None:
        torch.nn.functional.rms_norm = execute_parallel.rms_norm
        torch.nn.functional.scaled_dot_product_attention = execute_parallel.flash_sdpa
        for row in titan_rows(options.torchtitan):
            if row not in lines:
                lines.append({**row, "source": by} if "peaks" in row else row)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
