"""Makes tests/data/executed_trl.jsonl: training steps of TRL's trainers other than SFT, of several releases, executed by PyTorch.

    python benchmarks/oracle/execute_trl.py TRL... [--output tests/data/executed_trl.jsonl]

Every TRL is a folder `trl` of a release below a folder of its name (v1.4.0/trl). transformers' Trainer.training_step runs as it is
around the trainer's own compute_loss; no constructor runs. Tensors are fake CPU ones. What a mask of tokens selects is everything,
prompts are one token long. Teachers keep the cache that transformers makes. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import torch
import transformers
from execute import ROOT, Row, job_of
from execute_parallel import LivesOfParts
from execute_preference import CONFIGS, FORMATS, RANK, Lives, adapted, make, patch
from execute_trainer import super_named
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from trl_code import accelerator, definitions, load, use_adapter

aten = torch.ops.aten
TEACHERS: dict[str, Row] = {
    "narrow": CONFIGS["narrow"] | {"hidden_size": 16, "num_hidden_layers": 3},
    "llama": CONFIGS["llama"] | {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12},
}
SIZES = ((2, 1024), (4, 512), (6, 300))
# trainer, release, config, format, sequences, tokens of one, checkpointing, reference (GRPO: tokens of a completion, 0: all)
Case = tuple[str, str, str, str, int, int, bool, str | int]
# the first release that a head describes
HEADS: dict[str, list[tuple[tuple[int, ...], str]]] = {
    "dpo": [((0, 18), "trl_dpo_0_18"), ((0, 29), "trl_dpo_0_29"), ((1, 6), "trl_dpo")],
    "kto": [((0, 18), "trl_kto_0_18"), ((1, 6), "trl_kto")],
    "grpo": [((1, 0), "trl_grpo_1_0")],
    "gkd": [((0, 18), "trl_gkd")],
    "gold": [((0, 26), "trl_gkd")],
    "reward": [((0, 24), "reward_pairs")],
}


def number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.removeprefix("v").split("."))


def head_of(trainer: str, release: str) -> str:
    return next(head for since, head in reversed(HEADS[trainer]) if number(release) >= since)


def cases_of(release: str) -> list[Case]:
    new = number(release)
    out: list[Case] = []
    # from 0.21 to 0.28 DPO asks for the hidden states of all layers, which is not described
    for trainer in ("dpo", "kto") if new < (0, 21) or new >= (0, 29) else ("kto",):
        references = ("none", "model")
        out += [(trainer, release, "narrow", f, b, s, False, r) for f in FORMATS for b, s in SIZES for r in references]
        out += [(trainer, release, "llama", f, 4, 512, c, "model") for f in FORMATS for c in (False, True)]
        out += [(trainer, release, "llama", f, 4, 512, c, "adapters_off") for f in ("bf16", "autocast") for c in (False, True)]
        if new >= (1, 3):  # a copy of the adapters is the reference, or a second model that nobody said a format of
            out += [(trainer, release, "llama", f, 4, 512, c, "copy") for f in ("bf16", "autocast") for c in (False, True)]
            out += [(trainer, release, config, "bf16", 4, 512, False, "fp32") for config in ("narrow", "llama")]
    if new >= (1, 0):
        out += [("grpo", release, "narrow", f, b, s, False, k) for f in FORMATS for b, s in (*SIZES, (1, 700)) for k in (0, 200)]
        out += [("grpo", release, "llama", f, 4, 512, c, 0) for f in FORMATS for c in (False, True)]
    if new >= (0, 24):
        for trainer in () if new >= (1, 6) else ("gkd", "gold") if new >= (1, 0) else ("gkd",):
            out += [(trainer, release, "narrow", f, b, s, False, "model") for f in FORMATS for b, s in (*SIZES, (1, 700))]
            out += [(trainer, release, "llama", f, 4, 512, c, "model") for f in FORMATS for c in (False, True)]
        out += [("reward", release, "llama", f, 4, 512, c, "none") for f in ("bf16", "autocast") for c in (False, True)]
    return out


class Mixtures(Lives):
    """logsumexp over another axis than the last: its maximum is as large as its result, and lives as long as exp(x - max)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not aten.logsumexp.default or list(args[1]) != [0]:
            return super().__torch_dispatch__(func, types, args, kwargs)
        highest = super().__torch_dispatch__(aten.empty_like.default, types, (args[0][0],))
        hidden = super().__torch_dispatch__(aten.empty_like.default, types, (args[0],))
        out = LivesOfParts.__torch_dispatch__(self, func, types, args, kwargs)
        del highest, hidden
        return out


