"""Makes tests/data/executed_dora.jsonl: training steps with DoRA beside every linear layer, executed by PyTorch on the meta device.

    python benchmarks/oracle/execute_dora.py [--output tests/data/executed_dora.jsonl]

peft's own modules run; adapters and magnitudes are in fp32. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
from importlib import metadata
from pathlib import Path
from typing import Any

import execute
import peft
import torch
import transformers
from execute import RANK, ROOT, SMALL, Row, as_on_cuda, job_of
from row_lines import write_rows

NARROW: Row = {**SMALL, "vocab_size": 512}
CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **NARROW},
    "qwen2": {"model_type": "qwen2", **NARROW, "tie_word_embeddings": True},
}
# sequences, tokens of one, checkpointing, dropout
RUNS = ((1, 512, False, 0.0), (1, 512, True, 0.0), (2, 128, False, 0.0), (1, 512, False, 0.1), (1, 64, True, 0.1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_dora.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    torch.nn.functional.dropout = lambda x, p=0.5, training=True, _inplace=False: (
        torch.ops.aten.native_dropout(x, p, training)[0] if training and p > 0 else x
    )
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, peft {metadata.version('peft')}"
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        lines.append({"config": name, "fields": config})
        for sequences, tokens, checkpointing, dropout in RUNS:

            def adapted(model: Any, rate: float = dropout) -> Any:
                model.enable_input_require_grads()
                with torch.device("meta"):
                    settings = peft.LoraConfig(
                        task_type="CAUSAL_LM", r=RANK, target_modules="all-linear", use_dora=True, lora_dropout=rate
                    )
                    model = peft.get_peft_model(model, settings)
                for module in model.modules():  # peft casts what it makes to fp32, but not on the meta device
                    for vector in getattr(module, "lora_magnitude_vector", None) or {}:
                        layer = module.lora_magnitude_vector[vector]
                        layer.weight = torch.nn.Parameter(torch.empty_like(layer.weight, dtype=torch.float32))
                return model

            execute.adapted = adapted
            peaks, _saved = execute.execute(config, sequences, tokens, checkpointing, True)  # with what is dropped at once
            if checkpointing:
                del peaks["forward"]  # counted one identity matrix too high: docs/training.md
            job = job_of(sequences, tokens, checkpointing, True)
            job["trainer"]["lora"] |= {"dora": True, "dropout": dropout}
            tail = ("/dropout" if dropout else "") + ("/checkpointed" if checkpointing else "")
            row: Row = {"id": f"{name}/dora/b{sequences}s{tokens}{tail}", "config": name, "job": job}
            row |= {"source": f"{by} executed on the meta device", "peaks": peaks}
            lines.append(row)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
