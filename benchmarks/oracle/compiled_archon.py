"""Makes estimator/src/layers/compiled_archon.cpp: what torch.compile makes of the blocks of AReaL's Archon engine.

    python benchmarks/oracle/compiled_archon.py AREAL [--output estimator/src/layers/compiled_archon.cpp]

AREAL is a clone of areal-project/AReaL with its history. As compiled_graphs.py: Archon's parallelize_fn applies checkpoints, torch.compile
and FSDP2 in its own order, on one rank. Log-probs run without gradients, so a block has an inference program too. Releases must agree.
Of one graph inductor makes several orders: it takes the one whose peak is lowest, which few tokens change (reorder_for_peak_memory).
clang-format comes behind it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from archon_code import archon_model, archon_modules, code_of, parallelize, unpack
from compiled_graphs import ATTENTION_BACKWARD, Graphs, compile_as_released, in_words, play, read_training, row
from execute import ROOT, Row
from execute_archon import checkpoints_of, meshes_are_real
from sharded import on_fake_tensors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

RELEASES = ("v0.5.3", "v1.0.4")
MODES = {"none": "none", "full": "full", "op": "selective"}
HEAD = 64
PIECES = 128  # tokens, or heads of them, of one row of partial sums: so many below 8.6 million numbers on an H100


@dataclass
class Sizes:
    """Of which no two products are equal."""

    tokens: int
    heads: int
    kv: int
    hidden: int
    wide: int
    positions: int = 32768

    @property
    def queries(self) -> int:
        return self.heads * HEAD

    @property
    def keys(self) -> int:
        return self.kv * HEAD

    def products(self) -> dict[int, str]:
        """Qwen2's queries are as wide as its hidden states."""
        tokens, pieces = self.tokens, self.tokens // PIECES
        wide = {"H": self.hidden, "K": self.keys, "F": self.wide} | ({"A": self.queries} if self.queries != self.hidden else {})
        pairs = [(tokens * width, f"T.{letter}") for letter, width in wide.items()]
        pairs += [(width * self.hidden, f"{letter}.H") for letter, width in wide.items()]
        pairs += [(pieces * width, f"P.{letter}") for letter, width in wide.items()]
        pairs += [(tokens, "T"), (tokens * self.heads, "T.a"), (tokens * self.kv, "T.g"), (HEAD, "d"), (self.keys, "K")]
        pairs += [(self.hidden, "H"), (2 * tokens * HEAD, "2.T.d")]  # the last: rows of cosines and sines
        named = dict(pairs)
        if len(named) < len(pairs):
            raise ValueError(f"{self}: two products are equal")
        return named


# As many tokens as one trains with, more of them than the model has positions, and fewer than hidden states are wide, as in
# models of 2 to 14 billion parameters.
SIZES = {
    "qwen2": [
        Sizes(6144, 20, 4, 1280, 6912),
        Sizes(6144, 20, 4, 1280, 6912, positions=4096),
        Sizes(1152, 26, 4, 1664, 9728),
        Sizes(1152, 33, 11, 2112, 6144),
        Sizes(1536, 42, 6, 2688, 14208),
        Sizes(768, 42, 6, 2688, 14208),
    ],
    "qwen3": [
        Sizes(4224, 30, 8, 1280, 3456),
        Sizes(4224, 30, 8, 1280, 3456, positions=4096),
        Sizes(1152, 36, 16, 2112, 6144),
        Sizes(1280, 36, 16, 2112, 6144),
        Sizes(1152, 36, 8, 1408, 5376),
        Sizes(1152, 36, 8, 2048, 6272),
        Sizes(1152, 22, 4, 1280, 4352),
    ],
}

HEADER = """// Written by benchmarks/oracle/compiled_archon.py with PyTorch {torch} from areal-project/AReaL at {releases}.
#include "layers/compiled_archon.hpp"

#include <array>

namespace oomplan {{
namespace {{

constexpr std::array<ArchonGraph, {count}> kTraining{{{{
"""
FOOTER = """}};

}  // namespace

std::span<const ArchonGraph> archon_graphs() { return kTraining; }

const CompiledGraph* find_archon_inference(std::string_view family) {
  for (const CompiledGraph& one : kInference)
    if (one.family == family) return &one;
  return nullptr;
}

}  // namespace oomplan
"""


