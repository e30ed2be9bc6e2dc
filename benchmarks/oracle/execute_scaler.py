"""Makes tests/data/executed_scaler.jsonl: the second step of fp32 masters under fp16 autocast with a GradScaler, executed by PyTorch.

    python benchmarks/oracle/execute_scaler.py [--output tests/data/executed_scaler.jsonl]

The loop is that of PyTorch's recipe: scale, backward, unscale_, clip_grad_norm_, step, update (torch/amp/grad_scaler.py, 2.13).
Tensors are fake CPU ones. No step is skipped. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import torch
import transformers
from execute import ROOT, SMALL, Row, as_on_cuda, job_of
from execute_parallel import LivesOfParts
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode

CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **SMALL, "vocab_size": 32768},
    "qwen2-tied": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True, "vocab_size": 32768},
}
OPTIMIZERS: dict[str, Row] = {
    "adamw": {"optimizer": "adamw", "optimizer_form": "foreach", "clip": True},
    "adamw-loop": {"optimizer": "adamw", "optimizer_form": "loop", "clip": True},
    "sgd_momentum": {"optimizer": "sgd_momentum", "clip": True},
}
# sequences, tokens, checkpointing
RUNS = ((1, 512, False), (2, 512, False), (2, 512, True))
item_of = {"number": 0.0}  # found_inf: no step is skipped


def optimizer_of(name: str, model: Any) -> torch.optim.Optimizer:
    if name == "sgd_momentum":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    return torch.optim.AdamW(model.parameters(), foreach=name == "adamw")


def execute(config: Row, name: str, sequences: int, tokens: int, checkpointing: bool) -> Row:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32, attn_implementation="eager")
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = optimizer_of(name, model)
    plain = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        item_of["number"] = 1.0  # step counters
        plain(*args, **kwargs)
        item_of["number"] = 0.0

    optimizer.step = step  # type: ignore[method-assign]
    gc.collect()
    gc.disable()
    storages = LivesOfParts()
    owned = [*model.parameters(), *model.buffers()]
    resident = sum(storages.own(tensor) for tensor in owned)
    held = [tensor.untyped_storage() for tensor in owned]
    peaks: Row = {}

    def note(phase: str) -> None:
        peaks[phase] = resident + storages.highest
        storages.highest = storages.live

    with fake, storages:
        scaler = torch.amp.GradScaler("cpu")
        ids = torch.empty(sequences, tokens, dtype=torch.int64)
        labels = torch.empty_like(ids)
        for _ in range(2):
            storages.highest = storages.live
            with torch.autocast("cpu", torch.float16):
                loss = model(input_ids=ids, labels=labels).loss
            note("forward")
            scaler.scale(loss).backward()
            del loss
            note("backward")
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            note("optimizer")
            optimizer.zero_grad(set_to_none=True)
    gc.enable()
    del held
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_scaler.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    torch.Tensor.item = lambda _self: item_of["number"]  # type: ignore[method-assign]
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on fake tensors"
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        lines.append({"config": name, "fields": config})
        for optimizer, settings in OPTIMIZERS.items():
            for sequences, tokens, checkpointing in RUNS:
                job = job_of(sequences, tokens, checkpointing)
                job["trainer"] |= {"autocast": True, "precision": dict.fromkeys(("storage", "compute", "reduce"), "fp32")}
                job["trainer"] |= settings
                row = {"id": f"{name}/{optimizer}/b{sequences}s{tokens}" + ("/checkpointed" if checkpointing else "")}
                row |= {"config": name, "job": job, "source": by}
                lines.append({**row, "peaks": execute(config, optimizer, sequences, tokens, checkpointing)})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
