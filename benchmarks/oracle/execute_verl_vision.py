"""Makes tests/data/executed_verl_vision.jsonl: steps of vision-language models as verl runs them under FSDP1 and FSDP2.

    python benchmarks/oracle/execute_verl_vision.py VERL... [--only WORD] [--output tests/data/executed_verl_vision.jsonl]

VERL are checkouts. Their own apply_monkey_patch runs (verl/models/transformers/monkey_patch.py), and with it the forward passes that it
puts in place of transformers' (qwen2_vl.py, qwen3_vl.py). FSDP's own code runs as in execute_fsdp1.py and sharded.py; units are what the
models' _no_split_modules name, under FSDP2 every embedding too unless it is tied, as verl has them. Images have one size, as in execute_vision.py, and what
stands in for kernels is the same. Levels are those of the second step; logits become log-probs as verl's engine does it.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_autocast
import execute_fsdp1
import flash_stub
import peft
import sharded
import torch
import torch.distributed as dist
import transformers.utils
from execute import RANK, ROOT, Row, Storages
from execute_fused_heads import stand_in
from execute_heads import FlashCrossEntropy
from execute_vision import CONFIGS, FORMATS, Features, grid_of, model_of
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.modeling_outputs import CausalLMOutputWithPast
from vision_code import select_by_mask, standing_in

MODELS = ("qwen2_5_vl", "qwen2_vl", "qwen2_5_vl, tied", "qwen3_vl", "qwen3_vl, tied", "qwen3_vl_moe", "qwen3_5")
NO_TOWER = ".*visual.*"
USUAL: Row = {
    "grid": (24, 36),
    "images": 1,
    "tokens": 512,
    "sequences": 1,
    "packed": False,
    "ranks": 4,
    "storage": "fp32",
    "compute": "bf16",
    "reduce": "fp32",
    "checkpointing": False,
    "train": "all",
    "use_orig_params": False,
    "backward_prefetch": "pre",
    "root_reshard": True,
    "autocast": False,
    "ulysses": 1,
    "lora": False,
}
CASES: list[Row] = [
    {},
    {"checkpointing": True},
    {"packed": True, "images": 3, "grid": (8, 12)},
    {"packed": True, "images": 2, "grid": (20, 26), "checkpointing": True},
    {"storage": "bf16", "reduce": "bf16"},
    {"grid": (48, 64), "tokens": 1024, "checkpointing": True, "ranks": 8},
    {"packed": True},
    {"packed": True, "checkpointing": True},
    {"grid": (8, 12), "images": 3},
    {"images": 0},
    {"images": 0, "checkpointing": True},
]
# as verl runs its models; the meta device has no autocast, so under FSDP2 alone
AUTOCAST: list[Row] = [
    {"autocast": True},
    {"autocast": True, "checkpointing": True},
    {"autocast": True, "packed": True, "images": 2, "grid": (20, 26), "checkpointing": True},
    {"autocast": True, "grid": (48, 64), "tokens": 1024, "checkpointing": True, "ranks": 8},
    {"autocast": True, "storage": "bf16", "reduce": "bf16"},
    {"autocast": True, "images": 0},
]
# behind the images every rank takes its part of the tokens
ULYSSES: list[Row] = [
    {"ulysses": 2},
    {"ulysses": 2, "checkpointing": True},
    {"ulysses": 4, "packed": True, "images": 2, "grid": (20, 26), "tokens": 2048, "checkpointing": True},
    {"ulysses": 2, "images": 0},
]
# The tower is left out, as verl's own scripts do it. Under FSDP1 peft casts inputs to the sharded adapters' format, which only
# autocast mends, and the meta device has none.
ADAPTED: list[Row] = [
    {"lora": True, "autocast": True},
    {"lora": True, "autocast": True, "checkpointing": True},
    {"lora": True, "autocast": True, "images": 0, "checkpointing": True},
]
FROZEN: list[Row] = [
    {"train": "none", "use_orig_params": True, **more}
    for more in (
        {},
        {"checkpointing": True},
        {"backward_prefetch": "none"},
        {"backward_prefetch": "none", "checkpointing": True},
        {"backward_prefetch": "post", "checkpointing": True},
    )
]


class FromDevice(int):
    """A number that was read from the device."""


class Grid:
    """Sizes of the images on the host, which FSDP1 passes on as it is."""

    def __init__(self, case: Row) -> None:
        self.sizes = grid_of(case)
        self.device = "cpu"

    def tolist(self) -> list[Any]:
        return self.sizes.tolist()


class Falling:
    """Positions that begin anew somewhere, or do not."""

    def __init__(self, anew: bool) -> None:
        self.anew = anew

    def __ge__(self, _: Any) -> Falling:
        return self

    def all(self) -> bool:
        return not self.anew


class Torch:
    """torch for verl's module, which reads positions from the device."""

    packed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def diff(self, *_: Any, **__: Any) -> Falling:
        return Falling(Torch.packed)


