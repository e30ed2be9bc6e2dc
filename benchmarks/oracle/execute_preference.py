"""Makes tests/data/executed_preference.jsonl: steps of TRL's preference losses, GRPO and reward models, executed by PyTorch.

    python benchmarks/oracle/execute_preference.py TRL [--output tests/data/executed_preference.jsonl]

TRL is the folder `trl` of its release 1.12.0, whose own loss functions run (trl_code.py). Tensors are fake CPU ones, for the sake
of autocast, which accelerate leaves with the model's forward pass. What a mask of tokens selects is everything. accelerate's
wrapper around the forward pass under mixed precision is repeated here (accelerate/utils/operations.py convert_outputs_to_fp32).
Needs peft. Value models are transformers' token classification. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import torch
import transformers
import transformers.masking_utils
from execute import ROOT, SMALL, Row, as_on_cuda, job_of
from execute_heads import CONFIG as NARROW
from execute_parallel import LivesOfParts
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from trl_code import TRAINERS, trainer

aten = torch.ops.aten
RANK = 16
WIDE: Row = {"model_type": "llama", **SMALL, "vocab_size": 32768}
CONFIGS: dict[str, Row] = {"narrow": NARROW, "llama": WIDE}
FORMATS: dict[str, Row] = {
    "bf16": {},
    "autocast": {"autocast": True},
    "fp32-autocast": {"autocast": True, "precision": dict.fromkeys(("storage", "compute", "reduce"), "fp32")},
}
# sequences and tokens of one; a pair is two
SIZES = ((2, 1024), (4, 512), (6, 300), (8, 256), (10, 200))
ANY_SIZES = ((1, 1024), (3, 400), (5, 300))
# head, config, format, sequences, tokens, checkpointing, reference, tokens kept (0: all)
Case = tuple[str, str, str, int, int, bool, str, int]
CASES: list[Case] = [
    *(("trl_dpo", "narrow", f, b, s, False, r, 0) for f in FORMATS for b, s in SIZES for r in ("none", "model")),
    *((head, "narrow", f, b, s, False, "none", 0) for head in ("trl_simpo", "trl_orpo") for f in FORMATS for b, s in SIZES),
    *(("trl_grpo", "narrow", f, b, s, False, "none", 0) for f in FORMATS for b, s in (*SIZES, *ANY_SIZES)),
    *(("trl_grpo", "narrow", f, b, s, False, "none", s // 2) for f in FORMATS for b, s in SIZES[:3]),
    *((head, "llama", f, 4, 512, c, "none", 0) for head in (*TRAINERS, "value") for f in FORMATS for c in (False, True)),
    *(("trl_dpo", "llama", f, 4, 512, c, "model", 0) for f in FORMATS for c in (False, True)),
    *(("trl_dpo", "llama", f, 4, 512, c, "adapters_off", 0) for f in ("bf16", "autocast") for c in (False, True)),
    *(("trl_dpo", "llama", f, 4, 512, False, "model-lora", 0) for f in ("bf16", "autocast")),
    *(("trl_kto", "narrow", f, b, s, False, r, 0) for f in FORMATS for b, s in SIZES for r in ("none", "model")),
    *(("trl_kto", "llama", f, 4, 512, c, "model", 0) for f in FORMATS for c in (False, True)),
    *(("trl_kto", "llama", f, 4, 512, c, "adapters_off", 0) for f in ("bf16", "autocast") for c in (False, True)),
]


class Lives(LivesOfParts):
    """logsumexp's kernel makes exp(x - max) of x's size first (aten/src/ATen/native/ReduceOps.cpp logsumexp_out_impl)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.logsumexp.default:
            hidden = super().__torch_dispatch__(aten.empty_like.default, types, (args[0],))
            del hidden
        return super().__torch_dispatch__(func, types, args, kwargs)


def made_fp32(outputs: Any) -> Any:
    halves = (torch.bfloat16, torch.float16)
    same = {key: x.float() if isinstance(x, torch.Tensor) and x.dtype in halves else x for key, x in outputs.items()}
    return type(outputs)(**same)


