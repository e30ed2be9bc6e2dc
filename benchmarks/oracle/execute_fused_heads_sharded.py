"""Makes tests/data/executed_fused_heads_sharded.jsonl: verl's fused output layers under FSDP1 and FSDP2, executed.

    python benchmarks/oracle/execute_fused_heads_sharded.py VERL... [--output tests/data/executed_fused_heads_sharded.jsonl]

VERL are checkouts, whose own code runs as in execute_fused_heads.py; FSDP's own code runs as in execute_fsdp1.py and sharded.py.
Levels are those of the second step. Under FSDP2 embedding and output layer share a weight, which the root gathers.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from pathlib import Path
from typing import Any

import execute_fsdp1
import execute_fused_heads as heads
import sharded
import torch
import torch.distributed as dist
import transformers
from execute import ROOT, Row
from row_lines import write_rows
from torch.testing._internal.distributed.fake_pg import FakeStore

TOKENS = 1200
NARROW = heads.NARROW | {"num_hidden_layers": 3}
MODELS: dict[str, Row] = {"narrow": NARROW, "narrow, tied": NARROW | {"tie_word_embeddings": True}}
FSDP1: list[Row] = [
    {},
    {"storage": "bf16", "reduce": "bf16"},
    {"use_orig_params": True},
    {"strategy": "SHARD_GRAD_OP"},
    {"recompute": "nonreentrant"},
    {"micro_batches": 3, "no_sync": True},
]
FSDP2: list[Row] = [{}, {"reduce": "bf16"}, {"recompute": "nonreentrant"}]
USUAL2: Row = {"ranks": 4, "storage": "fp32", "compute": "bf16", "reduce": "fp32", "recompute": "none", "root_reshard": False}


def step_of(code: heads.Code, model: Any, device: str, entropy: bool) -> torch.Tensor:
    return heads.loss_of(code, model, torch.empty(1, TOKENS, dtype=torch.int64, device=device), entropy)


def under_fsdp1(code: heads.Code, config: Row, case: Row, entropy: bool) -> Row:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    model = execute_fsdp1.make_model(config, case)
    gradient = torch.ones((), device="meta")
    storages, resident = execute_fsdp1.followed(model, gradient)
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    execute_fsdp1.Resized.now = storages
    peaks = {"forward": 0, "backward": 0}
    for _ in range(2):
        with storages:
            peaks = {"forward": 0, "backward": 0}
            for number in range(case["micro_batches"]):
                storages.highest = storages.live
                deferred = case["no_sync"] and number < case["micro_batches"] - 1
                with model.no_sync() if deferred else contextlib.nullcontext():
                    loss = step_of(code, model, "meta", entropy)
                    peaks["forward"] = max(peaks["forward"], storages.highest)
                    storages.highest = storages.live
                    loss.backward(gradient)
                peaks["backward"] = max(peaks["backward"], storages.highest)
                del loss
            optimizer.step()
            optimizer.zero_grad()
    execute_fsdp1.Resized.now = None
    gc.enable()
    dist.destroy_process_group()
    return {phase: resident + level for phase, level in peaks.items()}


def under_fsdp2(code: heads.Code, config: Row, case: Row, entropy: bool) -> Row:
    def build() -> tuple[Any, list[Any]]:
        fields = {key: value for key, value in config.items() if key != "model_type"}
        settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
        settings.use_cache = False
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32, attn_implementation="eager")
        model.train()
        if case["recompute"] != "none":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model, list(model.model.layers)

    peaks = sharded.two_steps(
        build, dict, case, execute_fsdp1.FORMATS, lambda model, _given: step_of(code, model, "cpu", entropy)
    )
    return {phase: peaks[phase] for phase in ("forward", "backward")}


def job_of(engine: str, case: Row, head: str) -> Row:
    job = execute_fsdp1.job_of(execute_fsdp1.USUAL | case)
    job["framework"] = "verl 0.9.0"
    job["trainer"] |= {"head": head, "sequence_tokens": TOKENS}
    if engine == "fsdp2":
        for knob in ("backward_prefetch", "forward_prefetch", "use_orig_params", "checkpoint_units"):
            del job["trainer"][knob]
        job["trainer"] |= {"engine": "fsdp2", "wrap_embedding": False, "wrap_head": False}
    return job


def rows_of(code: heads.Code) -> list[Row]:
    out = []
    chosen = [("fsdp1", name, changes) for name in MODELS for changes in FSDP1]
    chosen += [("fsdp2", "narrow, tied", changes) for changes in FSDP2]
    for backend in ("torch", "triton") if code.takes_labels else ("torch",):
        transformers.LlamaForCausalLM.forward = code.forward[backend]
        for engine, name, changes in chosen:
            for entropy in (False, True) if not changes else (False,):
                case = (execute_fsdp1.USUAL if engine == "fsdp1" else USUAL2) | changes
                config = MODELS[name]
                run = under_fsdp1 if engine == "fsdp1" else under_fsdp2
                head = code.head[backend] + ("_entropy" if entropy else "")
                words = "/".join(f"{key}={value}" for key, value in changes.items()) or "usual"
                row = {"id": f"{head}/{engine}/{name}/{words}", "config": name, "job": job_of(engine, changes, head)}
                out.append(row | {"peaks": run(code, config, case, entropy)})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_fused_heads_sharded.jsonl")
    options = parser.parse_args()
    execute_fsdp1.stand_in()
    sharded.follow_resizing()
    heads.make_model(heads.NARROW, True, False)
    heads.stand_ins()
    lines: list[Row] = [{"config": name, "fields": fields} for name, fields in MODELS.items()]
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    for checkout in options.verl:
        code = heads.Code(checkout)
        source = f"{versions}, verl {code.release} executed on tensors without data"
        lines += [row | {"source": source} for row in rows_of(code)]
    for line in lines:
        if "peaks" in line:
            print(line["id"], line["peaks"])
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
