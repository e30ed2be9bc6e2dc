"""Makes estimator/src/layers/compiled_float8.cpp: torchtitan's blocks under torch.compile with torchao's float8 matrices.

    python benchmarks/oracle/compiled_float8.py TORCHTITAN AO [--output estimator/src/layers/compiled_float8.cpp]

TORCHTITAN and AO are clones of pytorch/torchtitan and pytorch/ao with their history. Otherwise as compiled_graphs.py; clang-format comes
behind it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import compiled_graphs
import execute_compiled
import torch
import torch._inductor.config
import torch.nn.functional as F
from ao_code import convert, float8_modules, unpack_float8
from compiled_graphs import (
    HIDDEN,
    PIECES,
    SEQUENCES,
    SOURCES,
    TOKENS,
    WIDE,
    Graphs,
    compile_as_released,
    describe,
    in_words,
    read_options,
    row,
)
from execute_compiled import MODES
from execute_parallel import COMMITS, KEPT, flash_sdpa
from titan_code import unpack

AO = {"2025-02": "1ab1b77ad", "2025-09": "v0.13.0", "0.2.2": "v0.16.0"}  # torchao's of that time
WAYS = [("tensorwise", False), ("tensorwise", True), ("rowwise", False)]
SMALL = 1 << 20  # bytes: scales, maxima of pieces of a tensor

HEADER = """// Written by benchmarks/oracle/compiled_float8.py with PyTorch {torch} from pytorch/torchtitan at {commits}
// and pytorch/ao at {ao}.
#include "layers/compiled_float8.hpp"

#include <array>

namespace oomplan {{
namespace {{

struct Float8Graph {{
  Float8 scaling;
  bool gathered;
  CompiledGraph graph;
}};

constexpr std::array<Float8Graph, {count}> kFloat8Graphs{{{{
"""
FOOTER = """}};

}  // namespace

const CompiledGraph* find_float8_graph(std::string_view family, RmsNorm norm, bool repeat_kv, Recompute recompute, Float8 scaling,
                                       bool gathered) {
  for (const auto& [known, comes_in_8_bits, graph] : kFloat8Graphs)
    if (known == scaling && comes_in_8_bits == gathered && graph.family == family && graph.norm == norm &&
        graph.repeat_kv == repeat_kv && graph.recompute == recompute)
      return &graph;
  return nullptr;
}

}  // namespace oomplan
"""


def word(event: tuple[Any, ...], sizes: dict[int, str]) -> str:
    """As compiled_graphs.word, with numbers of 8 bits, rows of scales, and partial sums of one row for 128 tokens."""
    _plus, name, count, dtype = event
    size = min(dtype.itemsize, 4)
    numbers = count // size
    wide = "" if size == 2 else f":{size}"
    sizes = sizes | {WIDE: "F"}
    if numbers in sizes:
        return f"+{name}={sizes[numbers]}{wide}"
    pieces = SEQUENCES * TOKENS // PIECES
    for width, letter in ((HIDDEN, "H"), (WIDE, "F"), (sizes_width(sizes), "A")):
        if size == 4 and numbers == pieces * width:
            return f"+{name}=P.{letter}:4"
    if count < SMALL:
        return ""
    raise ValueError(f"{numbers} numbers of {dtype}")


def sizes_width(sizes: dict[int, str]) -> int:
    return next((numbers // (SEQUENCES * TOKENS) for numbers, words in sizes.items() if words == "T.A"), 0)


def text(events: list[tuple[Any, ...]], renamed: dict[str, str], family: str) -> str:
    """As compiled_graphs.text, without what is small."""
    sizes = compiled_graphs.products(family)
    return in_words(events, renamed, lambda event: word(event, sizes))


def main() -> None:
    options, before = read_options(__doc__, "compiled_float8")
    compile_as_released()
    F.scaled_dot_product_attention = flash_sdpa
    compiled_graphs.text = text
    KEPT.add(torch.ops.aten.max.default)
    graphs, rows = Graphs(), []
    plain = execute_compiled.titan_model
    with tempfile.TemporaryDirectory() as folder:
        for source, family, norm, repeats in SOURCES:
            root = unpack(options.torchtitan, COMMITS[source], Path(folder) / source / family)
            ao = unpack_float8(options.ao, AO[source], Path(folder) / source / "ao" / family)
            for scaling, gathered in WAYS:
                # pytorch/torchtitan #1108: eager mode's casts are kept with scales for rows, since April 2025
                torch._inductor.config.emulate_precision_casts = scaling == "rowwise" and source != "2025-02"

                def model_in_float8(*given: Any, how: Any = (ao, scaling, gathered)) -> Any:
                    model = plain(*given)
                    float8_modules(how[0])
                    convert(model, how[1], how[2])
                    return model

                execute_compiled.titan_model = model_in_float8
                for mode in MODES:
                    key = f"{source} {family} {scaling} {gathered} {mode}"
                    if options.only and not any(one in key for one in options.only):
                        continue
                    made = before.get(key) or describe(root, family, mode, graphs)
                    print(key, "|", json.dumps(made), flush=True)
                    start = f"    {{Float8::{scaling}, {str(gathered).lower()},\n     "
                    start += f'{{"{family}", RmsNorm::{norm}, {str(repeats).lower()}, Recompute::{mode}'
                    rows.append(row(start, made) + "}},\n")
    commits = ", ".join(dict.fromkeys(COMMITS[source] for source, *_ in SOURCES))
    version = torch.__version__.split("+")[0]
    head = HEADER.format(torch=version, commits=commits, ao=", ".join(AO.values()), count=len(rows))
    options.output.write_text(head + "".join(rows) + FOOTER, encoding="utf-8")


if __name__ == "__main__":
    main()
