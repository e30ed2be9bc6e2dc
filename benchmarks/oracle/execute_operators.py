"""Executes a benchmark script of Liger-Kernel on the meta device and prints what a call takes.

    python benchmarks/oracle/execute_operators.py --liger CHECKOUT --script benchmark_cpo_loss --function bench_memory_fused_linear_cpo_loss \
        --config '{"T": 1024, "H": 4096, "V": 128256, "dtype": "bfloat16"}' --provider huggingface --x 2,4,8,16

CHECKOUT is a work tree of linkedin/Liger-Kernel with src, benchmark/scripts and test. Printed are MiB before and at the highest level
of the third call, every tensor rounded up to 512 bytes, without workspaces. Triton's kernels are not launched (triton_stub.py), and
torch.compile returns its argument: what a compiled loss takes is not executed here.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import json
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.fx.experimental._config
from execute import Storages
from triton_stub import install

BLOCK = 512
MIB = 2**20


class Blocks(Storages):
    """Storages as the caching allocator rounds them."""

    def born(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        bytes_ = -(-int(storage.nbytes()) // BLOCK) * BLOCK
        self.known[key] = {}, bytes_
        self.live += bytes_
        self.highest = max(self.highest, self.live)
        weakref.finalize(storage, self.died, key)


class Anything:
    """Stands for a decorator or a constant of a module that is only imported."""

    def __getattr__(self, _name: str) -> Anything:
        return self

    def __call__(self, *_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda decorated: decorated


def stand_in(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def prepare(checkout: Path) -> None:
    """Makes the checkout's packages importable on a machine that has neither a GPU nor Liger installed."""
    install(checkout / "src")
    sys.path[:0] = [str(checkout), str(checkout / "benchmark" / "scripts")]
    anything = Anything()
    stand_in("pytest", mark=anything, fixture=anything, param=anything)
    stand_in("transformers.tokenization_utils_base", BatchEncoding=object)
    version = importlib.metadata.version
    vars(importlib.metadata)["version"] = lambda name: "0" if name == "liger-kernel" else version(name)
    vars(torch)["compile"] = lambda function=None, *_, **__: function or (lambda other: other)
    torch.fx.experimental._config.meta_nonzero_assume_all_nonzero = True


def load(script: str) -> Any:
    """The script as a module whose device is meta."""
    module: Any = importlib.import_module(script)
    text = Path(module.__file__).read_text(encoding="utf-8").replace('"cuda"', '"meta"').replace("__main__", "__not_main__")
    exec(compile(text, module.__file__, "exec"), vars(module))
    module.device = "meta"
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--liger", type=Path, required=True)
    parser.add_argument("--script", required=True)
    parser.add_argument("--function", required=True)
    parser.add_argument("--config", type=json.loads, required=True)
    parser.add_argument("--provider", required=True)
    parser.add_argument("--x", required=True, help="values, separated by commas")
    options = parser.parse_args()
    prepare(options.liger)
    module = load(options.script)
    utils: Any = importlib.import_module("utils")
    config = {**options.config, "dtype": getattr(torch, options.config["dtype"])}
    storages = Blocks()

    def measure(call: Callable[[], Any], *_: Any, **__: Any) -> tuple[int, int, int]:
        call()
        call()
        before = storages.highest = storages.live
        call()
        print(f"{options.provider} {x}: {before / MIB:.3f} before, {storages.highest / MIB:.3f} at most")
        return 0, 0, 0

    for scripts in (module, utils):
        vars(scripts)["_test_memory"] = measure
    gc.disable()
    for x in options.x.split(","):
        storages = Blocks()
        with storages:
            run = utils.SingleBenchmarkRunInput(
                x=int(x), kernel_provider=options.provider, extra_benchmark_config=config, kernel_operation_mode="full"
            )
            getattr(module, options.function)(run)


if __name__ == "__main__":
    main()
