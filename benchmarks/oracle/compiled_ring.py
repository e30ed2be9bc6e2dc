"""Makes estimator/src/layers/compiled_ring.cpp: torchtitan's blocks under torch.compile and context parallelism.

    python benchmarks/oracle/compiled_ring.py TORCHTITAN AO [--output estimator/src/layers/compiled_ring.cpp]

As compiled_float8.py, with PyTorch's ring attention (torch.distributed.tensor.experimental, rotation by one all-gather, balanced) traced
into a block's graph over a fake process group. Every step of the ring is in the graph, so that each number of ranks has its own, and each
rank: the first works on halves of its queries, the last on halves of keys and values. Written down is the rank whose block keeps most, and
of these the one whose backward program is highest, at the sizes that are compiled.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compiled_graphs
import torch
import torch._inductor.config
import torch.distributed
from ao_code import convert, float8_modules, unpack_float8
from compiled_float8 import AO, SMALL
from compiled_graphs import PIECES, Graphs, compile_as_released, describe, in_words, read_options, row
from execute_compiled import MODES, compiled_model
from execute_parallel import COMMITS, KEPT
from ring_code import ring_sdpa
from titan_code import unpack

aten = torch.ops.aten
SOURCE, FAMILY, NORM = "2025-02", "llama", "by_hand"
RANKS = (2, 4, 8)
# inductor orders its kernels by the sizes at hand: those of Llama 3 8B, and long sequences
TOKENS, HIDDEN, HEADS, KV, HEAD, WIDE = 30720, 4096, 32, 8, 128, 14336
WAYS = ("none", "tensorwise")
LEFT_OUT = {(8, "tensorwise", "selective")}

HEADER = """// Written by benchmarks/oracle/compiled_ring.py with PyTorch {torch} from pytorch/torchtitan at {commit}
// and pytorch/ao at {ao}.
#include "layers/compiled_ring.hpp"

#include <array>