def methods(folder: Path, trainer: str) -> tuple[str, str, set[str]]:
    """File, class and what of it runs."""
    new = number(folder.name)
    if trainer == "dpo":
        old = {"concatenated_forward", "get_batch_loss_metrics", "compute_ref_log_probs", "dpo_loss"}
        return "trainer/dpo_trainer.py", "DPOTrainer", {"compute_loss"} | (old if new < (0, 29) else {"_compute_loss"})
    if trainer == "kto":
        file = "trainer/kto_trainer.py" if new < (0, 26) or new >= (1, 6) else "experimental/kto/kto_trainer.py"
        old = {"forward", "get_batch_logps", "kto_loss", "get_batch_loss_metrics"}
        return file, "KTOTrainer", {"compute_loss", "_compute_kl_logps"} | (old if new < (1, 6) else {"_compute_loss"})
    if trainer == "grpo":
        return (
            "trainer/grpo_trainer.py",
            "GRPOTrainer",
            {"compute_loss", "_compute_loss", "_get_per_token_logps" + ("_and_entropies" if new >= (0, 20) else "")},
        )
    if trainer == "reward":
        return "trainer/reward_trainer.py", "RewardTrainer", {"compute_loss"}
    both = {"compute_loss", "generalized_jsd_loss"}
    if trainer == "gold":
        return "experimental/gold/gold_trainer.py", "GOLDTrainer", both
    return ("experimental/gkd" if new >= (0, 26) else "trainer") + "/gkd_trainer.py", "GKDTrainer", both


def names_of(folder: Path) -> dict[str, Any]:
    null: Callable[..., Any] = contextlib.nullcontext
    kinds = SimpleNamespace(ALPHA_DIVERGENCE=SimpleNamespace(value="alpha"), JS_DIVERGENCE=SimpleNamespace(value="js"))
    names: dict[str, Any] = {
        "torch": torch,
        "nn": torch.nn,
        "F": torch.nn.functional,
        "Trainer": transformers.Trainer,
        "nullcontext": null,
        "is_peft_model": lambda model: hasattr(model, "peft_config"),
        "use_adapter": use_adapter,
        "disable_gradient_checkpointing": lambda *_: null(),
        "is_torch_xpu_available": lambda: False,
        "nanmin": torch.min,
        "nanmax": torch.max,
        "flush_left": lambda *tensors: tensors,
        "FDivergenceType": kinds,
        "empty_cache": lambda: None,
        "random": random,
    }
    shared = {"selective_log_softmax"} | ({"entropy_from_logits"} if number(folder.name) >= (0, 20) else set())
    load(definitions(folder / "trl/trainer/utils.py", shared), names)
    return names