def laid_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _positions: torch.Tensor) -> Any:
    """prepare_fa2_from_position_ids without the numbers that it reads."""
    parts = [one.contiguous().view(-1, one.size(-2), one.size(-1)) for one in (query, key, value)]
    return *parts, (None, None), (None, None)


def text_models() -> list[Any]:
    families = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL", "qwen3_vl_moe": "Qwen3VLMoe"}
    return [
        getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), f"{name}TextModel")
        for family, name in families.items()
    ]


class Code:
    """verl's files from a checkout; its packages are folders, so that no __init__ runs."""

    def __init__(self, verl: Path) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
            del sys.modules[name]
        for name in ("verl", "verl.models", "verl.models.transformers", "verl.utils"):
            stand_in(name).__path__ = [str(verl / Path(*name.split(".")))]
        stand_in(
            "verl.utils.device",
            is_npu_available=False,
            is_cuda_available=True,
            get_device_name=lambda: "cuda",
            get_torch_device=lambda: torch.cuda,
        )
        stand_in("verl.utils.import_utils", is_trl_available=lambda: False)
        self.patch = importlib.import_module("verl.models.transformers.monkey_patch")
        self.release = (verl / "verl/version/version").read_text(encoding="utf-8").strip().removesuffix(".dev")
        self.plain = {family: family.forward for family in text_models()}
        qwen2: Any = importlib.import_module("verl.models.transformers.qwen2_vl")
        qwen2.torch = Torch()
        qwen2.prepare_fa2_from_position_ids = laid_out
        qwen2.flash_attn_varlen_func = flash_stub.run

    def apply(self, model: Any, ulysses: int) -> None:
        if ulysses > 1:
            group = dist.new_group(list(range(ulysses)))
            sys.modules["verl.utils.ulysses"].set_ulysses_sequence_parallel_group(group)
        self.patch.apply_monkey_patch(model, ulysses_sp_size=ulysses, use_remove_padding=True)

    def tell_tokens(self, tokens: int) -> None:
        """Of where the last sequence of a packed row ends, which Qwen3.5's layers ask the device for."""
        linear: Any = importlib.import_module("verl.models.transformers.qwen3_5")
        Features.rows = FromDevice(Features.rows)
        linear.int = lambda number: tokens if isinstance(number, FromDevice) else number

    def leave(self) -> None:
        """Forward passes are wrapped for Ulysses again with every model."""
        sys.modules["verl.utils.ulysses"].set_ulysses_sequence_parallel_group(None)
        for family, forward in self.plain.items():
            family.forward = forward


def stand_ins() -> None:
    """flash-attention; the outputs' classes, which transformers has given one name since; numbers that are counted on the device."""
    for family, name in (("qwen2_vl", "Qwen2VL"), ("qwen3_vl", "Qwen3VL"), ("qwen3_5", "Qwen3_5")):
        module: Any = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        if not hasattr(module, f"{name}CausalLMOutputWithPast"):
            setattr(module, f"{name}CausalLMOutputWithPast", CausalLMOutputWithPast)
    stand_in("flash_attn", flash_attn_func=flash_stub.run, flash_attn_varlen_func=flash_stub.run)
    transformers.utils.is_flash_attn_2_available = lambda: True
    transformers.utils.is_flash_attn_greater_or_equal_2_10 = lambda: True
    plain = torch.Tensor.item

    def item(self: torch.Tensor) -> Any:
        told = self.device.type == "meta" or isinstance(self, FakeTensor)
        return Features.rows if told else plain(self)

    torch.Tensor.item = item  # type: ignore[method-assign]


