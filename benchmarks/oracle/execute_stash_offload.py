"""Makes tests/data/executed_stash_offload.jsonl: training steps under TRL's and torchtune's OffloadActivations, executed by PyTorch.

    python benchmarks/oracle/execute_stash_offload.py TRL LOSSES TORCHTUNE [--output tests/data/executed_stash_offload.jsonl]

TRL is the folder `trl` of its release 1.16.0, LOSSES that of 1.12.0, whose losses execute_preference.py knows, TORCHTUNE a clone of pytorch/torchtune with its tags: their own classes run
(offload_code.py). TRL's stands around the whole training step, as its trainers have it; transformers' models on the meta device are
execute.py's. torchtune's stands around the model's forward pass, as its recipes have it, with the models of execute_torchtune.py. Lines are those
of execute_offload.py. Needs accelerate, and peft for the rows with LoRA.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import execute_parallel
import execute_preference as preference
import execute_torchtune
import torch
import torch.nn.functional as F
import transformers
import transformers.masking_utils
from execute import RANK, ROOT, SMALL, Row, Storages, half_to_float, job_of, make_model
from execute_litgpt import flash, fused_dropout
from execute_offload import CONFIGS, TOKENS
from execute_torchtune import ALL, HEADS, MODELS, SOME
from execute_torchtune import job_of as torchtune_job
from offload_code import host, torchtune_code, trl_code
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from torchtune_code import unpack

RELEASE, OFFLOAD = "v0.4.0", "v0.6.1"  # 0.4.0 takes PyTorch 2.10 and later for one without streams
DEEP: Row = {**SMALL, "num_hidden_layers": 9, "vocab_size": 1024}
MORE: dict[str, Row] = {
    "llama, 9 layers": {"model_type": "llama", **DEEP},
    "llama, 9 layers, large vocabulary": {"model_type": "llama", **DEEP, "vocab_size": 32768},
    "llama, as many heads": {"model_type": "llama", **DEEP, "num_key_value_heads": 8},
    "qwen3, 9 layers": {"model_type": "qwen3", **DEEP, "head_dim": 64},
    "gpt_neox, 9 layers": {"model_type": "gpt_neox", **DEEP, "use_parallel_residual": False},
    "gemma2, 9 layers": {**CONFIGS["gemma2, 6 layers"], "num_hidden_layers": 9},
    "mixtral, 9 layers": {**CONFIGS["mixtral, 5 layers"], "num_hidden_layers": 9},
}
# config, sequences, attention, recomputation, adapters
TRL: list[tuple[str, int, str, str, bool]] = [
    *(
        (name, sequences, attention, recompute, False)
        for name in MORE
        for sequences, attention in ((1, "eager"), (2, "sdpa"), (2, "executed"))
        for recompute in ("none", "nonreentrant", "reentrant")
        if attention == "eager" or "gemma2" not in name
        if attention != "executed" or "gpt_neox" not in name  # queries lie by head: see execute_offload.py
    ),
    *(("llama, 9 layers", 1, "executed", recompute, True) for recompute in ("none", "nonreentrant")),
]


def one_device(code: Any, case: Any) -> tuple[Row, int]:
    name, sequences, attention, recompute, adapters = case
    model: Any = make_model(MORE[name], False, False, "eager" if attention == "executed" else attention)
    model.config._attn_implementation = attention
    if adapters:
        import peft

        with torch.device("meta"):
            model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules="all-linear"))
    if recompute != "none":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": recompute == "reentrant"})
        if adapters:
            model.enable_input_require_grads()
    around = code.get_act_offloading_ctx_manager(model)
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    host.highest = host.live = 0
    with storages, around:
        ids = torch.empty(sequences, TOKENS, dtype=torch.int64, device="meta")
        labels = torch.empty_like(ids)
        loss = model(input_ids=ids, labels=labels).loss
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    return {"forward": resident + forward, "backward": resident + storages.highest}, host.highest


def trl_rows(trl: Path) -> Iterator[Row]:
    code = trl_code(trl, "meta")
    for case in TRL:
        name, sequences, attention, recompute, adapters = case
        job = job_of(sequences, TOKENS, recompute != "none")
        kernels = "hf_flash" if attention == "executed" else f"hf_{attention}"
        job["trainer"] |= {"offload_activations": "trl", "reentrant": recompute == "reentrant", "kernels": kernels}
        if adapters:
            job["trainer"]["lora"] = {"rank": RANK}
        words = f"{name}/trl/b{sequences}/{attention}/{recompute}" + "/lora" * adapters
        peaks, highest = one_device(code, case)
        yield {"id": words, "config": name, "job": job, "peaks": peaks, "host": highest}


# head, format, checkpointing: of execute_preference.py
LOSSES: list[tuple[str, str, bool]] = [
    (head, form, checkpointing)
    for head in ("hf_loss", "reward_pairs")
    for form in preference.FORMATS
    for checkpointing in (False, True)
]


def of_trainer(trl: Path, code: Any, case: Any) -> tuple[Row, int]:
    """On fake CPU tensors, for the sake of autocast."""
    head, form, checkpointing = case
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = preference.make(head, MORE["llama, 9 layers, large vocabulary"], form, checkpointing)
    if head == "hf_loss":
        model.__dict__.pop("forward", None)  # its loss is computed inside, under autocast too
    else:
        made = preference.trainer(trl, head, lambda _: False)
        made.model = model
    around = code.get_act_offloading_ctx_manager(model)
    gc.collect()
    gc.disable()
    storages = preference.Lives()
    owned = [*model.parameters(), *model.buffers()]
    resident = sum(storages.own(tensor) for tensor in owned)
    held = [tensor.untyped_storage() for tensor in owned]
    host.highest = host.live = 0
    with fake, storages, around:
        ids = torch.empty(4, 512, dtype=torch.int64)
        with torch.autocast("cpu", torch.bfloat16, enabled=form != "bf16"):
            if head == "hf_loss":
                loss = model(input_ids=ids, labels=torch.empty_like(ids)).loss
            else:
                loss = preference.step(made, head, model, ids, 511)
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    del held
    return {"forward": resident + forward, "backward": resident + storages.highest}, host.highest


def loss_rows(trl: Path, losses: Path) -> Iterator[Row]:
    preference.patch()
    code = trl_code(trl, "cpu")
    for case in LOSSES:
        head, form, checkpointing = case
        job = preference.case_job((head, "", form, 4, 512, checkpointing, "none", 0))
        job["trainer"]["offload_activations"] = "trl"
        peaks, highest = of_trainer(losses, code, case)
        words = f"{head}/trl/{form}" + "/checkpointed" * checkpointing
        yield {"id": words, "config": "llama, 9 layers, large vocabulary", "job": job, "peaks": peaks, "host": highest}


# targets (none: everything is trained), sequences, tokens of one, recomputation, dropout, packed
SHAPES = [
    ([], 1, 1024, "full", 0.0, False),
    ([], 2, 1024, "full", 0.0, True),
    (SOME, 2, 1024, "full", 0.05, False),
    (ALL, 2, 2048, "full", 0.05, False),
    (ALL, 2, 1024, "full", 0.0, True),
]
TUNED = {name: {**fields, "num_hidden_layers": 9} for name, fields in MODELS.items()}


def tuned(code: Any, config: Row, head: str, run: Any) -> tuple[Row, int]:
    host.highest = host.live = 0
    peaks = execute_torchtune.execute(config, head, run, lambda model: code.get_act_offloading_ctx_manager(model, True))
    return peaks, host.highest


def torchtune_rows(torchtune: Path) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        unpack(torchtune, RELEASE, Path(folder))
        code = torchtune_code(torchtune, OFFLOAD, "cpu")
        for name, config in TUNED.items():
            for head in HEADS:
                for run in SHAPES:
                    job = torchtune_job(head, run)
                    job["trainer"]["offload_activations"] = "torchtune"
                    what = f"{len(run[0])} targets" if run[0] else "everything"
                    what += ", packed" if run[5] else ""
                    peaks, highest = tuned(code, config, head, run)
                    words = f"{head}/{name}/torchtune/{what}/{run[1]}x{run[2]}"
                    yield {"id": words, "config": f"torchtune, {name}", "job": job, "peaks": peaks, "host": highest}


def patch_transformers() -> None:
    F.softmax = half_to_float(F.softmax)
    F.scaled_dot_product_attention = execute_parallel.flash_sdpa
    transformers.AttentionInterface.register("executed", execute_parallel.attend)
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["executed"] = lambda *_, **__: None
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # reads data: nothing is packed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path)
    parser.add_argument("losses", type=Path)
    parser.add_argument("torchtune", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_stash_offload.jsonl")
    options = parser.parse_args()
    lines: list[Row] = [{"config": name, "fields": fields} for name, fields in MORE.items()]
    lines += [{"config": f"torchtune, {name}", "fields": fields} for name, fields in TUNED.items()]
    by = f"torch {torch.__version__.split('+')[0]}"
    patch_transformers()
    trl = f"{by}, transformers {transformers.__version__}, trl 1.16.0 executed on"
    for rows, source in (
        (trl_rows(options.trl), f"{trl} the meta device"),
        (loss_rows(options.trl, options.losses), f"{trl} fake tensors"),
    ):
        for row in rows:
            lines.append({**row, "source": source})
            print(row["id"], row["peaks"], row["host"], flush=True)
    F.scaled_dot_product_attention, F.dropout = flash, fused_dropout
    for row in torchtune_rows(options.torchtune):
        lines.append(
            {**row, "source": f"{by}, torchtune {RELEASE} with OffloadActivations of {OFFLOAD} executed on fake tensors"}
        )
        print(row["id"], row["peaks"], row["host"], flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
