"""What Megatron-LM's own parser and checks say about its command-line flags, executed on this machine.

    python benchmarks/oracle/megatron_flags.py CHECKOUT table      # the rows of models/frameworks/megatron_flags.json but for `memory`
    python benchmarks/oracle/megatron_flags.py CHECKOUT refusals   # tests/data/megatron_refused.jsonl against Megatron itself

CHECKOUT is a work tree of NVIDIA/Megatron-LM (core_v0.16.1). No GPU, Transformer Engine or Triton is needed: what Megatron imports
without using it here is a stand-in. Exit status 1: the committed file says something else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "models/frameworks/megatron_flags.json"
REFUSED = ROOT / "tests/data/megatron_refused.jsonl"
STAND_INS = {"flask", "flask_restful", "wandb", "triton"}
TYPES = {
    "int": "int",
    "float": "float",
    "bool": "truth",
    "moe_freq_type": "pattern",
    "no_rope_freq_type": "pattern",
    "la_freq_type": "pattern",
}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = MagicMock(name=spec.name)
        module.__path__ = []
        module.__spec__ = spec
        module.__name__ = spec.name
        module.__version__ = "3.4.0"
        return module

    def exec_module(self, module: Any) -> None:
        pass


def prepare(checkout: str) -> None:
    """Torch first: it must not see the stand-in for Triton."""
    import torch
    import torch._inductor
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.utils.checkpoint
    import torch.utils.flop_counter

    torch.compile = lambda f=None, *a, **k: f if f is not None else (lambda g: g)
    torch.cuda.get_device_capability = lambda *a: (9, 0)
    sys.path.insert(0, checkout)
    sys.meta_path.insert(0, StandIns())


def row_of(action: Any) -> dict[str, Any]:
    kind = type(action).__name__
    switches = {"_StoreTrueAction": "on", "_StoreFalseAction": "off", "BooleanOptionalAction": "toggle"}
    default = action.default
    if hasattr(default, "name"):
        default = default.name
    if isinstance(default, str) and default.startswith("<"):
        default = None
    row = {"flags": action.option_strings, "dest": action.dest}
    row["type"] = switches.get(kind) or TYPES.get(getattr(action.type, "__name__", ""), "text")
    if action.nargs not in (None, 0):
        row["nargs"] = action.nargs
    if default is not None:
        row["default"] = default
    if action.choices:
        row["choices"] = [getattr(c, "name", str(c)) for c in action.choices]
    return row


def rows() -> list[dict[str, Any]]:
    import argparse

    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_megatron_arguments(parser)
    return [row_of(a) for a in parser._actions if type(a).__name__ != "_HelpAction"]


def check_table() -> int:
    committed = [{k: v for k, v in row.items() if k != "memory"} for row in json.loads(TABLE.read_text())["flags"]]
    executed = json.loads(json.dumps(rows()))
    differ = [row for row in executed if row not in committed] + [row for row in committed if row not in executed]
    for row in differ:
        print(json.dumps(row))
    print(f"{len(executed)} flags, {len(differ)} differ")
    return 1 if differ else 0


def validate(words: list[str], world: int) -> None:
    """What pretrain_gpt.py does with its arguments before it makes process groups."""
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.transformer.moe.moe_utils as moe
    import megatron.core.transformer.transformer_config as config
    import megatron.training.arguments as arguments
    from megatron.core import num_microbatches_calculator as batches
    from megatron.core.optimizer import OptimizerConfig

    arguments.get_device_arch_version = lambda: 9
    arguments.is_te_min_version = config.is_te_min_version = lambda *a, **k: True
    rope.fused_apply_rotary_pos_emb = moe.fused_permute = moe.fused_permute_with_probs = lambda *a: None
    moe.fused_unpermute = moe.fused_sort_chunks_by_index = moe.fused_sort_chunks_by_index_with_probs = lambda *a: None
    os.environ.update(WORLD_SIZE=str(world), RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    sys.argv = ["pretrain_gpt.py", *words]
    args = arguments.parse_args()
    arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
    arguments.core_transformer_config_from_args(args)
    batches._GLOBAL_NUM_MICROBATCHES_CALCULATOR = None
    batches.init_num_microbatches_calculator(
        0, args.rampup_batch_size, args.global_batch_size, args.micro_batch_size, args.data_parallel_size, False
    )
    names = [f.name for f in dataclasses.fields(OptimizerConfig) if hasattr(args, f.name)]
    OptimizerConfig(**{name: getattr(args, name) for name in names})


def raised(words: list[str], world: int, checkout: str) -> str:
    """Where Megatron raises: "AssertionError megatron/training/arguments.py validate_args"; "" when it does not."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            validate(words, world)
    except SystemExit:
        return "SystemExit argparse"
    except (AssertionError, ValueError, RuntimeError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} {Path(frame.filename).relative_to(Path(checkout).resolve())} {frame.name}"
    return ""


def check_refusals(checkout: str) -> int:
    """Cases that say `later` are refused behind these checks, where process groups, layers or schedules are made."""
    wrong = 0
    for line in REFUSED.read_text().splitlines():
        case = json.loads(line)
        found = raised(case["words"], case["world"], checkout)
        expected = "" if case.get("later") else case["megatron"]
        if found != expected:
            wrong += 1
            print(f"{case['name']}: {found!r}, committed {expected!r}")
    print(f"{wrong} cases differ")
    return 1 if wrong else 0


def main() -> int:
    checkout, what = sys.argv[1], sys.argv[2]
    prepare(checkout)
    return check_table() if what == "table" else check_refusals(checkout)


if __name__ == "__main__":
    raise SystemExit(main())