def trainer_of(folder: Path, trainer: str, model: Any, other: Any) -> Any:
    names = names_of(folder)
    path, owner, wanted = methods(folder, trainer)
    body = super_named(definitions(folder / "trl" / path, wanted, owner))
    made = load([ast.ClassDef("Made", [ast.Name("Trainer", ast.Load())], [], body, [])], names)["Made"]
    out = object.__new__(made)
    alone = accelerator()
    alone.distributed_type = transformers.trainer.DistributedType.NO
    alone.num_processes, alone.is_main_process, alone.sync_gradients = 1, True, True
    arguments = SimpleNamespace(torch_empty_cache_steps=None, optim="adamw_torch", n_gpu=1, device=torch.device("cpu"))
    arguments.__dict__.update(gradient_checkpointing_kwargs=None, center_rewards_coefficient=None, delta=None)
    arguments.__dict__.update(use_bias_correction_kl=False, use_liger_loss=False, use_liger_kernel=False, rpo_alpha=None)
    arguments.__dict__.update(ld_alpha=None, gradient_accumulation_steps=1)
    out.__dict__.update(model=model, args=arguments, accelerator=alone, optimizer=SimpleNamespace(), compute_loss_func=None)
    out.__dict__.update(model_accepts_loss_kwargs=False, loss_is_scaled_for_ga=None, current_gradient_accumulation_steps=1)
    out.__dict__.update(_metrics={"train": defaultdict(list)}, _total_train_tokens=0, aux_loss_enabled=False, _tp_size=1)
    out.__dict__.update(use_liger_kernel=False, use_liger_loss=False, use_liger_gkd_loss=False, is_encoder_decoder=False)
    out.__dict__.update(ref_model=other, f_divergence_type="reverse_kl", beta=0.1, use_weighting=False, label_smoothing=0.0)
    out.__dict__.update(ld_alpha=None, loss_weights=[1.0], loss_types=["sigmoid"], padding_free=False, max_length=None)
    out.__dict__.update(reference_free=False, use_logits_to_keep=False, pad_token_id=0, padding_value=0, label_pad_token_id=-100)
    out.__dict__.update(_peft_has_been_casted_to_bf16=False, store_metrics=lambda *_, **__: None, calculate_KL=True)
    out.__dict__.update(desirable_weight=1.0, undesirable_weight=1.0, top_entropy_quantile=1.0, off_policy_mask_threshold=None)
    out.__dict__.update(importance_sampling_level="token", epsilon_low=0.2, epsilon_high=0.2, use_vllm=False, temperature=0.7)
    out.__dict__.update(
        _entropy_bonus_enabled=False,
        model_kwarg_keys={"logits_to_keep"},
        num_iterations=1,
        token_entropy_percentile_threshold=0.0,
    )
    out.__dict__.update(tools=[], teacher_model=other, use_uld_loss=False, teacher_tokenizer=None)
    out.loss_type = {"dpo": ["sigmoid"], "kto": "kto", "grpo": "grpo"}.get(trainer, "")
    if trainer == "dpo" and number(folder.name) < (0, 21):
        out.loss_type = "sigmoid"
    if trainer in ("gkd", "gold"):
        out.beta = 0.5
    if trainer == "grpo" and number(folder.name) < (0, 20):
        out.beta = 0.0  # else the reference's pass is in front of the loss
    out.null_ref_context = getattr(model, "disable_adapter", contextlib.nullcontext)
    out._prepare_context_parallel_inputs = lambda _model, inputs: (contextlib.nullcontext, inputs)
    out._prepare_inputs = lambda inputs: inputs
    return out


