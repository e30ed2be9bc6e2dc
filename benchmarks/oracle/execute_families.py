"""Makes tests/data/executed_families.jsonl: steps of published models, a few layers of each at their own widths.

    PYTHONPATH=build/python python benchmarks/oracle/execute_families.py --configs FOLDER [--only MODEL_TYPE...] [--every-config]
        [--settings NAME...] [--keep tests/data/executed_families.jsonl] [--table FILE]

FOLDER holds config.json files as publishers have them. Of each model_type that transformers trains, one is executed (--every-config:
all) under the settings below by fuzz.py's code and compared with oomplan's answer. A config is cut to as many layers as it takes to
have every kind of layer; its widths, heads, experts and vocabulary stay. --keep writes the rows that agree, as execute.py's.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import execute_experts
import fuzz
import fuzz_fsdp
import torch
import transformers
from execute import Row, Storages
from execute_scaler import item_of
from published import cut, published
from torch.autograd.graph import saved_tensors_hooks
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

PLAIN: Row = {
    "engine": "single",
    "attention": "sdpa",
    "dtype": "bf16",
    "sequences": 1,
    "tokens": 512,
    "recompute": "none",
    "every": 1,
    "micro_batches": 1,
    "optimizer": "adamw",
    "clip": True,
    "head": "hf_loss",
    "keep_outputs": False,
    "lora": None,
    "padding": False,
}
SHARDED: Row = {
    "engine": "fsdp2",
    "dtype": "fp32",
    "compute": "bf16",
    "reduce": "fp32",
    "ranks": 8,
    "deferred": False,
    "forward_prefetch": False,
    "reshard": True,
    "root_reshard": False,
    "wrap_embedding": True,
    "wrap_head": False,
}
ADAPTERS: Row = {"rank": 16, "dropout": 0.0, "verl": False, "targets": "q_proj v_proj", "format": "fp32"}
SETTINGS: dict[str, Row] = {
    "sdpa": {},
    "long": {"tokens": 1536},
    "eager": {"attention": "eager", "sequences": 2, "tokens": 256},
    "checkpointed": {"sequences": 2, "tokens": 384, "recompute": "nonreentrant"},
    "eager_checkpointed": {"attention": "eager", "sequences": 1, "tokens": 509, "recompute": "reentrant"},
    "autocast": {"dtype": "autocast", "sequences": 2, "tokens": 320},
    "autocast_checkpointed": {"dtype": "autocast", "attention": "eager", "recompute": "nonreentrant"},
    "flash": {"attention": "flash_attention_2", "sequences": 3, "tokens": 200},
    "lora": {"lora": ADAPTERS, "sequences": 2, "tokens": 256},
    "lora_everywhere": {
        "lora": {**ADAPTERS, "targets": "all-linear", "format": "storage"},
        "tokens": 320,
        "recompute": "nonreentrant",
    },
    "fp32": {"dtype": "fp32", "attention": "eager", "sequences": 2, "tokens": 192},
    "fsdp": {**SHARDED},
    "fsdp_checkpointed": {**SHARDED, "ranks": 2, "sequences": 2, "tokens": 256, "recompute": "nonreentrant"},
}
WITHOUT_SDPA = ("mimo_v2_flash", "gptj", "mpt")
TOKEN_BY_TOKEN = ("jamba",)  # a loop of Python over the tokens


def case_of(setting: str, family: str = "") -> Row:
    case = {**PLAIN, **SETTINGS[setting]}
    if family in WITHOUT_SDPA and case["attention"] == "sdpa":
        case["attention"] = "eager"
    if family in TOKEN_BY_TOKEN:
        case["tokens"] = 33
    return case


class Watched(Storages):
    """Also says what the last layer keeps for the backward pass, where nothing is computed again."""

    now: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.saved: dict[int, Row] = {}
        Watched.now = self

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        made = self.known.get(tensor.untyped_storage()._cdata, ({}, 0))[0]
        if made.get("in_layer"):
            self.saved[id(made)] = made
        return tensor

    def counted(self) -> list[list[Any]]:
        # the generator's state: numbers of 8 bytes
        counts = Counter(json.dumps([made["dtype"].replace("uint64", "int64"), made["shape"]]) for made in self.saved.values())
        return [[*json.loads(key), count] for key, count in sorted(counts.items())]


def watch(config: Row) -> int:
    """Makes fuzz.py's steps note what the last layer saves; its number."""
    make_model, loss_of = PLAIN_FUZZ

    def made(fields: Row, case: Row) -> Any:
        model = make_model(fields, case)

        def inside(value: bool) -> Any:
            def hook(*_: Any) -> None:
                Watched.now.in_layer = value

            return hook

        last = fuzz_fsdp.layers_of(model)[-1]
        last.register_forward_pre_hook(inside(True))
        last.register_forward_hook(inside(False))
        return model

    def loss(model: Any, case: Row, given: Row, labels: torch.Tensor) -> Any:
        Watched.now.saved = {}
        with saved_tensors_hooks(Watched.now.pack, lambda tensor: tensor):
            return loss_of(model, case, given, labels)

    vars(fuzz).update(Storages=Watched, make_model=made, loss_of=loss)
    return int(config.get("num_hidden_layers") or config.get("n_layer") or config["n_layers"]) - 1