def config_of(family: str, sizes: Sizes) -> Row:
    config: Row = {"model_type": family, "hidden_size": sizes.hidden, "num_hidden_layers": 1, "num_attention_heads": sizes.heads}
    config |= {"num_key_value_heads": sizes.kv, "head_dim": HEAD, "intermediate_size": sizes.wide, "vocab_size": 1024}
    config |= {"max_position_embeddings": sizes.positions, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
    return config | {"attention_bias": family == "qwen2"}


def compile_with(backend: Any) -> None:
    """In place of torch.compile(block, backend="inductor")."""
    plain = torch.compile

    def compiled(module: Any, **options: Any) -> Any:
        return plain(module, **options | {"backend": backend})

    torch.compile = compiled


def run_block(family: str, mode: str, sizes: Sizes, fake: FakeTensorMode) -> None:
    """A model of one block: a pass without gradients, then one with them."""
    config = config_of(family, sizes)
    dims = code_of("areal.experimental.models.archon.parallel_dims").ArchonParallelDims(
        dp_shard=1, cp=1, tp=1, world_size=1, device_type="cpu"
    )
    dims.build_mesh()
    model = archon_model(config, False)
    with fake:
        on_fake_tensors(model)
        parallelize(model, config, dims, checkpoints_of(mode), "default", True)
        model.init_buffers(buffer_device="cpu")
        ids, positions = (torch.empty(1, sizes.tokens, dtype=torch.int64) for _ in range(2))
        given: Row = {"cu_seqlens": torch.empty(3, dtype=torch.int32), "max_seqlen": sizes.tokens}
        with torch.no_grad():
            model(ids, positions, **given)
        model(ids, positions, **given).sum().backward()


def describe(family: str, mode: str, sizes: Sizes, graphs: Graphs) -> tuple[Row, Row]:
    """Training and inference."""
    named = sizes.products()

    def word(event: tuple[Any, ...]) -> str:
        _plus, name, count, dtype = event
        return f"+{name}={named[count // dtype.itemsize]}" + ("" if dtype.itemsize == 2 else f":{dtype.itemsize}")

    def words(events: list[tuple[Any, ...]], renamed: dict[str, str]) -> str:
        return in_words(events, renamed, word)

    graphs.graphs.clear()
    graphs.programs.clear()
    torch._dynamo.reset()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    run_block(family, mode, sizes, fake)
    (names, inputs), *_ = graphs.graphs
    forward, results = play(names, inputs, graphs.programs[0], fake)
    given = {(1, sizes.tokens, sizes.hidden): "x", (sizes.positions, 2 * HEAD): "rope"}
    training = read_training(graphs, fake, given, words)
    read = " ".join(one.split("=")[0] for one in training["gradients"].split())
    inference = {"forward": words(forward, {}), "kept": "", "output": results[0], "backward": "", "gradients": read}
    return training, inference


def described(release: str, clone: Path, graphs: Graphs) -> dict[tuple[str, str], list[Row]]:
    """Of a family and a checkpoint: different graphs. Inference has one."""
    out: dict[tuple[str, str], list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        archon_modules(unpack(clone, release, Path(folder)))
        code_of("areal.experimental.models.archon." + ("varlen_attention" if release < "v1" else "attention.varlen"))
        ATTENTION_BACKWARD.add(torch.ops.areal._varlen_attn_backward.default)
        for family, all_sizes in SIZES.items():
            for mode, recompute in MODES.items():
                for sizes in all_sizes:
                    made, alone = describe(family, mode, sizes, graphs)
                    made["positions"] = str(sizes.positions <= sizes.tokens).lower() if mode == "none" else "false"
                    if made not in out.setdefault((family, recompute), []):
                        print(release, family, mode, sizes, json.dumps(made), flush=True)
                        out[family, recompute].append(made)
                    if out.setdefault((family, "inference"), [alone]) != [alone]:
                        raise ValueError(f"{family}: a checkpoint or sizes change inference")
    return out


def in_rows(made: dict[tuple[str, str], list[Row]], inference: bool) -> list[str]:
    rows = []
    for (family, kind), graphs in made.items():
        if (kind == "inference") != inference:
            continue
        for words in graphs:
            start = f'{{"{family}", RmsNorm::by_hand, false, Recompute::{"none" if inference else kind}'
            start = "    " + start if inference else f"    {{{words['positions']}, {start}"
            rows.append(row(start, words) + ("},\n" if inference else "}},\n"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areal", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "estimator" / "src" / "layers" / "compiled_archon.cpp")
    options = parser.parse_args()
    compile_as_released()
    meshes_are_real()
    graphs = Graphs()
    compile_with(graphs)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    made, *others = [described(release, options.areal, graphs) for release in RELEASES]
    if any(other != made for other in others):
        raise ValueError("releases differ")
    training, inference = in_rows(made, False), in_rows(made, True)
    head = HEADER.format(torch=torch.__version__.split("+")[0], releases=", ".join(RELEASES), count=len(training))
    middle = f"}}}};\n\nconstexpr std::array<CompiledGraph, {len(inference)}> kInference{{{{\n"
    options.output.write_text(head + "".join(training) + middle + "".join(inference) + FOOTER, encoding="utf-8")


if __name__ == "__main__":
    main()