def batch_of(trainer: str, old: bool, ids: torch.Tensor, kept: int, precomputed: bool) -> dict[str, Any]:
    ones = torch.ones_like(ids)
    whole = {"input_ids": ids, "attention_mask": ones}
    if trainer == "reward":
        return whole
    if trainer in ("gkd", "gold"):
        return whole | {"labels": torch.empty_like(ids), "prompts": ids[:, :1]}
    if trainer == "grpo":
        prompt = ids.shape[1] - kept
        out: dict[str, Any] = {
            "prompt_ids": ids[:, :prompt],
            "prompt_mask": ones[:, :prompt],
            "advantages": torch.empty(len(ids)),
        }
        out |= {"completion_ids": ids[:, prompt:], "completion_mask": ones[:, prompt:], "num_items_in_batch": torch.ones(())}
        return out | {"ref_per_token_logps": torch.empty(len(ids), kept)}
    if trainer == "dpo" and old:
        out = {"prompt_input_ids": ids[: len(ids) // 2, :1], "completion_input_ids": ids[:, 1:]}
        chosen = {"ref_chosen_logps": torch.empty(len(ids) // 2), "ref_rejected_logps": torch.empty(len(ids) // 2)}
        return out | (chosen if precomputed else {})
    if trainer == "dpo":
        out = whole | {"completion_mask": ones}
        return out | (
            {key: torch.empty(len(ids) // 2) for key in ("ref_chosen_logps", "ref_rejected_logps")} if precomputed else {}
        )
    half = len(ids) // 2
    desirable = torch.arange(len(ids)) < half
    if old:
        out = {"completion_input_ids": ids, "completion_attention_mask": ones, "completion_labels": ids}
        out["label"] = [True] * half + [False] * half
        out |= {f"KL_{key}": out[key].clone() for key in list(out) if key != "label"}
        return out | (
            {"reference_logps": torch.empty(len(ids)), "reference_KL_logps": torch.empty(len(ids))} if precomputed else {}
        )
    out = whole | {"completion_mask": ones, "label": desirable}
    out |= {f"KL_{key}": out[key].clone() for key in ("input_ids", "attention_mask", "completion_mask")}
    return out | ({"ref_logps": torch.empty(len(ids)), "ref_KL_logps": torch.empty(len(ids))} if precomputed else {})


def joined(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """concatenated_inputs of batches that are padded alike."""
    prompts, completions = batch["prompt_input_ids"].repeat(2, 1), batch["completion_input_ids"]
    out = {"prompt_input_ids": prompts, "prompt_attention_mask": torch.ones_like(prompts)}
    return out | {"completion_input_ids": completions, "completion_attention_mask": torch.ones_like(completions)}


def models_of(case: Case) -> tuple[Any, Any, Any]:
    trainer, _, config, form, _, _, checkpointing, reference = case
    kind = "reward_pairs" if trainer == "reward" else "hf_loss"
    model = make(kind, CONFIGS[config], form, checkpointing)
    other = None
    if reference in ("model", "fp32"):
        teaches = trainer in ("gkd", "gold")
        wide = reference == "fp32"
        other = make("hf_loss", (TEACHERS if teaches else CONFIGS)[config], "fp32-autocast" if wide else form, False)
        other.config.use_cache = teaches
        if wide:
            del other.forward  # without autocast
    if reference in ("adapters_off", "copy"):
        policy = adapted(model, checkpointing)
        if reference == "copy":
            policy.add_adapter("ref", policy.peft_config["default"])
        return model, policy, other
    return model, model, other


def execute(folder: Path, case: Case) -> Row:
    trainer, _, _, _, sequences, tokens, _, reference = case
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        _, policy, other = models_of(case)
    kept = int(reference) - 1 if trainer == "grpo" and reference else tokens - 1
    old = number(folder.name) < ((0, 29) if trainer == "dpo" else (1, 6))
    made = trainer_of(folder, trainer, policy, other)
    made.concatenated_inputs = lambda batch, **_: joined(batch)
    made.precompute_ref_logps, made.max_completion_length = reference == "none", kept
    gc.collect()
    gc.disable()
    storages = Mixtures()
    owned = [*policy.parameters(), *policy.buffers(), *((*other.parameters(), *other.buffers()) if other else ())]
    resident = sum(storages.own(tensor) for tensor in owned)
    held = [tensor.untyped_storage() for tensor in owned]
    peaks: Row = {}

    def backward(loss: torch.Tensor, **_: Any) -> None:
        peaks["forward"] = resident + storages.highest
        storages.highest = storages.live
        loss.backward()
        peaks["backward"] = resident + storages.highest

    made.accelerator.backward = backward
    with fake, storages:
        ids = torch.empty(sequences, tokens, dtype=torch.int64)
        batch = batch_of(trainer, old, ids, kept, reference == "none")
        del ids
        made.training_step(policy, batch, num_items_in_batch=None)
    gc.enable()
    del held
    return peaks


def case_job(case: Case) -> Row:
    trainer, release, config, form, sequences, tokens, checkpointing, reference = case
    job = job_of(sequences, tokens, checkpointing)
    job["trainer"] |= {"head": head_of(trainer, release), **FORMATS[form]}
    if trainer == "grpo":
        if reference:
            job["trainer"]["logits_to_keep"] = reference
        return job
    if reference in ("adapters_off", "copy"):
        job["trainer"]["lora"] = {"rank": RANK} | ({"frozen_copies": 1} if reference == "copy" else {})
    if reference != "none":
        job["trainer"]["reference"] = {"copy": "adapters_off", "fp32": "model"}.get(str(reference), reference)
    if reference == "fp32":
        job["trainer"]["reference_format"] = "fp32"
    if trainer in ("gkd", "gold"):
        job["reference_config"] = TEACHERS[config]
    return job


def title(case: Case) -> str:
    trainer, release, config, form, sequences, tokens, checkpointing, reference = case
    out = f"{config}/{trainer}-{release}/{form}/b{sequences}s{tokens}"
    if trainer == "grpo":
        out += f"k{reference}" if reference else ""
    elif reference != "none":
        out += f"/{reference}"
    return out + ("/checkpointed" if checkpointing else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path, nargs="+")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_trl.jsonl")
    options = parser.parse_args()
    patch()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, peft {peft.__version__}"
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    for folder in options.trl:
        for case in cases_of(folder.name):
            name = title(case)
            if options.only not in name:
                continue
            source = f"{by}, TRL {folder.name.removeprefix('v')} executed on fake tensors"
            lines.append({"id": name, "config": case[2], "job": case_job(case), "source": source, "peaks": execute(folder, case)})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
