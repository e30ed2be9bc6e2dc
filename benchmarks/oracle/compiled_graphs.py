"""Makes estimator/src/layers/compiled_graphs.cpp: what torch.compile makes of torchtitan's blocks, buffer by buffer.

    python benchmarks/oracle/compiled_graphs.py TORCHTITAN [--output estimator/src/layers/compiled_graphs.cpp]

TORCHTITAN is a clone of pytorch/torchtitan with its history. A block is compiled at sizes of which no two products are equal, its program
runs on fake tensors, and every size is written as the product that it is. See compiled_graphs.hpp for the words.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from execute import ROOT, Row, Storages
from execute_compiled import MODES, compiled_model, fused_norm
from execute_parallel import COMMITS, flash_sdpa
from inductor_program import Inductor, runnable
from titan_code import unpack
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor

aten = torch.ops.aten
SOURCES = [("2025-02", "llama", "by_hand", True), ("2025-09", "llama", "fused", True), ("0.2.2", "llama", "fused", False)]
SOURCES += [("2025-09", "qwen3", "fused", True), ("0.2.2", "qwen3", "fused", False)]
ATTENTION_BACKWARD = {aten._scaled_dot_product_flash_attention_backward.default}
SEQUENCES, TOKENS, HIDDEN, HEAD, KV, WIDE = 3, 6144, 2560, 128, 4, 6912
HEADS = {"llama": 20, "qwen3": 24}
LEAVES = {"wq": "q", "wk": "k", "wv": "v", "wo": "o"}
PIECES = 128  # tokens of one row of partial sums, about
LOCAL_TOKENS = TOKENS  # of one sequence on one rank
WIDTH = 128  # of a line


class Life(Storages):
    """Births and deaths of storages, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[Any, ...]] = []
        self.names: dict[int, str] = {}

    def called(self, tensor: torch.Tensor, name: str) -> None:
        storage = tensor.untyped_storage()
        self.known[storage._cdata] = {}, 0
        self.names[storage._cdata] = name
        weakref.finalize(storage, self.died, storage._cdata)

    def born(self, tensor: torch.Tensor) -> None:
        if tensor.untyped_storage()._cdata in self.known:
            return
        name = str(len(self.names) + sum(event[0] == "-" for event in self.events))
        self.called(tensor, name)
        self.events.append(("+", name, tensor.untyped_storage().nbytes(), tensor.dtype))

    def died(self, key: int) -> None:
        self.known.pop(key)
        self.events.append(("-", self.names.pop(key)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # the same tensor; the fake kernel makes another
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func in ATTENTION_BACKWARD:
            self.events.append(("!",))
        return out


class Graphs(Inductor):
    """Keeps the graphs beside their programs."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[tuple[list[str], Any]] = []
        self.inputs: list[tuple[str, Any]] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        self.inputs = [(name, getattr(x, "shape", ())) for name, x in zip(names, inputs, strict=True)]
        return super().__call__(graph, inputs)

    def compile(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs.append(([node.name for node in graph.graph.nodes if node.op == "placeholder"], inputs))
        return super().compile(graph, inputs, **options)


def products(family: str) -> dict[int, str]:
    tokens, queries, keys = SEQUENCES * TOKENS, HEADS[family] * HEAD, KV * HEAD
    same = queries == HIDDEN  # Llama: queries are as wide as hidden states
    named = {
        tokens * HIDDEN: "T.H",
        tokens * keys: "T.K",
        tokens * WIDE: "T.F",
        tokens * HEADS[family]: "T.a",
        tokens * KV: "T.g",
    }
    named |= {tokens: "T", HIDDEN * queries: "H.H" if same else "A.H", keys * HIDDEN: "K.H", WIDE * HIDDEN: "F.H", HIDDEN: "H"}
    named |= {HEAD: "d", TOKENS * HEAD: "S.d"}
    return named if same else {tokens * queries: "T.A", **named}


def word(event: tuple[Any, ...], sizes: dict[int, str]) -> str:
    _plus, name, count, dtype = event
    size = min(dtype.itemsize, 4)  # a complex number is two of 32 bits
    numbers = count // size
    wide = "" if size == 2 else f":{size}"
    if numbers in sizes:
        return f"+{name}={sizes[numbers]}{wide}"
    rows, rest = divmod(numbers, HIDDEN)
    if rest == 0 and wide and rows < SEQUENCES * TOKENS // 16:
        return f"+{name}=P.H:4"
    if wide and numbers <= 1024 * HEAD and numbers % HEAD == 0:  # of a norm of queries or keys
        return f"+{name}=P.A:4"
    raise ValueError(f"{numbers} numbers of {dtype}")


def is_tensor(x: Any) -> bool:
    """DTensor's mesh is an input too."""
    return isinstance(x, torch.Tensor)


def play(names: list[str], inputs: Any, program: Any, mode: Any) -> tuple[list[tuple[Any, ...]], list[str]]:
    life = Life()
    run = runnable(program)
    gc.collect()
    gc.disable()
    with mode, torch.no_grad():
        arguments = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if is_tensor(x) else None for x in inputs]
        for name, x in zip(names, arguments, strict=True):
            if x is not None:
                life.called(x, name)
        del x
        with life:
            results = run(arguments)
        named = [life.names[x.untyped_storage()._cdata] if is_tensor(x) else "" for x in results]
        events = list(life.events)
    gc.enable()
    return events, named


def in_words(events: list[tuple[Any, ...]], renamed: dict[str, str], word_of: Callable[[tuple[Any, ...]], str]) -> str:
    """A program's events; what `word_of` has no word for is left out."""
    known, words = set(renamed), []
    for event in events:
        if event[0] == "!":
            words.append("".join(event))
        elif event[0] == "-" and event[1] in known:
            words.append("-" + renamed.get(event[1], event[1]))
        elif event[0] == "+" and event[3] not in (torch.uint64, torch.int64) and event[2] > 0:
            made = word_of(event)
            if made:
                known.add(event[1])
                words.append(made)
    return " ".join(words)


def text(events: list[tuple[Any, ...]], renamed: dict[str, str], family: str) -> str:
    sizes = products(family)
    return in_words(events, renamed, lambda event: word(event, sizes))


def leaf(name: str) -> str:
    module, _, kind = name.partition("_parameters_")
    parts = [part for part in module.split("modules_") if part]
    found = parts[-1].strip("_").split(".")[0]
    return LEAVES.get(found, found) + ("_bias" if kind == "bias_" else "")


def read_training(
    graphs: Graphs, fake: Any, given: dict[tuple[int, ...], str], words: Callable[[list[tuple[Any, ...]], dict[str, str]], str]
) -> Row:
    """The last two programs: forward and backward. `given`: what inputs of a shape are called."""
    (names, inputs), (backward_names, backward_inputs) = graphs.graphs[-2:]
    forward, results = play(names, inputs, graphs.programs[-2], fake)
    of = [
        leaf(name) if "_parameters_" in name else "x" if given.get(tuple(shape)) == "x" else "" for name, shape in graphs.inputs
    ]
    called = {name: given.get(tuple(at.shape), "") for name, at in zip(names, inputs, strict=True) if is_tensor(at)}
    kept = dict(zip(backward_names, results[1:], strict=False))  # the tangent is behind them
    renamed = {name: called.get(made) or "f" + made for name, made in kept.items() if made.isdigit() or called.get(made)}
    backward, gradients = play(backward_names, backward_inputs, graphs.programs[-1], fake)
    differentiated = zip([name for name in of if name], [made for made in gradients if made], strict=True)
    found = sorted((name != "x", f"{name}={made}") for name, made in differentiated)
    first = words(forward, {})
    seen = [made for made in renamed.values() if made[0] != "f" or f"+{made[1:]}=" in first]
    return {
        "forward": first,
        "kept": " ".join(made.removeprefix("f") for made in seen),
        "output": results[0],
        "backward": words(backward, {name: made for name, made in renamed.items() if made in seen}),
        "gradients": " ".join(one for _, one in found),
    }


def describe(root: Path, family: str, mode: str, graphs: Graphs) -> Row:
    graphs.graphs.clear()
    graphs.programs.clear()
    torch._dynamo.reset()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    config: Row = {"model_type": family, "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": HEADS[family]}
    config |= {"num_key_value_heads": KV, "head_dim": HEAD, "intermediate_size": WIDE, "vocab_size": 1024}
    with fake:
        model = compiled_model(root, family, config, mode, TOKENS, graphs)
        ids = torch.empty(SEQUENCES, TOKENS, dtype=torch.int64)
        masks = "attention_masks" in inspect.signature(type(model).forward).parameters
        out = model(ids, attention_masks=None) if masks else model(ids)
        (out.to_local() if isinstance(out, DTensor) else out).sum().backward()
    given = {(SEQUENCES, LOCAL_TOKENS, HIDDEN): "x"}
    return read_training(graphs, fake, given, lambda events, renamed: text(events, renamed, family))


def literal(words: str) -> str:
    lines, line = [], ""
    for one in words.split():
        if len(line) + len(one) + 8 > WIDTH:
            lines.append(line)
            line = ""
        line += one + " "
    return "\n     ".join(f'"{x}"' for x in [*lines, line.rstrip()])


def row(start: str, made: Row) -> str:
    """A graph's words behind what it is found by."""
    fields = [literal(made[part]) for part in ("forward", "kept")] + [made["output"]]
    return ",\n     ".join([start, *fields, *(literal(made[part]) for part in ("backward", "gradients"))])


def compile_as_released() -> None:
    torch._inductor.config.allow_buffer_reuse = False
    torch._inductor.config.triton.mix_order_reduction = False  # releases before 2.10 have none
    F.rms_norm = fused_norm


def read_options(about: str | None, name: str) -> tuple[argparse.Namespace, dict[str, Row]]:
    """Of a script that compiles with torchao's code too; and what an earlier run has described."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torchtitan", type=Path)
    parser.add_argument("ao", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--known", type=Path, help="lines that an earlier run has printed")
    parser.add_argument("--output", type=Path, default=ROOT / "estimator" / "src" / "layers" / f"{name}.cpp")
    options = parser.parse_args()
    known = [line.rsplit(" | ", 1) for line in options.known.read_text().splitlines()] if options.known else []
    return options, {key: json.loads(described) for key, described in known}


HEADER = """// Written by benchmarks/oracle/compiled_graphs.py with PyTorch {torch} from pytorch/torchtitan at {commits}.
#include "layers/compiled_graphs.hpp"

#include <array>

namespace oomplan {{
namespace {{

constexpr std::array<CompiledGraph, {count}> kGraphs{{{{
"""
FOOTER = """}};

}  // namespace

const CompiledGraph* find_compiled_graph(std::string_view family, RmsNorm norm, bool repeat_kv, Recompute recompute) {
  for (const CompiledGraph& one : kGraphs)
    if (one.family == family && one.norm == norm && one.repeat_kv == repeat_kv && one.recompute == recompute) return &one;
  return nullptr;
}

}  // namespace oomplan
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torchtitan", type=Path)
    parser.add_argument("--known", type=Path, help="lines printed before: what they describe is taken as it is")
    parser.add_argument("--output", type=Path, default=ROOT / "estimator" / "src" / "layers" / "compiled_graphs.cpp")
    options = parser.parse_args()
    compile_as_released()
    F.scaled_dot_product_attention = flash_sdpa
    graphs, rows = Graphs(), []
    known = [line.split(" ", 3) for line in options.known.read_text().splitlines()] if options.known else []
    before = {tuple(line[:3]): json.loads(line[3]) for line in known}
    with tempfile.TemporaryDirectory() as folder:
        for source, family, norm, repeats in SOURCES:
            root = unpack(options.torchtitan, COMMITS[source], Path(folder) / source / family)
            for mode in MODES:
                made = before.get((source, family, mode)) or describe(root, family, mode, graphs)
                print(source, family, mode, json.dumps(made), flush=True)
                start = f'    {{"{family}", RmsNorm::{norm}, {str(repeats).lower()}, Recompute::{mode}'
                rows.append(row(start, made) + "},\n")
    commits = ", ".join(dict.fromkeys(COMMITS[source] for source, *_ in SOURCES))
    head = HEADER.format(torch=torch.__version__.split("+")[0], commits=commits, count=len(rows))
    options.output.write_text(head + "".join(rows) + FOOTER, encoding="utf-8")


if __name__ == "__main__":
    main()
