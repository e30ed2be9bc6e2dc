"""Makes estimator/src/layers/compiled_split.cpp: torchtitan's blocks under torch.compile and tensor parallelism.

    python benchmarks/oracle/compiled_split.py TORCHTITAN AO [--output estimator/src/layers/compiled_split.cpp]

As compiled_float8.py, with matrices divided over RANKS by DTensor before a block is compiled. One sequence and several are graphs of their
own: an all-gather along the second axis is put in order by a copy when there are several.
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
import torch.nn.functional as F
from ao_code import convert, float8_modules, float8_styles, unpack_float8
from compiled_float8 import AO, SMALL
from compiled_graphs import Graphs, compile_as_released, describe, in_words, read_options, row
from execute_compiled import MODES
from execute_parallel import COMMITS, KEPT, flash_sdpa, selective_contexts, split_titan
from titan_code import titan_model, unpack
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS, HIDDEN, HEADS, KV, HEAD, WIDE, TOKENS = 4, 3072, 24, 8, 128, 8192, 6144
PIECES = 128  # tokens of one row of partial sums
SOURCES = [("2025-02", "llama", "by_hand", True), ("2025-09", "llama", "fused", True), ("0.2.2", "llama", "fused", False)]
WAYS = ("none", "tensorwise", "rowwise")

HEADER = """// Written by benchmarks/oracle/compiled_split.py with PyTorch {torch} from pytorch/torchtitan at {commits}
// and pytorch/ao at {ao}.
#include "layers/compiled_split.hpp"

#include <array>

namespace oomplan {{
namespace {{

struct SplitGraph {{
  Float8 scaling;
  bool several;
  CompiledGraph graph;
}};

constexpr std::array<SplitGraph, {count}> kSplitGraphs{{{{
"""
FOOTER = """}};

}  // namespace

const CompiledGraph* find_split_graph(std::string_view family, RmsNorm norm, bool repeat_kv, Recompute recompute, Float8 scaling,
                                      bool several) {
  for (const auto& [known, sequences, graph] : kSplitGraphs)
    if (known == scaling && sequences == several && graph.family == family && graph.norm == norm && graph.repeat_kv == repeat_kv &&
        graph.recompute == recompute)
      return &graph;
  return nullptr;
}

}  // namespace oomplan
"""


def products(sequences: int) -> dict[int, str]:
    """W: tokens of all ranks, T: of one; the matrices are one rank's. Llama's queries are as wide as its hidden states, so W.A is T.H."""
    whole, keys, wide = sequences * TOKENS, KV * HEAD // RANKS, WIDE // RANKS
    named = {whole * HIDDEN: "W.H", whole * HIDDEN // RANKS: "T.H", whole * keys: "W.K", whole * wide: "W.F"}
    named |= {whole * HEADS // RANKS: "W.a", whole * KV // RANKS: "W.g", whole: "W", whole // RANKS: "T", HIDDEN: "H", wide: "F"}
    named |= {HIDDEN * HIDDEN // RANKS: "A.H", keys * HIDDEN: "K.H", wide * HIDDEN: "F.H", HIDDEN // RANKS: "A", keys: "K"}
    return named if sequences == 1 else named | {TOKENS * HEAD: "Z.d"}


def word(event: tuple[Any, ...], sequences: int) -> str:
    _plus, name, count, dtype = event
    size = min(dtype.itemsize, 4)
    numbers, wide, sizes = count // size, "" if size == 2 else f":{size}", products(sequences)
    if numbers in sizes:
        return f"+{name}={sizes[numbers]}{wide}"
    if size == 4 and numbers == sequences * TOKENS // RANKS // PIECES * HIDDEN:
        return f"+{name}=P.H:4"
    if sequences == 1 and numbers == TOKENS * HEAD:
        return f"+{name}=Z.d{wide}"
    if count < SMALL:
        return ""
    raise ValueError(f"{numbers} numbers of {dtype}")


def text(events: list[tuple[Any, ...]], renamed: dict[str, str], _family: str) -> str:
    return in_words(events, renamed, lambda event: word(event, compiled_graphs.SEQUENCES))


def split_model(ao: Path, scaling: str, mesh: Any) -> Any:
    def make(root: Path, family: str, config: Any, mode: str, tokens: int, inductor: Any) -> Any:
        model = titan_model(root, config, tokens)
        styles = None
        if scaling != "none":
            float8_modules(ao)
            convert(model, scaling, False)
            styles = float8_styles() if scaling == "tensorwise" else None
        split_titan(model, family, mesh, styles)
        for name, block in list(model.layers.named_children()):
            wrapped = block
            if mode != "none":
                contexts = {"context_fn": selective_contexts} if mode == "selective" else {}
                wrapped = checkpoint_wrapper(block, preserve_rng_state=False, **contexts)
            model.layers.register_module(name, torch.compile(wrapped, backend=inductor, fullgraph=True))
        return model

    return make


def runs(torchtitan: Path, ao: Path, folder: Path) -> Iterator[tuple[Any, Path, Path, str, int, str]]:
    for source in SOURCES:
        root = unpack(torchtitan, COMMITS[source[0]], folder / source[0])
        float8 = unpack_float8(ao, AO[source[0]], folder / source[0] / "ao")
        for scaling in WAYS:
            for sequences in (1, 3):
                for mode in MODES:
                    yield source, root, float8, scaling, sequences, mode


def main() -> None:
    options, before = read_options(__doc__, "compiled_split")
    compile_as_released()
    F.scaled_dot_product_attention = flash_sdpa
    KEPT.add(torch.ops.aten.max.default)
    for name, value in (("HIDDEN", HIDDEN), ("KV", KV), ("WIDE", WIDE), ("HEADS", {"llama": HEADS})):
        setattr(compiled_graphs, name, value)
    compiled_graphs.text = text
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    graphs, rows = Graphs(), []
    with tempfile.TemporaryDirectory() as folder:
        for source, root, ao, scaling, sequences, mode in runs(options.torchtitan, options.ao, Path(folder)):
            commit, family, norm, repeats = source
            key = f"{commit} {family} {scaling} {sequences} {mode}"
            if options.only and not any(one in key for one in options.only):
                continue
            torch._inductor.config.emulate_precision_casts = scaling == "rowwise" and commit != "2025-02"
            compiled_graphs.SEQUENCES = sequences
            compiled_graphs.LOCAL_TOKENS = TOKENS // RANKS
            compiled_graphs.compiled_model = split_model(ao, scaling, mesh)
            made = before.get(key) or describe(root, family, mode, graphs)
            print(key, "|", json.dumps(made), flush=True)
            start = f"    {{Float8::{scaling}, {str(sequences > 1).lower()},\n     "
            start += f'{{"{family}", RmsNorm::{norm}, {str(repeats).lower()}, Recompute::{mode}'
            rows.append(row(start, made) + "}},\n")
    commits = ", ".join(dict.fromkeys(COMMITS[source] for source, *_ in SOURCES))
    version = torch.__version__.split("+")[0]
    head = HEADER.format(torch=version, commits=commits, ao=", ".join(AO.values()), count=len(rows))
    options.output.write_text(head + "".join(rows) + FOOTER, encoding="utf-8")


if __name__ == "__main__":
    main()
