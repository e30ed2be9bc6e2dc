"""Makes tests/data/executed_megatron_fp8.jsonl: what Transformer Engine's linear layers save and hold in 8 bits, executed.

    python benchmarks/oracle/execute_megatron_fp8.py TRANSFORMER_ENGINE [--output tests/data/...]

Needs torch and the source of Transformer Engine 2.17.1 (its checkout's root), no GPU. Its own modules run with the autograd engine on
the meta device; of its C++ extension stands what te_stub.py allocates in its place. Two micro-batches: the first one makes the
copies of the weights in 8 bits, which stay; the second one is described. A line: the module, the recipe, the GPU's generation, sizes,
`copies` as [bytes, count] of the matrices in 8 bits that it has from then on, `saved` as [bytes, count] of storages that autograd keeps, without the
input and what stays, and `highest` levels above what lived before, forward and backward. Blocks of less than 64 bytes are left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import te_stub
import torch
import torch.distributed as dist
from execute import Row, Storages
from torch.testing._internal.distributed.fake_pg import FakeStore

ROOT = Path(__file__).resolve().parents[2]
TOKENS, IN, OUT = 256, 512, 1024  # of a rank's part of the sequence, of the whole matrix
HOPPER, BLACKWELL = [9, 0], [10, 0]
SMALLEST = 64
RECIPES = {
    "delayed": "DelayedScaling",
    "tensorwise": "Float8CurrentScaling",
    "blockwise": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
}


def parts_of(tensor: Any) -> list[torch.Tensor]:
    """What a quantised tensor is made of; any other one by itself."""
    if not hasattr(tensor, "_quantizer"):
        return [tensor]
    return [value for name, value in vars(tensor).items() if name != "main_grad" and isinstance(value, torch.Tensor)]


class Counted(Storages):
    """Storages that matter."""

    def born(self, tensor: torch.Tensor) -> None:
        from transformer_engine.pytorch.quantized_tensor import QuantizedTensor

        if isinstance(tensor, QuantizedTensor) or tensor.untyped_storage().nbytes() < SMALLEST:
            return
        super().born(tensor)


def make(module: str, ranks: int, group: Any, fused: bool) -> Any:
    from transformer_engine.pytorch.module import GroupedLinear, LayerNormLinear, Linear

    split: Row = {"tp_group": group, "tp_size": ranks, "sequence_parallel": ranks > 1} if ranks > 1 else {}
    common: Row = {"bias": False, "params_dtype": torch.bfloat16, "fuse_wgrad_accumulation": fused, "device": "cuda"}
    if module == "norm_column":
        return LayerNormLinear(IN, OUT, normalization="RMSNorm", parallel_mode="column" if split else None, **split, **common)
    if module == "column":
        return Linear(IN, OUT, parallel_mode="column" if split else None, **split, **common)
    if module in ("row", "row_original"):
        return Linear(IN, OUT, parallel_mode="row" if split else None, **split, **common)
    if module == "duplicated":
        return Linear(IN, OUT, **common)
    if module.startswith("grouped"):
        return GroupedLinear(experts_of(module), IN, OUT, **common)
    raise ValueError(module)


def experts_of(module: str) -> int:
    return int(module.removeprefix("grouped").removesuffix("_original"))


def recipe_of(name: str) -> Any:
    from transformer_engine.common import recipe

    # megatron/core/transformer/transformer_config.py: fp8_amax_history_len is 1 unless said
    return recipe.DelayedScaling(amax_history_len=1) if name == "delayed" else getattr(recipe, RECIPES[name])()


def rows_of(module: str, ranks: int) -> list[int]:
    """Shape of the input: the row-parallel layer gets all tokens and its part of the columns."""
    if module.startswith("grouped"):
        return [TOKENS * 4, IN]
    if module.startswith("row") and ranks > 1:
        return [TOKENS * ranks, 1, IN // ranks]
    return [TOKENS, 1, IN]


class Run:
    """One module, micro-batch after micro-batch."""

    def __init__(self, module: str, recipe: str, ranks: int, group: Any, fused: bool, primary: bool) -> None:
        from transformer_engine.pytorch.quantization import autocast, quantized_model_init

        self.name, self.recipe, self.ranks = module, recipe, ranks
        with quantized_model_init(enabled=primary, recipe=recipe_of(recipe)):
            self.layer = make(module, ranks, group, fused)
        self.layer.save_original_input = module.endswith("_original")
        self.context = lambda: autocast(enabled=True, recipe=recipe_of(recipe))
        self.storages = Counted()
        self.inputs: list[torch.Tensor] = []  # what was freed must not lend its address to another
        for parameter in self.layer.parameters():
            parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32, device="meta")
            parameter.grad_added_to_main_grad = False
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
            for tensor in (*parts_of(parameter), parameter.main_grad):
                self.storages.own(tensor)

    def step(self, first: bool) -> tuple[list[list[int]], list[int]]:
        x = torch.empty(rows_of(self.name, self.ranks), dtype=torch.bfloat16, device="meta", requires_grad=True)
        self.storages.own(x)
        self.inputs.append(x)
        before, seen = self.storages.live, {}
        old = set(self.storages.known)

        def pack(t: torch.Tensor) -> torch.Tensor:
            key = t.untyped_storage()._cdata
            if key not in old and key in self.storages.known:
                seen[key] = t.untyped_storage().nbytes()
            return t

        self.storages.highest = before
        splits: tuple[Any, ...] = ()
        if self.name.startswith("grouped"):
            experts = experts_of(self.name)
            splits = ([x.shape[0] // experts] * experts,)
        with self.storages, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            with self.context():
                out = self.layer(x, *splits, is_first_microbatch=first)
            forward = self.storages.highest - before
            saved = Counter(seen.values())
            gradient = torch.empty_like(out)
            self.storages.highest = self.storages.live
            out.backward(gradient)
            backward = self.storages.highest - before
            del out, gradient
            x.grad = None
        return [list(pair) for pair in sorted(saved.items())], [forward, backward]


def copies_of(layer: Any) -> list[int]:
    """Bytes of the matrices in 8 bits that the module keeps: copies, or its parameters."""
    quantised = [p for p in layer.parameters() if hasattr(p, "_quantizer")] + list(layer._fp8_workspaces.values())
    return [part.untyped_storage().nbytes() for one in quantised for part in parts_of(one)]


def execute(module: str, recipe: str, capability: list[int], ranks: int, fused: bool = True, primary: bool = False) -> Row:
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager

    te_stub.on_gpu(capability)
    FP8GlobalStateManager.reset()  # histories of earlier modules
    group = None
    if ranks > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        group = dist.group.WORLD
    run = Run(module, recipe, ranks, group, fused, primary)
    gc.collect()
    gc.disable()
    run.step(True)
    copies = Counter(bytes_ for bytes_ in copies_of(run.layer) if bytes_ >= SMALLEST)
    saved, highest = run.step(False)
    gc.enable()
    if ranks > 1:
        dist.destroy_process_group()
    sizes = {"module": module, "recipe": recipe, "blackwell": capability == BLACKWELL, "ranks": ranks, "in": IN, "out": OUT}
    return {
        **sizes,
        "fused": fused,
        "primary": primary,
        "tokens": TOKENS,
        "copies": sorted(copies.items()),
        "saved": saved,
        "highest": highest,
    }


Case = tuple[Any, ...]  # as execute takes them


def cases() -> list[Case]:
    """`fused`: gradients of weights are added up inside of the product. `primary`: parameters are in 8 bits themselves."""
    out: list[Case] = []
    for recipe in RECIPES:
        for capability in (HOPPER, BLACKWELL):
            if recipe == "mxfp8" and capability == HOPPER:
                continue
            out += [(module, recipe, capability, 1, True, True) for module in ("norm_column", "row", "grouped4")]
            for module in ("norm_column", "column", "row", "row_original"):
                if module == "row_original" and recipe == "delayed":
                    continue  # Transformer Engine itself refuses it
                out += [(module, recipe, capability, ranks, True) for ranks in (1, 2)]
            grouped = ("grouped1", "grouped4") if recipe == "delayed" else ("grouped1", "grouped4", "grouped4_original")
            out += [(module, recipe, capability, 1, True) for module in grouped]
    for recipe in ("tensorwise", "blockwise"):
        for module in ("norm_column", "column", "row"):
            out += [(module, recipe, HOPPER, ranks, False) for ranks in (1, 2)]
        out += [("grouped4", recipe, HOPPER, 1, False)]
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_fp8.jsonl")
    given = parser.parse_args()
    te_stub.install(given.sources)
    lines = [json.dumps(execute(*case), separators=(",", ":")) for case in cases()]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(len(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