def loss_of(model: Any, given: Row, in_place: bool) -> torch.Tensor:
    following = execute_fsdp1.Resized.now or sharded.ResizedParts.now
    if "pixel_values" in given and following is not None:
        following.leave_out(given["pixel_values"])  # of the host: FSDP brings it to the device and casts it
    output = model(**given)
    logits = output.logits.flatten(0, 1)
    if in_place:
        logits.div_(0.7)
    else:
        logits = logits / 0.7
    return FlashCrossEntropy.apply(logits, given["input_ids"].flatten()[: len(logits)], True).mean()


class Ends:
    """Where sequences of a packed row end, on the host; FSDP1 passes it on as it is."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]

    def tolist(self) -> list[int]:
        return self.ends

    def __add__(self, tokens: int) -> Ends:
        out = Ends(())
        out.ends = [end + tokens for end in self.ends]
        return out

    def __setitem__(self, at: int, end: int) -> None:
        self.ends[at] = end


def told_ends(lengths: tuple[int, ...], device: str) -> Row:
    """What verl's engine tells Qwen3.5 (verl/workers/engine/fsdp/transformer_impl.py pass_packed_cu_seqlens)."""
    ends = torch.empty(len(lengths) + 1, dtype=torch.int64, device=device)
    return {"cu_seqlens": ends, "cu_seqlens_cpu": Ends(lengths)}


def inputs_of(case: Row, device: str) -> Row:
    rows = case["sequences"]
    ranks = case["ulysses"] if case.get("axes") == () else 1  # verl's engine deals out what a model without a tower gets
    ids = torch.empty(rows, case["tokens"] // rows // ranks, dtype=torch.int64, device=device)
    positions = torch.empty(*case.get("axes", (4,)), *ids.shape, dtype=torch.int64, device=device)
    given = {"input_ids": ids, "attention_mask": None, "position_ids": positions, "use_cache": False} | case.get("told", dict)()
    if case["images"] == 0:
        return given
    patches = case["images"] * math.prod(case["grid"])
    pixels = torch.empty(patches, 3 * 2 * case["patch"] ** 2, dtype=torch.float32, device=device)
    return given | {"pixel_values": pixels, "image_grid_thw": Grid(case)}


def text_model_of(config: Row, _kernels: str, dtype: torch.dtype) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation="flash_attention_2")
    model.train()
    return model


def build(code: Code, config: Row, case: Row) -> Any:
    make = model_of if "vision_config" in config else text_model_of
    with torch.device("meta"):
        model = make(config, "flash", FORMATS[case["storage"]])
    code.apply(model, case["ulysses"])
    if case["train"] == "none":
        model.model.visual.requires_grad_(False)
    if case["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if case["lora"]:
        model.enable_input_require_grads()
        with torch.device("meta"):
            settings = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules="all-linear", exclude_modules=NO_TOWER)
            model = peft.get_peft_model(model, settings)
    return model


def units_of(model: Any) -> list[Any]:
    names = model._no_split_modules
    return [module for module in model.modules() if module.__class__.__name__ in names]


def under_fsdp1(code: Code, config: Row, case: Row) -> Row:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    plain = build(code, config, case)
    classes = {type(unit) for unit in units_of(plain)}
    model = FullyShardedDataParallel(
        plain,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=FORMATS[case["reduce"]], buffer_dtype=torch.float32
        ),
        backward_prefetch=execute_fsdp1.PREFETCH[case["backward_prefetch"]],
        use_orig_params=case["use_orig_params"],
    )
    del plain
    gradient = torch.ones((), device="meta")
    storages, resident = execute_fsdp1.followed(model, gradient)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], foreach=False)
    execute_fsdp1.Resized.now = storages
    peaks: Row = {}
    for _ in range(2):
        with storages:
            given = inputs_of(case, "meta")
            storages.highest = storages.live
            loss = loss_of(model, given, code.release < "0.9")
            peaks = {"forward": resident + storages.highest}
            storages.highest = storages.live
            loss.backward(gradient)
            peaks["backward"] = resident + storages.highest
            del loss, given
            optimizer.step()
            optimizer.zero_grad()
    execute_fsdp1.Resized.now = None
    gc.enable()
    dist.destroy_process_group()
    return peaks