class SpreadAnywhere(execute_experts.Spread):
    """DBRX's loop over experts, in which each is hit, on the meta device or on fake tensors."""

    def __init__(self) -> None:
        plain = torch.Tensor.nonzero
        super().__init__()
        torch.Tensor.nonzero = lambda mask: self.hit() if mask.dim() == 1 and len(mask) == self.experts + 1 else plain(mask)

    def take(self, config: Row, case: Row) -> None:
        faked = case["engine"] != "single" or case["dtype"] == "autocast"
        self.device = "cpu" if faked else "meta"
        self.experts = int(config["ffn_config"]["moe_num_experts"])

    def hit(self) -> Any:
        return [[expert] for expert in range(self.experts)] if self.device == "cpu" else super().hit()


def stand_in() -> None:
    """What GPT-J's module imports only beside flash-attention."""
    module: Any = transformers.models.gptj.modeling_gptj
    module._flash_attention_forward = fuzz.flash_utils._flash_attention_forward
    module.flash_attn_supports_top_left_mask = lambda: False


spread: list[SpreadAnywhere] = []
PLAIN_FUZZ = fuzz.make_model, fuzz.loss_of


def execute(config: Row, case: Row) -> tuple[Row, Row]:
    """The step's peaks; and of one layer what it saves, on one device without checkpoints."""
    if config["model_type"] == "dbrx":
        if not spread:
            spread.append(SpreadAnywhere())
        spread[0].take(config, case)
    vars(fuzz).update(Storages=Storages, make_model=PLAIN_FUZZ[0], loss_of=PLAIN_FUZZ[1])
    if case["engine"] != "single" or case["recompute"] != "none" or case["lora"]:
        return fuzz.execute_case(config, case), {}
    layer = watch(config)
    peaks = fuzz.execute_case(config, case)
    if config["model_type"] == "falcon":  # indexes heads by tensors of the host, and saves views under other shapes
        return peaks, {}
    return peaks, {"layer": layer, "saved": Watched.now.counted()}


class Sweep:
    def __init__(self, options: Any) -> None:
        self.options = options
        self.lines: list[Row] = []
        self.table: list[Row] = []
        by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
        self.source = f"{by} executed without a device"

    def note(self, name: str, config: Row, setting: str, **what: Any) -> None:
        row = {"model": name, "model_type": config.get("model_type"), "setting": setting, **what}
        self.table.append(row)
        print(json.dumps(row), flush=True)

    def run(self, core: Any, name: str, config: Row, setting: str) -> Row | None:
        case = case_of(setting, config["model_type"])
        job = fuzz.job_of(case)
        refused = None
        try:
            got = fuzz.ask(core, job, config)
        except Exception as refusal:
            refused = str(refusal)[:200]
        if refused and not self.options.execute_refused:
            self.note(name, config, setting, refused=refused)
            return None
        try:
            peaks, saved = execute(config, case)
        except Exception as error:
            fuzz_fsdp.clean_up()
            gc.enable()
            self.note(name, config, setting, refused=refused, not_executed=f"{type(error).__name__} {str(error)[:160]}")
            return None
        row = {"id": f"{name}/{setting}", "config": name, "job": job, "source": self.source, "peaks": peaks, **saved}
        if refused:
            self.note(name, config, setting, refused=refused, peaks=peaks)
            return row
        off = {phase: round(percent, 4) for phase, percent in fuzz.differences(peaks, got).items()}
        by = {phase: got[phase] - level for phase, level in peaks.items()}
        self.note(name, config, setting, off=off, by=by)
        return row if max(map(abs, off.values())) < 0.05 or self.options.keep_all else None

    def model(self, core: Any, name: str, config: Row) -> None:
        rows = [row for setting in self.options.settings if (row := self.run(core, name, config, setting))]
        if rows:
            self.lines += [{"config": name, "fields": config}, *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--every-config", action="store_true")
    parser.add_argument("--execute-refused", action="store_true")
    parser.add_argument("--keep-all", action="store_true")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    import oomplan

    core: Any = oomplan._core
    item_of["number"] = 1.0
    fuzz.stand_in()
    # known as a part of Mistral 3's class alone
    transformers.AutoModelForCausalLM._model_mapping._model_mapping["mistral4"] = "Mistral4ForCausalLM"
    stand_in()
    sweep = Sweep(options)
    seen: set[str] = set()
    for name, config in published(options.configs):
        family = str(config.get("model_type"))
        wanted = family in CONFIG_MAPPING and (not options.only or family in options.only or name in options.only)
        if not wanted or (family in seen and not options.every_config):
            continue
        seen.add(family)
        sweep.model(core, name, cut(config))
    for path, lines in ((options.keep, sweep.lines), (options.table, sweep.table)):
        if path is not None:
            path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(sweep.table)} questions of {len(seen)} families", file=sys.stderr)


if __name__ == "__main__":
    main()