def mixed(forward: Callable[..., Any], half: torch.dtype) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", half):
            return forward(*args, **kwargs)

    return lambda *args, **kwargs: made_fp32(run(*args, **kwargs))


def make(head: str, config: Row, form: str, checkpointing: bool, half: torch.dtype = torch.bfloat16) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache, settings.pad_token_id = False, 0
    kind: Any = transformers.AutoModelForCausalLM
    if head in ("value", "reward_pairs"):
        settings.num_labels, settings.classifier_dropout = 1, 0.0
        kind = (
            transformers.AutoModelForTokenClassification if head == "value" else transformers.AutoModelForSequenceClassification
        )
    dtype = torch.float32 if form == "fp32-autocast" else torch.bfloat16
    with torch.device("cpu"):
        model = kind.from_config(settings, dtype=dtype, attn_implementation="eager")
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if form != "bf16":
        model.forward = mixed(model.forward, half)
    return model


def adapted(model: Any, checkpointing: bool) -> Any:
    if checkpointing:
        model.enable_input_require_grads()
    with torch.device("cpu"):
        return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules="all-linear"))


def value_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """verl/trainer/ppo/core_algos.py compute_value_loss (0.9), behind one fp32 number a token."""
    values = model(input_ids=ids).logits.squeeze(-1).float()
    old, returns = torch.empty_like(values), torch.empty_like(values)
    clipped = torch.max(torch.min(values, old + 0.5), old - 0.5)
    return torch.max((values - returns) ** 2, (clipped - returns) ** 2).mean()


