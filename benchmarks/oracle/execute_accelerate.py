"""Makes tests/data/executed_accelerate.jsonl: steps of transformers' Trainer and TRL's SFTTrainer on what accelerate prepared.

    python benchmarks/oracle/execute_accelerate.py TRL... [--only WORD] [--output tests/data/executed_accelerate.jsonl]

Accelerator reads its settings from the variables that a launcher sets (Oumi's src/oumi/core/distributed.py get_accelerate_env_vars
sets the same), and its own prepare_model wraps the model: FullyShardedDataParallel with peft's wrapping, mixed precision with the
casts of what is trained, checkpoints around units. transformers' own update of the plugin for adapters runs in front of it, and
Trainer.training_step around the trainer's own loss behind it (execute_trainer.py). FSDP1 is rank 0 of a fake process group on fake
tensors (fuzz_fsdp.py); DDP is computed on the CPU (fuzz_ddp.py). A packed base is execute_packed.py's, cast as Oumi does
(src/oumi/train.py: coerce_model_to_dtype). Levels are those of the second step, of DDP the fifth. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import accelerate
import accelerate.state
import accelerate.utils.dataclasses
import bitsandbytes
import cuda_autocast
import execute_packed
import execute_packed_sharded
import execute_text_alone
import fuzz
import fuzz_adapters
import fuzz_ddp
import fuzz_fsdp
import fuzz_optimizers
import peft
import torch
import torch.distributed as dist
import transformers
from execute import ROOT, Row
from execute_found import BASE, small
from execute_fsdp1 import Resized
from execute_preference import Lives, patch
from execute_scaler import item_of
from execute_trainer import head_of, trainer_of
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed.fsdp import update_fsdp_plugin_peft

ALL = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
LORA: Row = {"rank": 8, "dropout": 0.0, "verl": False, "targets": ALL, "format": "fp32"}
USUAL: Row = BASE | {
    **{"engine": "fsdp1", "attention": "eager", "tokens": 160, "ranks": 4, "strategy": "FULL_SHARD", "mixed": "no"},
    **{"backward_prefetch": "pre", "forward_prefetch": False, "use_orig_params": True, "optimizer": "adamw", "clip": True},
    **{"deferred": False, "compute": "bf16", "reduce": "bf16", "policy": "none"},
}
AHEAD: Row = {"forward_prefetch": True}
CHECKPOINT: Row = {"recompute": "nonreentrant"}
FLAT: Row = {"use_orig_params": False}
ORIGINAL: Row = {"use_orig_params": True}
FEW: Row = {"lora": LORA | {"targets": "q_proj v_proj"}, **FLAT}
MANY: Row = {"lora": LORA, **FLAT}
PACKED: Row = {"lora": LORA | {"format": "storage", "packed": True}, **FLAT, "dtype": "bf16"}
BF16: Row = {"mixed": "bf16", "dtype": "fp32"}
FP16: Row = {"mixed": "fp16", "dtype": "fp32"}
CAST: Row = {"mixed": "bf16", "dtype": "bf16"}  # accelerate casts what is trained to fp32
HALF: Row = {"dtype": "bf16"}
DEFERRED: Row = {"micro_batches": 3, "deferred": True}
SHARDED: list[Row] = [
    *({**HALF, **how} for how in ({}, AHEAD, CHECKPOINT, AHEAD | CHECKPOINT, DEFERRED, {"strategy": "SHARD_GRAD_OP"})),
    *({**lora, **HALF, **how} for lora in (FEW, MANY) for how in ({}, AHEAD, CHECKPOINT, AHEAD | CHECKPOINT, AHEAD | DEFERRED)),
    *({**PACKED, **how} for how in ({}, AHEAD, CHECKPOINT, AHEAD | CHECKPOINT, AHEAD | DEFERRED)),
    *({**mixed, **how} for mixed in (BF16, CAST, FP16) for how in ({}, AHEAD, CHECKPOINT)),
    *({**MANY, **mixed, **how} for mixed in (BF16, CAST, FP16) for how in ({}, AHEAD)),
    *({**MANY, **HALF, **ORIGINAL, **how} for how in ({}, AHEAD, CHECKPOINT, AHEAD | CHECKPOINT, AHEAD | DEFERRED)),
    *({**MANY, **HALF, **AHEAD, **how} for how in ({"strategy": "SHARD_GRAD_OP"}, {"backward_prefetch": "post"}, {"backward_prefetch": "none"})),
    *({**HALF, **how, "optimizer": kind} for kind in ("adamw_8bit", "paged_adamw_8bit") for how in ({}, FLAT, MANY)),
]  # fmt: skip
DDP: Row = {"engine": "ddp", "dtype": "fp32", "tokens": 33, "gradient_as_bucket_view": False, "static_graph": False}
REPLICATED: list[Row] = [
    {**DDP, **how, **lora, "find_unused_parameters": find, "keep_gradients": False}
    for lora in ({}, {"lora": LORA})
    for find, how in ((True, {}), (False, CHECKPOINT), (True, DEFERRED))
]
CONFIGS: dict[str, Row] = {"llama": small("llama", num_hidden_layers=5), "qwen3": small("qwen3", num_hidden_layers=4)}
# models with a tower that no batch reaches, and the layers of their text, which are the units
TOWERS: dict[str, str] = {
    "gemma3": "Gemma3DecoderLayer",
    "qwen2_5_vl": "Qwen2_5_VLDecoderLayer",
    "gemma4": "Gemma4TextDecoderLayer",
}
TEXT_ALONE: list[Row] = [
    *({**HALF, **how} for how in ({}, AHEAD, CHECKPOINT, DEFERRED)),
    *({**FEW, **HALF, **how} for how in ({}, AHEAD, CHECKPOINT, AHEAD | CHECKPOINT, AHEAD | DEFERRED)),
    *({**BF16, **how} for how in ({}, AHEAD | CHECKPOINT)),
    *({**how, "tokens": 16} for how in (HALF, BF16, HALF | DEFERRED)),  # the root's reduction is the highest moment
]
NO_TOWERS = "(.*vision.*)|(.*audio.*)"
EXPERTS: list[Row] = [
    *({**HALF, **how} for how in ({}, AHEAD, CHECKPOINT)),
    *({**FEW, **HALF, **ORIGINAL, **how} for how in ({}, AHEAD, AHEAD | CHECKPOINT, AHEAD | DEFERRED)),
]
POLICIES = {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST", "none": "NO_PREFETCH"}


class Followed(Resized, Lives):
    """What FSDP resizes is followed, and the parts inside of kernels."""


def environment(case: Row) -> dict[str, str]:
    """What the launcher sets. How weights come to the ranks is no part of a step."""
    sharded = case["engine"] == "fsdp1"
    around = sharded and case["recompute"] != "none"
    return {
        **{"ACCELERATE_USE_FSDP": str(sharded).lower(), "ACCELERATE_MIXED_PRECISION": case["mixed"], "LOCAL_RANK": "0"},
        **{"ACCELERATE_BYPASS_DEVICE_MAP": "true", "FSDP_SYNC_MODULE_STATES": "false", "FSDP_OFFLOAD_PARAMS": "false"},
        **{"FSDP_SHARDING_STRATEGY": case["strategy"], "FSDP_BACKWARD_PREFETCH": POLICIES[case["backward_prefetch"]]},
        **{"FSDP_FORWARD_PREFETCH": str(case["forward_prefetch"]).lower(), "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"},
        **{"FSDP_USE_ORIG_PARAMS": str(case["use_orig_params"]).lower(), "FSDP_ACTIVATION_CHECKPOINTING": str(around).lower()},
        **({"FSDP_TRANSFORMER_CLS_TO_WRAP": case["layers"]} if "layers" in case else {}),
    }


def stand_in() -> None:
    state: Any = accelerate.state
    state.PartialState._prepare_backend = lambda *_, **__: ("nccl", accelerate.DistributedType.MULTI_GPU)
    state.PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
    patch()
    fuzz_fsdp.stand_in()
    cuda_autocast.stand_in()
    fuzz_optimizers.stand_in()
    execute_packed.patch()
    bitsandbytes.nn.modules.Params4bit = execute_packed_sharded.OfBytes
    item_of["number"] = 1.0
    peft.tuners.tuners_utils.BaseTunerLayer._move_adapter_to_device_of_base_layer = lambda *_, **__: None


def model_of(config: Row, case: Row, beside: list[torch.Tensor]) -> Any:
    """As Oumi builds it: adapters first, checkpoints by the trainer, or under FSDP by accelerate."""
    lora = case["lora"]
    if "layers" in case:
        wanted = {"kernels": case["attention"], "storage": case["dtype"], "checkpointing": False}
        model = execute_text_alone.model_of(config, wanted)
    else:
        model = fuzz.make_model(config, case | {"lora": None, "recompute": "none"})
    if lora and lora.get("packed"):
        beside += execute_packed_sharded.pack(model, {"double": False, "whole": False})
        model.quantization_method = transformers.utils.quantization_config.QuantizationMethod.BITS_AND_BYTES
        wanted = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage="bfloat16")
        model.hf_quantizer = type("Quantizer", (), {"quantization_config": wanted})()
    if lora:
        made = peft.LoraConfig(task_type="CAUSAL_LM", r=lora["rank"], target_modules=lora["targets"].split())
        made.exclude_modules = lora.get("exclude")
        with torch.device("meta"):
            model = peft.get_peft_model(model, made)
        if lora["format"] == "storage":
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.to(torch.bfloat16)
    if case["recompute"] != "none" and case["engine"] != "fsdp1":
        inner = model.get_base_model() if lora else model
        inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if lora:
            model.enable_input_require_grads()
    return model


def micro_batch(made: Any, model: Any, case: Row, lives: Any, peaks: Row) -> Row:
    make = torch.zeros if case["engine"] == "ddp" else torch.empty
    ids = make(case["sequences"], case["tokens"], dtype=torch.int64)
    batch = {"input_ids": ids, "labels": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids)}
    del ids
    plain = made.accelerator.backward

    def backward(loss: torch.Tensor, **given: Any) -> None:
        peaks["forward"] = max(peaks["forward"], lives.highest)
        lives.highest = lives.live
        plain(loss, **given)
        peaks["backward"] = max(peaks["backward"], lives.highest)

    lives.highest = lives.live
    made.accelerator.backward = backward
    made.training_step(model, batch, num_items_in_batch=torch.ones((), dtype=torch.int64))
    made.accelerator.backward = plain
    return batch


def step(made: Any, model: Any, case: Row, lives: Any, optimizer: Any) -> Row:
    """transformers/trainer.py `_run_epoch`, 5.24: no_sync in all micro-batches but the last, which its loop names to the end."""
    peaks = {"forward": 0, "backward": 0, "optimizer": 0}
    for number in range(case["micro_batches"]):
        deferred = number < case["micro_batches"] - 1
        with made.accelerator.no_sync(model) if deferred else contextlib.nullcontext():
            inputs = micro_batch(made, model, case, lives, peaks)
    lives.highest = lives.live
    if case["clip"] and case["engine"] == "fsdp1":
        model.clip_grad_norm_(1.0)
    elif case["clip"]:
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    peaks["optimizer"] = lives.highest
    fuzz_optimizers.leave_steps_to_the_host(optimizer, lives)
    model.zero_grad()
    del inputs
    return peaks


def optimizer_of(name: str, model: Any, lives: Any) -> Any:
    """bitsandbytes' works in place. Paged states lie in unified memory. Embeddings stay in 32 bits (Trainer.create_optimizer)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not name.endswith("bit"):
        return fuzz.optimizer_of(name, trained)
    out: Any = bitsandbytes.optim.AdamW8bit(trained)
    out.update_step = lambda *_, **__: None

    def state_of(parameter: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        state = torch.zeros_like(parameter, dtype=dtype)
        if name.startswith("paged") and parameter.numel() >= 100_000:
            lives.leave_out(state)
        return state

    out.get_state_buffer = state_of
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    return out


def execute(folder: Path | None, config: Row, case: Row) -> Row:
    sharded = case["engine"] == "fsdp1"
    if sharded:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    accelerate.state.AcceleratorState._reset_state(True)
    before = dict(os.environ)
    os.environ.update(environment(case))
    beside: list[torch.Tensor] = []
    model = model_of(config, case, beside)
    fake: Any = FakeTensorMode(allow_non_fake_inputs=True) if sharded else contextlib.nullcontext()
    lives = Followed() if sharded else Lives()
    peaks: Row = {}
    with fake:
        fuzz_fsdp.on_fake_tensors(model) if sharded else fuzz_ddp.filled(model)
        options = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph")
        wishes = [] if sharded else [accelerate.DistributedDataParallelKwargs(**{name: case[name] for name in options})]
        prepares = accelerate.Accelerator(kwargs_handlers=wishes)
        for shared in (accelerate.state.PartialState, accelerate.state.AcceleratorState):
            shared._shared_state["num_processes"] = case["ranks"]  # DDP is computed by one, whose buckets are those of many
        if sharded and case["lora"]:
            update_fsdp_plugin_peft(model, prepares)
        resident = 0
        if not sharded:
            resident = sum(lives.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
        with contextlib.nullcontext() if sharded else lives:
            model = prepares.prepare_model(model)
        made = trainer_of(folder, model)
        prepares.gather_for_metrics = prepares.gather = prepares.reduce = lambda tensor, **_: tensor
        made.accelerator = prepares
        if sharded:
            optimizer = optimizer_of(case["optimizer"], model, lives)
            gc.collect()
            gc.disable()
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.untyped_storage().nbytes() > 0:  # they may die: accelerate's casts replace the shards
                    lives.born(tensor)
            del tensor
            Resized.now = lives
        with lives:
            if not sharded:
                gc.collect()
                gc.disable()
                optimizer = optimizer_of(case["optimizer"], model, lives)
            for _ in range(2 if sharded else 5):
                peaks = step(made, model, case, lives, optimizer)
        Resized.now = None
        gc.enable()
    dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)
    statistics = sum(tensor.untyped_storage().nbytes() for tensor in beside)
    return {phase: resident + level + statistics for phase, level in peaks.items()}


def case_job(name: str, case: Row) -> Row:
    job = fuzz.job_of(case | {"lora": None})
    trainer = job["trainer"]
    trainer["head"] = head_of(name)
    if case["mixed"] != "no":
        trainer["autocast"] = True
        trainer["precision"]["autocast"] = case["mixed"]
        if case["engine"] == "fsdp1":  # what is trained is cast to fp32, and the policy names one format
            frozen = case["lora"] is not None
            trainer["precision"] = dict.fromkeys(("compute", "reduce", "autocast"), case["mixed"])
            trainer["precision"]["storage"] = case["dtype"] if frozen else "fp32"
    lora = case["lora"]
    if lora:
        job["framework"] = "torch"
        trainer["lora"] = fuzz_adapters.settings_of({key: value for key, value in lora.items() if key != "packed"})
        if "exclude" in lora:
            trainer["lora"]["exclude"] = lora["exclude"]
        if lora.get("packed"):
            trainer["lora"] |= {"base": "nf4", "base_compute": "bf16", "bitsandbytes": execute_packed.RELEASE}
            trainer["precision"] = {"storage": "bf16", "compute": "bf16", "reduce": "bf16"}
    return job


def cases_of(config: str) -> list[Row]:
    if config == "gemma4":  # peft takes no module that wraps a linear layer, as its towers do; checkpoints: docs/findings.md
        adapted = [case for case in TEXT_ALONE if case.get("lora") and "recompute" not in case]
        return [case | {"lora": case["lora"] | {"exclude": NO_TOWERS}} for case in adapted]
    if config in TOWERS:
        return TEXT_ALONE
    return EXPERTS if config == "gpt_oss" else [*SHARDED, *REPLICATED]


def words_of(case: Row, changes: Row) -> str:
    said = {key: value for key, value in changes.items() if key != "lora"}
    lora = case["lora"]
    words = [f"{key}={value}" for key, value in said.items() if value != BASE.get(key)]
    if lora:
        words.append(("qlora" if lora.get("packed") else "lora") + ("" if lora["targets"] == ALL else "-qv"))
    return "/".join([case["engine"], *(word for word in words if not word.startswith("engine="))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path, nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_accelerate.jsonl")
    options = parser.parse_args()
    import oomplan

    stand_in()
    folders: dict[str, Path | None] = {"trainer": None, **{f"sft-{path.name}": path for path in options.trl}}
    libraries = f"transformers {transformers.__version__}, accelerate {accelerate.__version__}"
    versions = f"torch {torch.__version__.split('+')[0]}, {libraries}"
    lines: list[Row] = []
    configs = CONFIGS | {"gpt_oss": small("gpt_oss")} | {name: execute_text_alone.CONFIGS[name] for name in TOWERS}
    for config, fields in configs.items():
        lines.append({"config": config, "fields": fields})
        for name, folder in folders.items():
            if config != "llama" and folder is not None:
                continue
            for changes in cases_of(config):
                if folder is not None and changes.get("mixed") == "fp16":  # docs/findings.md
                    continue
                case = USUAL | changes | ({"layers": TOWERS[config]} if config in TOWERS else {})
                said = f"{config}/{name}/{words_of(case, changes)}"
                if options.only not in said:
                    continue
                job = case_job(name, case)
                try:
                    peaks = execute(folder, fields, case)
                except Exception as error:
                    fuzz_fsdp.clean_up()
                    gc.enable()
                    print("NOT EXECUTED", said, type(error).__name__, str(error)[:300], flush=True)
                    continue
                by = f"{versions}, {'Trainer' if folder is None else 'TRL ' + name.removeprefix('sft-v')} executed without a device"
                lines.append({"id": said, "config": config, "job": job, "source": by, "peaks": peaks})
                try:
                    got = fuzz.ask(oomplan._core, job, fields)
                except ValueError as refusal:
                    print("REFUSED", said, str(refusal)[:300], flush=True)
                    continue
                off = fuzz.differences(peaks, got)
                print(said, " ".join(f"{p} {v:+.3f} % ({got[p] - peaks[p]:+d})" for p, v in off.items()), flush=True)
                write_rows(options.output, lines)


if __name__ == "__main__":
    main()