namespace oomplan {{
namespace {{

struct RingGraph {{
  Float8 scaling;
  std::int64_t ranks;
  CompiledGraph graph;
}};

constexpr std::array<RingGraph, {count}> kRingGraphs{{{{
"""
FOOTER = """}};

}  // namespace

const CompiledGraph* find_ring_graph(std::string_view family, RmsNorm norm, bool repeat_kv, Recompute recompute, Float8 scaling,
                                     std::int64_t ranks) {
  for (const auto& [known, of, graph] : kRingGraphs)
    if (known == scaling && of == ranks && graph.family == family && graph.norm == norm && graph.repeat_kv == repeat_kv &&
        graph.recompute == recompute)
      return &graph;
  return nullptr;
}

}  // namespace oomplan
"""


class Life(compiled_graphs.Life):
    """Tells attention's backward on half of the queries apart."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func is aten._scaled_dot_product_flash_attention_backward.default and args[1].shape[2] < TOKENS:
            self.events[-1] = ("!", "~")  # of half of the queries
        return out


def word(event: tuple[Any, ...], ranks: int) -> str:
    """As compiled_graphs.word: factors are numbers, ~ is half of what is in front of it."""
    _plus, name, count, dtype = event
    size = min(dtype.itemsize, 4)
    numbers, wide = count // size, "" if size == 2 else f":{size}"
    sizes = compiled_graphs.products(FAMILY) | {WIDE: "F", TOKENS * HIDDEN // 2: "T.H~", TOKENS * HEADS // 2: "T.a~"}
    sizes |= {2 * TOKENS * HIDDEN: "2.T.H", 2 * ranks * TOKENS * HIDDEN: f"{2 * ranks}.T.H"}
    if numbers in sizes:
        return f"+{name}={sizes[numbers]}{wide}"
    pieces = TOKENS // PIECES
    for width, letter in ((HIDDEN, "H"), (WIDE, "F")):
        if size == 4 and numbers == pieces * width:
            return f"+{name}=P.{letter}:4"
    if count < SMALL:
        return ""
    raise ValueError(f"{numbers} numbers of {dtype}")


def text_of(ranks: int) -> Any:
    def text(events: list[tuple[Any, ...]], renamed: dict[str, str], _family: str) -> str:
        return in_words(events, renamed, lambda event: word(event, ranks))

    return text


def size_of(words: str) -> int:
    """Bytes of a buffer of a program."""
    letters = {
        "T": TOKENS,
        "S": TOKENS,
        "H": HIDDEN,
        "F": WIDE,
        "P": TOKENS // PIECES,
        "d": HEAD,
        "K": KV * HEAD,
        "a": HEADS,
        "g": KV,
    }
    product, _, size = words.partition(":")
    numbers = 2 * int(size or 2) if "~" not in product else int(size or 2)
    for factor in product.replace("~", "").split("."):
        numbers *= int(factor) if factor.isdigit() else letters[factor]
    return numbers // 2


def heaviness(made: dict[str, Any]) -> tuple[int, int]:
    """Bytes that a block keeps, and the highest level of its backward program above them."""
    sizes = {word[1:].split("=")[0]: size_of(word.split("=")[1]) for word in made["forward"].split() if word[0] == "+"}
    kept = {"f" + name: sizes[name] for name in made["kept"].split() if name != "x"} | {"x": size_of("T.H")}
    live, level, highest = dict(kept), 0, 0
    for word in made["backward"].split():
        if word[0] == "+":
            name, words = word[1:].split("=")
            live[name] = size_of(words)
            level += live[name]
        elif word[0] == "-":
            level -= live.pop(word[1:], 0)
        highest = max(highest, level)
    return sum(kept.values()), highest


def model_in_ring(ao: Path, scaling: str, plain: Any) -> Any:
    def make(*given: Any) -> Any:
        model = plain(*given)
        if scaling != "none":
            float8_modules(ao)
            convert(model, scaling, False)
        return model

    return make


def runs(only: list[str]) -> Iterator[tuple[int, int, str, str, str]]:
    for ranks in RANKS:
        for scaling in WAYS:
            for mode in (mode for mode in MODES if (ranks, scaling, mode) not in LEFT_OUT):
                for rank in range(ranks):
                    key = f"{SOURCE} {FAMILY} {scaling} {mode} {ranks} {rank}"
                    if not only or any(one in key for one in only):
                        yield ranks, rank, scaling, mode, key


def main() -> None:
    import execute_compiled

    options, before = read_options(__doc__, "compiled_ring")
    compile_as_released()
    KEPT.add(aten.max.default)
    compiled_graphs.Life = Life  # type: ignore[misc]
    compiled_graphs.compiled_model = compiled_model
    names = {"SEQUENCES": 1, "TOKENS": TOKENS, "LOCAL_TOKENS": TOKENS, "HIDDEN": HIDDEN, "HEAD": HEAD, "KV": KV, "WIDE": WIDE}
    for name, value in (names | {"HEADS": {FAMILY: HEADS}}).items():
        setattr(compiled_graphs, name, value)
    graphs, plain = Graphs(), execute_compiled.titan_model
    heaviest: dict[tuple[int, str, str], tuple[tuple[int, int], int, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = unpack(options.torchtitan, COMMITS[SOURCE], Path(folder) / SOURCE)
        ao = unpack_float8(options.ao, AO[SOURCE], Path(folder) / "ao")
        for ranks, rank, scaling, mode, key in runs(options.only):
            compiled_graphs.text = text_of(ranks)
            execute_compiled.titan_model = model_in_ring(ao, scaling, plain)
            if key in before:
                made = before[key]
            else:
                with ring_sdpa(ranks, rank):
                    made = describe(root, FAMILY, mode, graphs)
            print(key, "|", json.dumps(made), flush=True)
            found = heaviness(made), -rank, made
            heaviest[ranks, scaling, mode] = max(heaviest.get((ranks, scaling, mode), found), found, key=lambda one: one[:2])
    rows = []
    for (ranks, scaling, mode), (_, rank, made) in heaviest.items():
        print(f"{scaling} {mode} {ranks}: rank {-rank}", flush=True)
        start = f"    {{Float8::{scaling}, {ranks},\n     "
        start += f'{{"{FAMILY}", RmsNorm::{NORM}, true, Recompute::{mode}'
        rows.append(row(start, made) + "}},\n")
    head = HEADER.format(torch=torch.__version__.split("+")[0], commit=COMMITS[SOURCE], ao=AO[SOURCE], count=len(rows))
    options.output.write_text(head + "".join(rows) + FOOTER, encoding="utf-8")


if __name__ == "__main__":
    main()
