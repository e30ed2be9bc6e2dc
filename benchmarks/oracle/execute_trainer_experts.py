"""Makes tests/data/executed_trainer_experts.jsonl: steps with adapters beside experts by transformers' Trainer and TRL's SFTTrainer.

    python benchmarks/oracle/execute_trainer_experts.py TRL... [--only WORD] [--output tests/data/executed_trainer_experts.jsonl]

Every TRL is a folder as execute_trainer.py takes it, whose Trainer.training_step this runs; models as execute.py and
execute_experts.py make them, on the meta device. peft renames targets of release 4 to transformers' fused parameters, by itself.
Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from importlib import metadata
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from execute import MODELS, RANK, ROOT, SMALL, Row, as_on_cuda, job_of
from execute_experts import EXPERTS
from execute_preference import Lives, patch
from execute_trainer import head_of, trainer_of
from row_lines import write_rows

FAMILIES = ("mixtral", "qwen3_moe", "olmoe", "deepseek_v3", "glm4_moe", "minimax_m2", "granitemoe", "qwen2_moe", "ernie4_5_moe")
ERNIE: Row = {
    "moe_num_experts": 16,
    "moe_k": 4,
    "moe_intermediate_size": 256,
    "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1,
    "head_dim": 64,
    "tie_word_embeddings": False,
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
# sequences, tokens of one, checkpointing, targets
RUNS: tuple[tuple[int, int, bool, Any], ...] = (
    (1, 512, False, "all-linear"),
    (1, 512, True, "all-linear"),
    (2, 256, True, "all-linear"),
    (1, 512, False, ATTENTION),
    (1, 1024, True, ATTENTION),
)


# what is refused, and forward passes that are met to 0.054 % alone: a router's scores live on beside adapted experts
LEFT_OUT = {("minimax_m2", False), ("minimax_m2", True), ("deepseek_v3", True), ("glm4_moe", True)}


class LivesOnTheDevice(Lives):
    def born(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "meta":
            super().born(tensor)


def config_of(family: str) -> Row:
    fields = ERNIE if family == "ernie4_5_moe" else EXPERTS.get(family) or MODELS[family]
    return {"model_type": family, **SMALL, **fields}


def make(config: Row, checkpointing: bool, targets: Any) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16, attn_implementation="eager")
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.enable_input_require_grads()
        return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules=targets))


def execute(folder: Path | None, model: Any, sequences: int, tokens: int) -> Row:
    trainer = trainer_of(folder, model)
    gc.collect()
    gc.disable()
    storages = LivesOnTheDevice()
    owned = [*model.parameters(), *model.buffers()]
    resident = sum(storages.own(tensor) for tensor in owned)
    held = [tensor.untyped_storage() for tensor in owned]
    peaks: Row = {}

    def backward(loss: torch.Tensor, **_: Any) -> None:
        peaks["forward"] = resident + storages.highest
        storages.highest = storages.live
        loss.backward()
        peaks["backward"] = resident + storages.highest

    trainer.accelerator.backward = backward
    with storages:
        ids = torch.empty(sequences, tokens, dtype=torch.int64, device="meta")
        batch = {"input_ids": ids, "labels": torch.empty_like(ids), "attention_mask": torch.ones_like(ids)}
        del ids
        trainer.training_step(model, batch, num_items_in_batch=torch.empty((), dtype=torch.int64, device="meta"))
    gc.enable()
    del held
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path, nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_trainer_experts.jsonl")
    options = parser.parse_args()
    patch()
    as_on_cuda()
    vars(torch)["autocast"] = lambda *_, **__: contextlib.nullcontext()  # peft turns it off, and the meta device has none
    folders: dict[str, Path | None] = {"trainer": None, **{f"sft-{path.name}": path for path in options.trl}}
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, peft {metadata.version('peft')}"
    lines: list[Row] = []
    for family in FAMILIES:
        config = config_of(family)
        lines.append({"config": family, "fields": config})
        for name, folder in folders.items():
            for sequences, tokens, checkpointing, targets in RUNS:
                told = targets if isinstance(targets, str) else "attention"
                title = f"{family}/{name}/b{sequences}s{tokens}/{told}" + ("/checkpointed" if checkpointing else "")
                if options.only not in title or (told == "all-linear" and (family, checkpointing) in LEFT_OUT):
                    continue
                job = job_of(sequences, tokens, checkpointing)
                job["trainer"] |= {"head": head_of(name), "lora": {"rank": RANK, "targets": targets}}
                model = make(config, checkpointing, targets)
                row = {"id": title, "config": family, "job": job, "source": f"{by}: Trainer.training_step on the meta device"}
                lines.append(row | {"peaks": execute(folder, model, sequences, tokens)})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
