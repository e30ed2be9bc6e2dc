"""Draws random training jobs, lets PyTorch execute them and compares every phase with oomplan's answer.

    PYTHONPATH=build/python python benchmarks/oracle/fuzz.py [--seed 1] [--jobs 200] [--only FAMILY...] [--engines single ...]
        [--keep tests/data/executed_fuzz.jsonl] [--differing FILE] [--limit 0.1] [--minutes 10]

Needs torch, transformers, peft and oomplan's module, no GPU. A job is a family with odd sizes (fuzz_models.py), an attention, a
format, a checkpoint, a batch, an optimizer, a loss head, adapters and an engine. transformers' own code runs on the meta device, under
autocast on fake CPU tensors, with FSDP's own code on top (execute_fsdp1.py, sharded.py); DDP and ZeRO (engines ddp and zero)
are computed on the CPU (fuzz_ddp.py, fuzz_zero.py); attention kernels are PyTorch's
own operators by their rule, flash-attention's function is written out below. Every number that is drawn comes from the seed and the
job's ordinal, so a job can be drawn again by --only-job. --keep writes rows as execute.py's. --published FOLDER takes models of
publishers' config.json files at their own widths, cut to a few layers (published.py), in place of small ones.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_autocast
import fuzz_adapters
import fuzz_ddp
import fuzz_fsdp
import fuzz_heads
import fuzz_optimizers
import fuzz_zero
import grouped_products
import torch
import torch.nn.functional as F
import transformers
import transformers.masking_utils
import transformers.modeling_flash_attention_utils as flash_utils
from execute import Row, Storages, half_to_float
from execute_parallel import LivesOfParts
from execute_scaler import item_of
from fuzz_models import EXPERTS, FAMILIES, STATES, draw_model, flag, some
from fuzz_optimizers import optimizer_of
from published import by_family, cut
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LIMIT = 0.1  # percent
SCALARS = 8192  # bytes: norms and counters of a small model's many tensors

# ---- attention


class FlashAttention(torch.autograd.Function):
    """flash_attn/flash_attn_interface.py, FlashAttnFunc: widths are padded to 8, the result lies as the queries do."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        width = q.shape[-1]
        if width % 8:
            q, k, v = (F.pad(x, [0, 8 - width % 8]) for x in (q, k, v))
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, out, lse, torch.empty(2, dtype=torch.int64, device=q.device))
        return out[..., :width]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        q, k, v, _out, lse, _rng = ctx.saved_tensors
        width = gradient.shape[-1]
        if width % 8:
            gradient = F.pad(gradient, [0, 8 - width % 8])
        out = tuple(torch.empty_like(x)[..., :width] for x in (q, k, v))
        # csrc/flash_attn/flash_api.cpp, mha_bwd, 2.8: seqlen_q_rounded, head_size_rounded
        sequences, rows, heads, width = q.shape[0], -(-q.shape[1] // 128) * 128, q.shape[2], q.shape[3]
        width = -(-width // 32) * 32 if width <= 128 else -(-width // 64) * 64
        inside = [q.new_empty(sequences, rows, heads, width, dtype=torch.float32)]
        inside.append(lse.new_empty(sequences, heads, rows))
        if q.shape[2] != k.shape[2]:
            inside += [torch.empty_like(q), torch.empty_like(q)]
        del inside
        return out


def flash_attn_func(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1),
    softcap: float = 0.0, deterministic: bool = False,
) -> Any:  # fmt: skip
    """Its arguments are looked at by transformers."""
    assert q.dtype in (torch.bfloat16, torch.float16)
    return FlashAttention.apply(q, k, v)


def sdpa(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: Any = None,
    enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """The kernel that PyTorch 2.13 takes on CUDA (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""
    if q.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        q, k, v = (x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v))
        attn_mask = attn_mask.to(q.dtype) if attn_mask is not None and attn_mask.dtype == torch.float32 else attn_mask
        with torch.autocast("cpu", enabled=False):  # autocast is off inside of an operator
            return sdpa(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    width, half = q.shape[-1], q.dtype in (torch.bfloat16, torch.float16)
    same = enable_gqa or q.shape[1] == k.shape[1] == v.shape[1]  # check_batch_size_and_num_heads_dense
    if same and attn_mask is None and half and width == v.shape[-1] <= 256:
        scale = scale or width**-0.5
        if width % 8:
            q, k, v = (F.pad(x, [0, 8 - width % 8]) for x in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :width] if width % 8 else out
    step = 8 if half else 4
    if same and not enable_gqa and width % step == 0 and v.shape[-1] % step == 0:
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.where(attn_mask, 0.0, torch.tensor(float("-inf"), dtype=q.dtype, device=q.device))
            last = attn_mask.shape[-1]
            if last % 16:
                attn_mask = F.pad(attn_mask, [0, 16 - last % 16])[..., :last]
            attn_mask = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        records = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        call = aten._scaled_dot_product_efficient_attention
        return call(q, k, v, attn_mask, records, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # convert_boolean_attn_mask
        attn_mask = torch.where(attn_mask, 0.0, torch.tensor(float("-inf"), dtype=q.dtype, device=q.device))
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def fused_dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return aten.native_dropout(x, p, True)[0] if training and p > 0 else x


def in_fp32_under_autocast(function: Callable[..., Any], of_half: Callable[..., Any]) -> Callable[..., Any]:
    """What CUDA's autocast computes in fp32 and the CPU's does not (aten/src/ATen/autocast_mode.h), unless asked for a format. Of
    fp16 CUDA has one kernel, `of_half` (aten/src/ATen/native/SoftMax.cpp), and of nothing else."""

    def replaced(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        asked = kwargs.get("dtype") is not None
        if not asked and x.dtype == torch.float16 and torch.is_autocast_enabled("cpu"):
            return of_half(x, args[0] if args else kwargs["dim"], True)
        if not asked and isinstance(x, torch.Tensor) and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            args = tuple(a.float() if isinstance(a, torch.Tensor) else a for a in args)
            return function(x.float(), *args, **kwargs)  # the caller's argument lives on: F.log_softmax's own name in Python
        return function(x, *args, **kwargs)

    return replaced


def with_delta(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """The memory-efficient kernel's backward pass on CUDA makes one fp32 number a row beside its gradients
    (aten/src/ATen/native/transformers/cuda/attention_backward.cu, 2.13: delta); no other device's operator does."""

    def replaced(lives: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = dispatch(lives, func, types, args, kwargs)
        if func is aten._scaled_dot_product_efficient_attention_backward.default:
            lives.highest = max(lives.highest, lives.live + args[6].nbytes)
        return out

    return replaced


def stand_in() -> None:
    fuzz_fsdp.stand_in()
    cuda_autocast.stand_in()
    grouped_products.stand_in()
    fuzz_optimizers.stand_in()
    F.softmax = half_to_float(in_fp32_under_autocast(PLAIN_SOFTMAX, aten._softmax))
    F.log_softmax = in_fp32_under_autocast(PLAIN_LOG_SOFTMAX, aten._log_softmax)
    F.scaled_dot_product_attention = sdpa
    F.dropout = fused_dropout
    for lives in (Storages, LivesOfParts):
        dispatch = fuzz_heads.with_hidden_temporaries(with_delta(lives.__torch_dispatch__))
        lives.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
    torch.Tensor.item = lambda _self: item_of["number"]  # type: ignore[method-assign]
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # reads data: nothing is packed
    flash_utils._is_packed_sequence = lambda *_, **__: False
    flash_utils._lazy_imports = lambda *_, **__: (flash_attn_func, flash_attn_func, None, None, None)
    transformers.modeling_utils.PreTrainedModel._flash_attn_can_dispatch = flash_can_dispatch
    torch.nn.utils.clip_grad._device_has_foreach_support = lambda *_: True  # also on the meta device
    transformers.logging.set_verbosity_error()
    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore")
    asked = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: asked(*(device or ("cpu",)))  # without an argument it means CUDA's


PLAIN_SOFTMAX, PLAIN_LOG_SOFTMAX = F.softmax, F.log_softmax


def flash_can_dispatch(self: Any, *_: Any, **__: Any) -> bool:
    if not self._supports_flash_attn:
        raise ValueError("no flash attention")
    return True


# ---- what is drawn

# autocast: format of the parameters, of the products
AUTOCASTS = {"autocast": ("fp32", "bf16"), "autocast_fp16": ("fp32", "fp16"), "autocast_of_bf16": ("bf16", "bf16")}
ATTENTIONS = {"eager": "hf_eager", "sdpa": "hf_sdpa", "flash_attention_2": "hf_flash"}
OPTIMIZERS = ("sgd", "sgd_momentum", "adamw", "adamw_loop", "adam")
HEADS = ("hf_loss", "hf_loss", "logprob_fp32", "logprob_bf16")


def draw_case(rng: random.Random, config: Row, engine: str) -> Row:
    family = config["model_type"]
    case: Row = {
        "engine": engine,
        "attention": some(rng, *ATTENTIONS),
        "sequences": rng.randint(1, 4),
        "tokens": some(rng, 17, 40, 77, 128, 211, 300),
        "recompute": some(rng, "none", "none", "nonreentrant", "reentrant"),
        "micro_batches": some(rng, 1, 1, 2, 3),
        "optimizer": some(rng, *OPTIMIZERS),
        "clip": flag(rng),
        "head": some(rng, *HEADS),
        "keep_outputs": rng.random() < 0.15,
        "every": 1,
        "lora": None,
        "padding": False,
    }
    if case["attention"] == "sdpa":  # the memory-efficient kernel pads its masks and log-sum-exps to 16 and 32
        case["tokens"] = some(rng, 32, 64, 96, 160, 320)
    if family == "gpt_oss":
        case["attention"] = "eager"
    if family in ("gemma2", "vaultgemma") and case["attention"] == "sdpa":
        case["attention"] = "eager"
    if family == "bloom":
        case |= {"attention": "eager"}
    if family in STATES:
        case |= {"attention": "eager", "tokens": some(rng, 9, 20, 33), "sequences": rng.randint(1, 2)}
    if case["recompute"] != "none" and rng.random() < 0.2:
        case["every"] = rng.randint(2, 3)
    if rng.random() < 0.2:
        adapters = {"rank": some(rng, 2, 5, 8), "dropout": some(rng, 0.0, 0.1), "verl": flag(rng)}
        case["lora"] = adapters | {"targets": some(rng, "all-linear", "q_proj v_proj"), "format": some(rng, "fp32", "storage")}
    if engine == "single":
        case["dtype"] = some(rng, "bf16", "bf16", "bf16", "fp16", "fp32", *AUTOCASTS, "autocast")
        case["padding"] = rng.random() < 0.12 and case["attention"] != "flash_attention_2"
        for module in (fuzz_heads, fuzz_optimizers, fuzz_adapters):
            case |= module.draw(rng, case)
    elif engine in ("fsdp1", "fsdp2"):
        case |= fuzz_fsdp.draw(rng, case, engine)
    else:
        return case | (fuzz_ddp if engine == "ddp" else fuzz_zero).draw(rng, case)
    if family in EXPERTS:  # PyTorch's fake grouped product knows no other format
        case |= {"dtype": "bf16"} if engine == "single" else {"compute": "bf16", "reduce": some(rng, "fp32", "bf16")}
    if case["dtype"] == "fp32" and engine == "single" and case["attention"] == "flash_attention_2":
        case |= {"attention": "sdpa", "tokens": max(32, case["tokens"] // 32 * 32)}
    if case["head"] in ("logprob_fp32", "logprob_bf16", "logprob_lse") and rng.random() < 0.25:
        case["kept"] = rng.randint(1, case["tokens"] - 1)
    case |= fuzz_fsdp.draw_replicas(rng, case)
    case |= fuzz_fsdp.draw_more(rng, case)
    case |= fuzz_fsdp.draw_last(rng, case | {"of_experts": family in EXPERTS})
    case |= fuzz_optimizers.draw_switches(rng, case)
    case |= fuzz_fsdp.draw_heads(rng, case)
    return case | draw_forward_only(rng, case)


def draw_forward_only(rng: random.Random, case: Row) -> Row:
    """Log-probs of a policy or of a reference: nothing is recorded."""
    if rng.random() >= 0.12 or case["head"] == "hf_loss" or case["keep_outputs"] or case["recompute"] == "reentrant":
        return {}
    if case.get("offload") or case["lora"]:
        return {}
    plain = {"recompute": "none", "every": 1, "clip": False, "micro_batches": 1, "optimizer": "sgd", "keep_gradients": False}
    return plain | {"forward_only": True, "deferred": False}


def job_of(case: Row) -> Row:
    lora = case["lora"]
    storage = AUTOCASTS.get(case["dtype"], (case["dtype"], ""))[0]
    trainer: Row = {
        "engine": case["engine"],
        "kernels": ATTENTIONS[case["attention"]],
        "transformers": transformers.__version__,
        "precision": dict.fromkeys(("storage", "compute", "reduce"), storage),
        "autocast": case["dtype"] in AUTOCASTS or case.get("autocast", False),
        "recompute": "none" if case["recompute"] == "none" else "full",
        "reentrant": case["recompute"] == "reentrant",
        **fuzz_optimizers.settings_of(case),
        "clip": case["clip"],
        "head": case["head"],
        "sequences_per_micro_batch": case["sequences"],
        "sequence_tokens": case["tokens"],
        "micro_batches": case["micro_batches"],
        "kernel_internals": case["attention"] == "flash_attention_2",  # where the stand-in makes them
    }
    if case["dtype"] in AUTOCASTS:
        trainer["precision"]["autocast"] = AUTOCASTS[case["dtype"]][1]
    if case["every"] > 1:
        trainer["recompute_every"] = case["every"]
    if case["padding"]:
        trainer["padding_mask"] = True
    if case["keep_outputs"]:
        trainer["keep_outputs"] = True
    if case.get("kept"):
        trainer["logits_to_keep"] = case["kept"]
    if lora:
        trainer["lora"] = fuzz_adapters.settings_of(lora)
    if case["engine"] != "single":
        trainer |= {"ddp": fuzz_ddp, "zero": fuzz_zero}.get(case["engine"], fuzz_fsdp).settings_of(case)
    framework = "verl" if lora and lora["verl"] else "torch"
    apart: Row = {"forward_only": bool(case.get("forward_only"))}
    if case.get("forward_only"):
        apart["passes"] = 2  # as executed
    return {"framework": framework, "trainer": trainer, "apart": apart}


# ---- a step


def make_model(config: Row, case: Row) -> Any:
    """On the meta device, with adapters and checkpoints."""
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    dtype = FORMATS[AUTOCASTS.get(case["dtype"], (case["dtype"], ""))[0]]
    with torch.device("meta"):
        model = fuzz_heads.model_of(case["head"], settings, dtype=dtype, attn_implementation=case["attention"])
    model.train()
    lora = case["lora"]
    if lora:
        model = fuzz_adapters.adapted(model, lora, dtype)
    if case["recompute"] != "none":
        inner = model.get_base_model() if lora else model
        given = {"use_reentrant": case["recompute"] == "reentrant"}
        if case["every"] > 1:
            inner.activation_checkpointing_enable(given, every_n_layers=case["every"])
        else:
            inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs=given)
    return model


def loss_of(model: Any, case: Row, given: Row, labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
    head = case["head"]
    if head == "hf_loss":
        if case["keep_outputs"]:
            out = model(**given, labels=labels)
            return out.loss, out
        return model(**given, labels=labels).loss, None
    if case.get("kept"):
        given = given | {"logits_to_keep": case["kept"]}
        labels = labels[:, -case["kept"] :]
    if not case["keep_outputs"]:
        return fuzz_heads.HEADS[head](model, given, labels), None
    kept = model(**given)
    logits = kept.logits
    if head != "logprob_bf16":
        logits = logits.float()
    return fuzz_heads.chosen(F.log_softmax(logits, dim=-1), labels).mean(), kept


def inputs_of(case: Row, device: str) -> Row:
    ids = torch.empty(case["sequences"], case["tokens"], dtype=torch.int64, device=device)
    given: Row = {"input_ids": ids}
    if case["padding"]:
        given["attention_mask"] = torch.empty_like(ids)
    return given


def on_fake_tensors(model: torch.nn.Module) -> None:
    fuzz_fsdp.on_fake_tensors(model)


def execute_single(config: Row, case: Row) -> Row:
    """Highest levels of the second step."""
    model = make_model(config, case)
    autocast = case["dtype"] in AUTOCASTS
    faked = autocast or case["padding"]
    fake = FakeTensorMode(allow_non_fake_inputs=True) if faked else contextlib.nullcontext()
    device = "cpu" if faked else "meta"
    half = torch.autocast("cpu", FORMATS[AUTOCASTS[case["dtype"]][1]]) if autocast else contextlib.nullcontext()
    peaks: Row = {"forward": 0, "backward": 0, "optimizer": 0}
    with fake:
        if faked:
            on_fake_tensors(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = optimizer_of(case["optimizer"], trained, fuzz_fsdp.layers_of(model))
        gc.collect()
        gc.disable()  # storages die by reference counts, as in a training loop
        storages = Storages()
        owned = [*model.parameters(), *model.buffers()]
        resident = sum(storages.own(tensor) for tensor in owned)
        held = [tensor.untyped_storage() for tensor in owned]
        del owned
        with storages, torch.set_grad_enabled(not case.get("forward_only")):
            for _ in range(2):
                peaks = dict.fromkeys(peaks, 0)
                for _number in range(case["micro_batches"]):
                    given = inputs_of(case, device)
                    labels = torch.empty_like(given["input_ids"])
                    storages.highest = storages.live
                    with half:
                        loss, kept = loss_of(model, case, given, labels)
                    peaks["forward"] = max(peaks["forward"], storages.highest)
                    if case.get("forward_only"):
                        del loss, kept
                        continue
                    storages.highest = storages.live
                    loss.backward()
                    peaks["backward"] = max(peaks["backward"], storages.highest)
                    del loss, kept
                if case.get("forward_only"):
                    del given, labels
                    continue
                storages.highest = storages.live
                if case["clip"]:
                    torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
                optimizer.step()
                peaks["optimizer"] = storages.highest
                fuzz_optimizers.leave_steps_to_the_host(optimizer, storages)
                optimizer.zero_grad(set_to_none=not case.get("keep_gradients"))
                del given, labels
        gc.enable()
    del held
    return {phase: resident + level for phase, level in peaks.items() if level > 0}


def execute_case(config: Row, case: Row) -> Row:
    if case["engine"] == "single":
        return execute_single(config, case)
    if case["engine"] == "ddp":
        return fuzz_ddp.execute(config, case, make_model, loss_of, optimizer_of)
    if case["engine"] == "zero":
        return fuzz_zero.execute(config, case)
    return fuzz_fsdp.execute(config, case, make_model, loss_of, optimizer_of, inputs_of)


# ---- comparison


def ask(core: Any, job: Row, config: Row) -> Row:
    return dict(core.training_figures(json.dumps(job), json.dumps(config)))


def differences(peaks: Row, got: Row) -> dict[str, float]:
    return {phase: 100 * (got[phase] - level) / level for phase, level in peaks.items()}


def words_of(case: Row) -> str:
    usual = {"engine", "attention", "dtype", "sequences", "tokens"}
    said = [
        f"{key}={value}"
        for key, value in case.items()
        if key not in usual and (value is True or value not in (None, False, 1, "none"))
    ]
    start = [case["engine"], case["attention"], case["dtype"], f"b{case['sequences']}s{case['tokens']}"]
    return "/".join([*start, *said])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--only", nargs="+", help="families, by default all")
    parser.add_argument("--published", type=Path, help="folder of config.json files")
    parser.add_argument("--engines", nargs="+", default=["single", "single", "fsdp1", "fsdp2"])
    parser.add_argument("--only-job", type=int, nargs="+")
    parser.add_argument("--set", nargs="*", default=[], help="key=value of the drawn case, in JSON")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--differing", type=Path)
    parser.add_argument("--limit", type=float, default=LIMIT, help="percent")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no job begins after them")
    options = parser.parse_args()
    import oomplan

    core: Any = oomplan._core
    item_of["number"] = 1.0
    stand_in()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed without a device"
    counted: Counter[str] = Counter()
    lines: list[Row] = []
    different: list[Row] = []
    models = by_family(options.published) if options.published else {}
    options.only = options.only or list(models or FAMILIES)
    end = time.monotonic() + 60 * options.minutes
    for number in range(options.jobs) if options.only_job is None else options.only_job:
        if time.monotonic() > end:
            break
        rng = random.Random(f"{options.seed}/{number}")
        family = options.only[number % len(options.only)]
        config = cut(some(rng, *models[family])) if models else draw_model(family, rng)
        case = draw_case(rng, config, some(rng, *options.engines))
        case |= {key: json.loads(value) for key, _, value in (word.partition("=") for word in options.set)}
        if case["lora"] and case["lora"]["targets"] == "own":
            case["lora"]["spec"] = fuzz_adapters.own_names(config, case["lora"])
        job = job_of(case)
        name = f"{family} {options.seed}.{number}"
        try:
            got = ask(core, job, config)
        except Exception as refusal:
            counted["refused"] += 1
            print(f"REFUSED {name} {words_of(case)}: {str(refusal)[:300]}", flush=True)
            continue
        try:
            peaks = execute_case(config, case)
        except Exception as error:
            counted["not executed"] += 1
            fuzz_fsdp.clean_up()
            gc.enable()
            print(f"NOT EXECUTED {name} {words_of(case)}: {type(error).__name__} {str(error)[:200]}", flush=True)
            if options.only_job is not None:
                traceback.print_exc()
            continue
        counted["executed"] += 1
        off = differences(peaks, got)
        row = {"id": f"fuzz/{name}/{words_of(case)}", "config": name, "job": job, "source": by, "peaks": peaks}
        if any(abs(percent) > options.limit and abs(got[phase] - peaks[phase]) > SCALARS for phase, percent in off.items()):
            counted["different"] += 1
            said = " ".join(f"{phase} {percent:+.3f} % ({got[phase] - peaks[phase]:+d})" for phase, percent in off.items())
            print(f"DIFFERENT {name} {words_of(case)}: {said}", flush=True)
            different += [{"config": name, "fields": config}, row]
        lines += [{"config": name, "fields": config}, row]
    for path, kept in ((options.keep, lines), (options.differing, different)):
        if path is not None:
            path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in kept), encoding="utf-8")
    print(dict(counted), file=sys.stderr)


if __name__ == "__main__":
    main()
