"""Makes tests/data/executed_liger.jsonl: training steps with Liger's operators, executed by PyTorch on the meta device.

    python benchmarks/oracle/execute_liger.py --liger SRC [--version 0.8.2] [--output tests/data/executed_liger.jsonl]

SRC is the folder src of a checkout of linkedin/Liger-Kernel. Its own functions patch the model; Triton's kernels are not launched
(triton_stub.py). Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional
import transformers
from execute import ROOT, SMALL, Row, Storages, as_on_cuda, job_of, make_model
from row_lines import write_rows
from triton_stub import install

FAMILIES: dict[str, Row] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 64},
}
ALL = ("rope", "rms_norm", "swiglu")
# sequences, tokens, checkpointing, operators, head
RUNS = (
    (1, 512, False, ALL, "liger_fused_ce"),
    (1, 512, True, ALL, "liger_fused_ce"),
    (2, 1024, True, ALL, "liger_fused_ce"),
    (1, 4096, True, (), "liger_fused_ce"),
    (2, 256, False, ("rope",), "hf_loss"),
    (1, 512, False, ("rms_norm",), "hf_loss"),
    (1, 512, False, ("swiglu",), "hf_loss"),
    (1, 512, False, (), "liger_ce"),
    (1, 2048, True, (), "liger_ce"),
)
# Liger 0.8.2 replaces a name that transformers 5 no longer uses
WITHOUT_EFFECT = {("mistral", "liger_ce")}
WIDE = {"llama": {"vocab_size": 32000, "hidden_size": 256, "intermediate_size": 512}}


def patch(family: str, operators: tuple[str, ...], head: str) -> Any:
    """Patches the family's module in place; what undoes it is returned."""
    from liger_kernel.transformers import monkey_patch

    module = getattr(transformers.models, family)
    module = getattr(module, f"modeling_{family}")
    before = dict(vars(module))
    mlp = {
        name: dict(vars(cls)) for name, cls in before.items() if isinstance(cls, type) and name.endswith(("MLP", "ForCausalLM"))
    }
    cross_entropy = torch.nn.functional.cross_entropy
    getattr(monkey_patch, f"apply_liger_kernel_to_{family}")(
        **{name: name in operators for name in ALL},
        cross_entropy=head == "liger_ce",
        fused_linear_cross_entropy=head == "liger_fused_ce",
    )

    def undo() -> None:
        for name, value in before.items():
            setattr(module, name, value)
        for name, members in mlp.items():
            vars_of = getattr(module, name)
            for key in ("forward", "__init__"):
                if key in members:
                    setattr(vars_of, key, members[key])
        torch.nn.functional.cross_entropy = cross_entropy
        transformers.loss.loss_utils.nn.functional.cross_entropy = cross_entropy

    return undo


def execute(config: Row, sequences: int, tokens: int, checkpointing: bool, operators: tuple[str, ...], head: str) -> Row:
    undo = patch(config["model_type"], operators, head)
    try:
        model = make_model(config, checkpointing, False)
        gc.collect()
        gc.disable()
        storages = Storages()
        resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
        with storages:
            ids = torch.empty(sequences, tokens, dtype=torch.int64, device="meta")
            labels = torch.empty_like(ids)
            loss = model(input_ids=ids, labels=labels).loss
            forward = storages.highest
            storages.highest = storages.live
            loss.backward()
        gc.enable()
    finally:
        undo()
    return {"forward": resident + forward, "backward": resident + storages.highest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--liger", type=Path, required=True)
    parser.add_argument("--version", default="0.8.2")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_liger.jsonl")
    options = parser.parse_args()
    install(options.liger)
    as_on_cuda()
    by = f"Liger-Kernel {options.version}, torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    lines: list[Row] = []
    configs = [(family, {"model_type": family, **SMALL, **fields}) for family, fields in FAMILIES.items()]
    configs += [(f"{family}-wide", {"model_type": family, **SMALL, **fields}) for family, fields in WIDE.items()]
    for name, config in configs:
        lines.append({"config": name, "fields": config})
        for sequences, tokens, checkpointing, operators, head in RUNS:
            if (config["model_type"], head) in WITHOUT_EFFECT:
                continue
            peaks = execute(config, sequences, tokens, checkpointing, operators, head)
            job = job_of(sequences, tokens, checkpointing)
            job["trainer"] |= {"head": head, "liger": list(operators), "liger_version": options.version}
            parts = [f"b{sequences}s{tokens}", "+".join(operators) or "none", head, "checkpointed" if checkpointing else ""]
            row = {"id": "/".join([name, *filter(None, parts)]), "config": name, "job": job}
            lines.append({**row, "source": f"{by} executed on the meta device", "peaks": peaks})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