def step(made: Any, head: str, model: Any, ids: torch.Tensor, kept: int) -> torch.Tensor:
    """The loss as the trainer's compute_loss gives it; what is local there goes with it."""
    ones = torch.ones_like(ids)
    if head == "trl_dpo":
        batch = {"input_ids": ids, "attention_mask": ones, "completion_mask": ones}
        if made.precompute_ref_logps:
            batch |= {key: torch.empty(len(ids) // 2) for key in ("ref_chosen_logps", "ref_rejected_logps")}
        return made._compute_loss(model, batch, False)
    if head == "trl_kto":
        desirable = torch.arange(len(ids)) < len(ids) // 2
        batch = {"input_ids": ids, "attention_mask": ones, "completion_mask": ones, "label": desirable}
        batch |= {f"KL_{key}": batch[key].clone() for key in ("input_ids", "attention_mask", "completion_mask")}
        if made.precompute_ref_logps:
            batch |= {key: torch.empty(len(ids)) for key in ("ref_logps", "ref_KL_logps")}
        return made._compute_loss(model, batch, False)
    if head == "reward_pairs":
        return made.compute_loss(model, {"input_ids": ids, "attention_mask": ones})
    if head == "trl_grpo":
        prompt = ids.shape[1] - kept
        batch = {"prompt_ids": ids[:, :prompt], "prompt_mask": ones[:, :prompt], "completion_ids": ids[:, prompt:]}
        batch["completion_mask"] = ones[:, prompt:]
        batch["advantages"] = torch.empty(len(ids))
        batch["ref_per_token_logps"] = torch.empty(len(ids), kept)
        return made._compute_loss(model, batch)
    half = len(ids) // 2
    made.concatenated_inputs = lambda *_, **__: {
        "concatenated_input_ids": ids,
        "concatenated_attention_mask": ones,
        "concatenated_labels": ids,
    }
    return made.get_batch_loss_metrics(model, {"chosen_labels": ids[:half]})[0]


def settings_of(made: Any, head: str, kept: int) -> None:
    if head == "trl_grpo":
        made.__dict__.update(
            top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level="token", loss_type="grpo"
        )
        made.__dict__.update(epsilon_low=0.2, epsilon_high=0.2, use_vllm=False, _entropy_bonus_enabled=False, temperature=0.7)
        made.__dict__.update(current_gradient_accumulation_steps=1, max_completion_length=kept)
        made.model_kwarg_keys = {"logits_to_keep"}
    elif head == "trl_kto":
        made.__dict__.update(calculate_KL=True, use_liger_kernel=False, loss_type="kto", desirable_weight=1.0)
        made.__dict__.update(undesirable_weight=1.0)
    elif head in ("trl_simpo", "trl_orpo"):
        made.__dict__.update(loss_type="simpo", alpha=0.0, simpo_gamma=0.5, cpo_alpha=0.0, pad_token_id=0, padding_value=0)


def execute(trl: Path, case: Case) -> Row:
    head, config, form, sequences, tokens, checkpointing, reference, keeps = case
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = make(head, CONFIGS[config], form, checkpointing)
        other = make(head, CONFIGS[config], form, False) if reference.startswith("model") else None
        policy = adapted(model, checkpointing) if reference in ("adapters_off", "model-lora") else model
    made = trainer(trl, head, lambda m: hasattr(m, "peft_config")) if head != "value" else SimpleNamespace()
    kept = keeps - 1 if keeps else tokens - 1
    settings_of(made, head, kept)
    made.model, made.ref_model = policy, other
    made.precompute_ref_logps = reference == "none"
    gc.collect()
    gc.disable()
    storages = Lives()
    owned = [*policy.parameters(), *policy.buffers(), *((*other.parameters(), *other.buffers()) if other else ())]
    resident = sum(storages.own(tensor) for tensor in owned)
    held = [tensor.untyped_storage() for tensor in owned]
    with fake, storages:
        ids = torch.empty(sequences, tokens, dtype=torch.int64)
        # accelerate leaves autocast with the model's forward pass; verl's critic has it around the step
        whole: Any = torch.autocast("cpu", torch.bfloat16) if form != "bf16" and head == "value" else contextlib.nullcontext()
        with whole:
            loss = value_loss(policy, ids) if head == "value" else step(made, head, policy, ids, kept)
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    del held
    return {"forward": resident + forward, "backward": resident + storages.highest}


def case_job(case: Case) -> Row:
    head, _, form, sequences, tokens, checkpointing, reference, keeps = case
    job = job_of(sequences, tokens, checkpointing)
    job["trainer"] |= {"head": head, **FORMATS[form]}
    if keeps:
        job["trainer"]["logits_to_keep"] = keeps
    if reference in ("adapters_off", "model-lora"):
        job["trainer"]["lora"] = {"rank": RANK}
        job["framework"] = "torch"
    if reference != "none":
        job["trainer"]["reference"] = reference.removesuffix("-lora")
    return job


def patch() -> None:
    as_on_cuda()
    transformers.masking_utils._ignore_causal_mask_sdpa = lambda *_, **__: True
    torch.Tensor.item = lambda _self: 1.0  # type: ignore[method-assign]
    torch.Tensor.__bool__ = lambda _self: True  # type: ignore[method-assign]
    plain = torch.Tensor.__getitem__

    def selected(self: torch.Tensor, index: Any) -> torch.Tensor:
        if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
            return self.reshape(-1, *self.shape[index.ndim :]).clone()
        return plain(self, index)

    torch.nonzero = lambda x, **_: torch.empty(len(x) // 2, 1, dtype=torch.int64)  # KTO's labels: half of them
    torch.Tensor.__getitem__ = selected  # type: ignore[method-assign]
    torch.nn.Module.to = lambda module, *_, **__: module  # type: ignore[method-assign,assignment]
    peft.tuners.tuners_utils.BaseTunerLayer._move_adapter_to_device_of_base_layer = lambda *_, **__: None
    asked = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: asked(*(device or ("cpu",)))  # without an argument it means CUDA's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_preference.jsonl")
    options = parser.parse_args()
    patch()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, TRL 1.12.0 executed on fake tensors"
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    for case in CASES:
        head, config, form, sequences, tokens, checkpointing, reference, keeps = case
        name = f"{config}/{head}/{form}/b{sequences}s{tokens}" + (f"k{keeps}" if keeps else "")
        name += ("" if reference == "none" else f"/{reference}") + ("/checkpointed" if checkpointing else "")
        if options.only not in name:
            continue
        lines.append({"id": name, "config": config, "job": case_job(case), "source": by, "peaks": execute(options.trl, case)})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
