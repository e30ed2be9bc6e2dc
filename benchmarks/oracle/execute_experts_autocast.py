"""Adds to tests/data/executed_experts.jsonl: the same models in fp32 under autocast.

    python benchmarks/oracle/execute_experts_autocast.py

On fake tensors, for the sake of autocast, which the meta device has not. Rows of earlier runs are replaced.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from execute import ROOT, SMALL, Row, SavedByLayer, Storages, as_on_cuda, job_of
from execute_experts import EXPERTS, Spread, experts_of
from torch._subclasses.fake_tensor import FakeTensorMode

FAMILIES = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss")
OUTPUT: Path = ROOT / "tests" / "data" / "executed_experts.jsonl"
TOKENS = 509
WIDE = {"storage": "fp32", "compute": "fp32", "reduce": "fp32"}


class FakeSpread(Spread):
    device = "cpu"

    def hit(self) -> Any:
        return [[expert] for expert in range(self.experts)]  # numbers, as select takes them


def execute(config: Row, implementation: str, checkpointing: bool) -> tuple[Row, list[list[Any]]]:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(
            settings, dtype=torch.float32, attn_implementation="eager", experts_implementation=implementation
        )
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == config["num_hidden_layers"])
    gc.collect()
    gc.disable()
    storages = Storages()
    saved = SavedByLayer(storages, layers[len(layers) // 2])
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    with fake, storages:
        ids = torch.empty(1, TOKENS, dtype=torch.int64)
        labels = torch.empty_like(ids)
        with saved.hooks(), torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    return {"forward": resident + forward, "backward": resident + storages.highest}, saved.counted()


def main() -> None:
    as_on_cuda()
    asked = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: asked(*(device or ("cpu",)))  # without an argument it means CUDA's
    spread = FakeSpread()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on fake tensors"
    lines = [line for line in OUTPUT.read_text(encoding="utf-8").splitlines() if "/autocast" not in line]
    for family in FAMILIES:
        config = {"model_type": family, **SMALL, **EXPERTS[family]}
        spread.experts = experts_of(config)
        for implementation in ("eager", "batched_mm"):
            for checkpointing in (False,) if family == "gpt_oss" else (False, True):  # docs/findings.md: sinks under autocast
                peaks, saved = execute(config, implementation, checkpointing)
                job = job_of(1, TOKENS, checkpointing)
                job["trainer"] |= {"experts": implementation, "autocast": True, "precision": WIDE}
                name = f"{family}/{implementation}/autocast" + ("/checkpointed" if checkpointing else "")
                row: Row = {"id": name, "config": family, "job": job, "source": by, "peaks": peaks}
                if not checkpointing:
                    row |= {"layer": config["num_hidden_layers"] // 2, "saved": saved}
                lines.append(json.dumps(row, separators=(",", ":")))
    OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{sum('/autocast' in line for line in lines)} rows: {OUTPUT}")


if __name__ == "__main__":
    main()