def under_fsdp2(code: Code, config: Row, case: Row) -> Row:
    def made() -> tuple[Any, list[Any]]:
        model = build(code, config, case)
        embeddings = [] if model.config.tie_word_embeddings else [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
        return model, [*units_of(model), *embeddings]

    def step(model: Any, given: Row) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=case["autocast"]):
            return loss_of(model, given, code.release < "0.9")

    peaks = sharded.two_steps(made, lambda: inputs_of(case, "cpu"), case, FORMATS, step)
    return {phase: peaks[phase] for phase in ("forward", "backward")}


def job_of(code: Code, engine: str, config: Row, case: Row) -> Row:
    h, w = (case["patch"] * side for side in case["grid"])
    trainer: Row = {
        "engine": engine,
        "layout": f"d{case['ranks']}" if case["ulysses"] == 1 else f"d{case['ranks'] // case['ulysses']}c{case['ulysses']}",
        "kernels": "hf_flash",
        "precision": {kind: case[kind] for kind in ("storage", "compute", "reduce")},
        "autocast": case["autocast"],
        "recompute": "full" if case["checkpointing"] else "none",
        "optimizer": "sgd",
        "head": "verl_flash_ce_div_in_place" if code.release < "0.9" else "verl_flash_ce",
        "kernel_internals": False,
        "micro_batches": 1,
    }
    trainer |= {"tokens_per_micro_batch": case["tokens"], "sequence_tokens": case["tokens"] // (2 if case["packed"] else 1)}
    if case["images"] > 0:
        trainer["vision"] = {"images": case["images"], "height": h, "width": w, "train": case["train"]}
    if case["lora"]:
        trainer["lora"] = {"rank": RANK, "targets": "all-linear", "exclude": NO_TOWER}
        trainer.setdefault("vision", {})["train"] = "none"
    if engine == "fsdp1":
        trainer |= {key: case[key] for key in ("use_orig_params", "backward_prefetch")}
    return {"framework": f"verl {code.release}", "trainer": trainer, "apart": {"forward_only": False}}


def rows_of(code: Code, only: str) -> Iterator[Row]:
    for name in MODELS:
        config = CONFIGS[name]
        module = importlib.import_module(f"transformers.models.{config['model_type']}.modeling_{config['model_type']}")
        for engine, device in (("fsdp1", "meta"), ("fsdp2", "cpu")):
            for changes in [*CASES, *ULYSSES, *(FROZEN if engine == "fsdp1" else [*AUTOCAST, *ADAPTED])]:
                words = "/".join(f"{key}={value}" for key, value in changes.items()) or "usual"
                told = f"verl {code.release}/{engine}/{name}/{words}"
                if only not in told:
                    continue
                if changes.get("images") == 0 and name.startswith("qwen2"):
                    continue  # with transformers 5 verl itself fails: it asks the tower's output for a mean
                if name == "qwen3_5" and (changes.get("ulysses", 1) > 1 or changes.get("lora")):
                    continue  # Ulysses asks for flash-linear-attention; adapters beside its projections were not read
                if changes.get("lora") and name == "qwen3_vl_moe":
                    continue  # peft adapts experts
                case = USUAL | {"patch": config["vision_config"].get("patch_size", 14)} | changes
                Features.rows = case["images"] * math.prod(case["grid"]) // 4
                Torch.packed = case["packed"]
                if name == "qwen3_5":
                    parts = 2 if case["packed"] else 1
                    case["told"] = functools.partial(told_ends, (case["tokens"] // parts,) * parts, device)
                    code.tell_tokens(case["tokens"])
                run = under_fsdp1 if engine == "fsdp1" else under_fsdp2
                with standing_in(module, device):
                    peaks = run(code, config, case)
                code.leave()
                yield {"id": told, "config": name, "job": job_of(code, engine, config, case), "peaks": peaks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path, nargs="+")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_verl_vision.jsonl")
    options = parser.parse_args()
    execute_fsdp1.stand_in()
    flash_stub.stand_in()
    sharded.follow_resizing()
    select_by_mask(Storages)
    select_by_mask(sharded.LivesOfParts)
    stand_ins()
    cuda_autocast.stand_in()
    lines: list[Row] = [{"config": name, "fields": CONFIGS[name]} for name in MODELS]
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    for checkout in options.verl:
        code = Code(checkout)
        for row in rows_of(code, options.only):
            print(row["id"], row["peaks"], flush=True)
            lines.append(row | {"source": f"{versions}, verl {code.release} executed on tensors without data"})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
