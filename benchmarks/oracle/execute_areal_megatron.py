"""Makes tests/data/executed_areal_megatron.jsonl: the loss head of AReaL's Megatron engine, executed.

    python benchmarks/oracle/execute_areal_megatron.py AREAL [--output tests/data/executed_areal_megatron.jsonl]

AREAL is a clone of areal-project/AReaL with its history (a bare one will do). Its own functions are read at a tag and run as they are:
gather_logprobs_entropy and gather_logprobs (areal/utils/functional/vocab_parallel.py), unpad_logits (areal/utils/data.py), and the
partition of layers (areal/engine/megatron_utils/pipeline_parallel.py). Around them stands what the engine does between the output
layer and the loss (areal/engine/megatron_engine.py: forward_backward_batch, _compute_logprobs_and_loss) with Megatron's fp32 cast of
the last stage's output (megatron/core/transformer/module.py: float16_to_fp32, 0.17). Rows with a `release` are of 0.4.1, before the log-probs
had a file of their own: gather_logprobs_entropy and gather_logprobs of areal/utils/functional.py, _VocabParallelEntropy of
areal/utils/mcore/functional.py, and the installed Megatron-core's vocab_parallel_cross_entropy. SFT asks for log-probs alone there
(areal/engine/sft/lm_engine.py). Tensors are fake CPU ones, collectives those of PyTorch's fake process group, whose ranks allocate nothing. Without tensor parallelism the functions go through torch.compile: inductor
writes its program for an H100 (inductor_program.py), which needs triton's names.

What came later is read at the development after 2.0.0: the loss over the logits' own storage (enable_chunked_logits; its kernels
allocate nothing and are left out, and so is its question for CUDA), with an output layer that writes fp32 and packs a gradient that
comes back in its own storage, and the gathering of context-parallel ranks' logits for log-probs (postprocess_packed_seqs_context_parallel).

A line of a head: the settings; `forward` and `backward`, highest levels above the hidden states in front of the output layer, and `kept`,
what is alive between them. A line of a partition: its arguments, and the layers of every stage.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib.util
import subprocess
import sys
import tempfile
import types
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import ROOT, Row, Storages
from inductor_program import Inductor
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

TAG = "v1.0.4"
OLDER = "v0.4.1"
LATER = "cbff54d64"  # the development after 2.0.0
HIDDEN, VOCAB = 8, 4096  # of a rank
# tensor-parallel ranks, lengths of the sequences, tokens of padding behind them
TRAINED: list[tuple[int, list[int], int]] = [
    *(
        (t, lengths, pad)
        for t in (1, 2)
        for lengths in ([4096], [2048] * 2, [1024] * 4, [512] * 8, [2048] * 3)
        for pad in (0, 256)
    ),
    (4, [5120] * 2, 256),
    (2, [1024], 0),
    (1, [1024], 0),
    (1, [512], 256),
    (2, [512] * 2, 0),
]
FORWARD_ONLY: list[tuple[int, list[int], int]] = [(t, [2048] * 2, pad) for t in (1, 2) for pad in (0, 256)]
# context parallelism: the head works on this rank's padded tokens
LOCAL: list[tuple[int, list[int], int]] = [(t, [4096], 0) for t in (1, 2)]
# before 0.5.0: ranks, lengths, padding, what asks
BEFORE: list[tuple[int, list[int], int, str]] = [
    (t, lengths, pad, asks)
    for t in (1, 2)
    for lengths in ([4096], [2048] * 2, [1024] * 4, [2048] * 3)
    for pad in (0, 256)
    for asks in ("actor", "sft", "forward_only")
    if pad == 0 or asks == "actor"
]
# the loss over the logits' own storage; with context parallelism it works on this rank's padded tokens
CHUNKED: list[tuple[int, list[int], int]] = [
    (t, lengths, pad) for t in (1, 2) for lengths in ([4096], [2048] * 2, [1024] * 4) for pad in (0, 256)
]
CHUNKED_LOCAL: list[tuple[int, list[int], int]] = [(t, [4096], 0) for t in (1, 2)]
# rows of the output layer that run at once
IN_CHUNKS: list[tuple[int, bool]] = [(128, False), (1024, False), (128, True), (1024, True)]
# context-parallel ranks and lengths of whole sequences
GATHERED: list[tuple[int, list[int]]] = [(2, [4096]), (2, [2048] * 2), (4, [1024] * 4), (2, [1024] * 8)]


QWEN3_MOE: Row = {
    "model_type": "qwen3_moe",
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "head_dim": 128,
}
# a model's own configuration: hidden states, feed-forward, layers, heads, groups, vocabulary, tied
MODELS: dict[str, Row] = {
    name: {"hidden_size": h, "intermediate_size": f, "num_hidden_layers": n, "num_attention_heads": a, "num_key_value_heads": g}
    | {"vocab_size": v, "tie_word_embeddings": tied, "max_position_embeddings": 32768, **more}
    for name, h, f, n, a, g, v, tied, more in [
        ("qwen2.5-1.5b", 1536, 8960, 28, 12, 2, 151936, True, {"model_type": "qwen2"}),
        ("qwen3-8b", 4096, 12288, 36, 32, 8, 151936, False, {"model_type": "qwen3", "head_dim": 128}),
        ("llama-3.1-70b", 8192, 28672, 80, 64, 8, 128256, False, {"model_type": "llama"}),
        (
            "qwen3-30b-a3b",
            2048,
            6144,
            48,
            32,
            4,
            151936,
            False,
            QWEN3_MOE | {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8},
        ),
        (
            "qwen3-235b-a22b",
            4096,
            12288,
            94,
            64,
            4,
            151936,
            False,
            QWEN3_MOE | {"moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8},
        ),
    ]
}
# model, stages, chunks of a stage, expert-parallel ranks
PARTITIONS = [
    *(
        (model, p, v, 1)
        for model in ("qwen2.5-1.5b", "qwen3-8b", "llama-3.1-70b")
        for p, v in ((2, 1), (3, 1), (4, 1), (8, 1), (2, 2), (4, 3))
    ),
    *(
        (model, p, v, e)
        for model in ("qwen3-30b-a3b", "qwen3-235b-a22b")
        for p, v, e in ((2, 1, 1), (4, 1, 4), (6, 1, 1), (12, 1, 4), (4, 2, 8))
    ),
]


class Lives(Storages):
    @classmethod
    def is_infra_mode(cls) -> bool:
        """Dynamo leaves everything alone under any other mode."""
        return True


class Number(int):
    def item(self) -> int:
        return int(self)


class Offsets:
    """cu_seqlens without a tensor: where sequences begin."""

    def __init__(self, lengths: list[int]) -> None:
        self.at = [0]
        for length in lengths:
            self.at.append(self.at[-1] + length)
        self.shape = (len(self.at),)

    def __getitem__(self, i: int) -> Number:
        return Number(self.at[i])


def source(areal: Path, path: str, tag: str = TAG) -> str:
    return subprocess.run(["git", "-C", str(areal), "show", f"{tag}:{path}"], check=True, capture_output=True, text=True).stdout


def load(text: str, name: str, folder: Path) -> Any:
    """A module of the text, from a file, because torch.compile reads sources."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def function(text: str, name: str) -> str:
    tree = ast.parse(text)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return "from __future__ import annotations\nimport torch\n\n" + ast.unparse(found[0])


def stand_in(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    for key, value in names.items():
        setattr(module, key, value)
    sys.modules[name] = module
    if "." in name and (parent := name.rpartition(".")[0]) not in sys.modules:
        stand_in(parent)


class Code:
    """AReaL's functions."""

    def __init__(self, areal: Path, folder: Path, inductor: Inductor, tag: str = TAG) -> None:
        stand_in("areal.infra.platforms", is_npu_available=False)
        real = torch.compile
        torch.compile = lambda fn: real(fn, backend=inductor, fullgraph=True)  # type: ignore[assignment]
        functional = load(
            source(areal, "areal/utils/functional/vocab_parallel.py", tag),
            f"areal_vocab_parallel_{tag[-4:].replace('.', '_')}",
            folder,
        )
        torch.compile = real
        self.with_entropy, self.alone = functional.gather_logprobs_entropy, functional.gather_logprobs
        self.unpad = load(function(source(areal, "areal/utils/data.py", tag), "unpad_logits"), "areal_data", folder).unpad_logits
        if tag != LATER:
            return
        nothing = {
            name: lambda *_: None
            for name in ("fused_exp_sum_inplace", "fused_normalize_inplace", "fused_softmax_backward_inplace")
        }
        stand_in(
            "areal.utils.functional.vocab_parallel_kernels",
            vocab_tile_count=lambda size: (size + 1023) // 1024,
            reusable_vocab_parallel_logits=lambda x: x if x._base is None else x._base,
            **nothing,
        )
        text = function(
            source(areal, "areal/engine/megatron_utils/packed_context_parallel.py", tag),
            "postprocess_packed_seqs_context_parallel",
        )
        packed = load(text.replace("import torch\n", "import torch\nimport torch.distributed as dist\n"), "areal_packed", folder)
        packed.mpu = types.SimpleNamespace(
            get_context_parallel_world_size=lambda: dist.get_world_size(),
            get_context_parallel_group=lambda: dist.group.WORLD,
            get_context_parallel_rank=lambda: 0,
        )
        self.postprocess = packed.postprocess_packed_seqs_context_parallel
        self.heads = load(source(areal, "areal/models/mcore/vocab_parallel_head.py", tag), "areal_heads", folder)
        sys.modules["areal.utils.functional.vocab_parallel_kernels"].fused_logits_backward_inplace = lambda *_: None
        # of a CPU: its products write no fp32, and its gradients are in nobody's way
        self.heads._linear_chunk_fp32 = lambda x, weight, *_: torch.empty(len(x), len(weight), dtype=torch.float32)
        self.heads._pack_fp32_to_half_inplace = lambda x, target_dtype, seed_elements: (
            x.view(-1).view(target_dtype)[: x.numel()].view(x.shape)
        )


class CodeBefore:
    """Those of OLDER, which ask Megatron's parallel state for the ranks."""

    def __init__(self, areal: Path, folder: Path, inductor: Inductor) -> None:
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import cross_entropy

        for module in (parallel_state, cross_entropy):
            module.get_tensor_model_parallel_group = lambda *_, **__: dist.group.WORLD  # type: ignore[attr-defined]
            module.get_tensor_model_parallel_world_size = lambda: dist.get_world_size()  # type: ignore[attr-defined]
            module.get_tensor_model_parallel_rank = lambda: 0  # type: ignore[attr-defined]
        parallel_state.is_initialized = lambda: True
        stand_in("areal.platforms", is_npu_available=False)
        stand_in(
            "areal.utils.ulysses", get_ulysses_sequence_parallel_group=None, get_ulysses_sequence_parallel_world_size=lambda: 1
        )
        real = torch.compile
        compiled = lambda fn=None, **_: real(fn, backend=inductor, fullgraph=True) if fn else compiled  # noqa: E731
        text = source(areal, "areal/utils/mcore/functional.py", OLDER)
        entropy = load(text.replace("@torch.compile(dynamic=True)", "@compiled"), "areal_mcore_functional", folder)
        entropy.compiled = compiled
        stand_in("areal.utils.mcore.functional", _VocabParallelEntropy=entropy._VocabParallelEntropy)
        torch.compile = compiled  # type: ignore[assignment]
        functional = load(source(areal, "areal/utils/functional.py", OLDER), "areal_functional_before", folder)
        torch.compile = real
        self.with_entropy = lambda logits, labels, temperature, tp_group: functional.gather_logprobs_entropy(
            logits, labels, temperature
        )
        self.alone = lambda logits, labels, temperature, tp_group: functional.gather_logprobs(logits, labels, temperature)
        self.unpad = load(
            function(source(areal, "areal/utils/data.py", OLDER), "unpad_logits"), "areal_data_before", folder
        ).unpad_logits


class OutputLayer(torch.autograd.Function):
    """LinearWithGradAccumulation: keeps its input; the weight's gradient is added up inside of the product."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, columns: int) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        return hidden.new_empty(*hidden.shape[:-1], columns)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        return torch.empty_like(ctx.saved_tensors[0]), None


class WideOutputLayer(torch.autograd.Function):
    """_LinearWithFp32Output (areal/models/mcore/vocab_parallel_head.py): a gradient in the logits' own storage is packed in place."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, columns: int) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        output = torch.empty(*hidden.shape[:-1], columns, dtype=torch.float32)
        ctx.reference = weakref.ref(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient, logits = gradients[0], ctx.reference()
        if logits is not None and logits.untyped_storage()._cdata == gradient.untyped_storage()._cdata:
            gradient = gradient.view(-1).view(torch.bfloat16)[: gradient.numel()]
        else:
            gradient = gradient.to(torch.bfloat16)
        out = torch.empty_like(ctx.saved_tensors[0])
        del gradient
        return out, None


def model(hidden: torch.Tensor, chunked: bool) -> torch.Tensor:
    """GPTModel without labels, in Float16Module."""

    def gpt() -> torch.Tensor:
        logits = (WideOutputLayer if chunked else OutputLayer).apply(hidden, VOCAB)
        return logits.transpose(0, 1).contiguous()

    outputs = gpt()
    outputs = outputs.float()
    return outputs


def packed_forward(code: Code, hidden: torch.Tensor, row: Row) -> torch.Tensor:
    output = model(hidden, row.get("chunked", False))
    if "context" in row:
        return code.postprocess(output, Offsets(row["lengths"]), True)  # type: ignore[no-any-return]
    return output.squeeze(0)


def forward_step(code: Code | CodeBefore, hidden: torch.Tensor, row: Row) -> torch.Tensor:
    lengths, padding = row["lengths"], row["padding"]
    output = packed_forward(code, hidden, row)
    if not row.get("local", False):
        output = code.unpad(output, padding_length=padding, cu_seqlens=Offsets(lengths), old_cu_seqlens=Offsets(lengths))
    return output


def loss_of(code: Code | CodeBefore, output: torch.Tensor, labels: torch.Tensor, group: Any, row: Row) -> torch.Tensor:
    if row.get("sft", False):
        logprobs = code.alone(output, labels, temperature=1.0, tp_group=group)
        lowest = output.detach().min(-1).values.float()
        highest = output.detach().max(-1).values.float()
        del lowest, highest
        return logprobs.mean()
    more = {"reuse_logits": True} if row.get("chunked", False) else {}
    logprobs, entropy = code.with_entropy(output, labels, temperature=1.0, tp_group=group, **more)
    entropy = entropy.detach()
    lowest = output.detach().min(-1).values.float()
    highest = output.detach().max(-1).values.float()
    del lowest, highest
    return (logprobs + entropy).mean()


def run(code: Code | CodeBefore, row: Row, storages: Any) -> Row:
    forward_only = row.get("forward_only", False)
    group = dist.group.WORLD if row["tensor"] > 1 else None
    tokens = (sum(row["lengths"]) + row["padding"]) // row.get("context", 1)
    hidden = torch.empty(tokens, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    out: Row = {}
    weight = torch.empty(VOCAB, HIDDEN, dtype=torch.bfloat16)
    with storages:
        storages.own(hidden)
        storages.own(weight)

        def in_chunks() -> torch.Tensor:
            labels = torch.empty(tokens, dtype=torch.int64)
            head = code.heads._ChunkedVocabParallelLMHead
            values = head.apply(hidden, weight, None, labels, 1.0, row["head_chunk"], False, False, False, None, 1.0, False)
            return values[0] if forward_only else values[0].mean()

        def step() -> torch.Tensor:
            if "head_chunk" in row:
                return in_chunks()
            output = forward_step(code, hidden, row)
            labels = torch.empty(len(output), dtype=torch.int64)
            if forward_only:
                return code.alone(output, labels, temperature=1.0, tp_group=group)  # type: ignore[no-any-return]
            return loss_of(code, output, labels, group, row)

        if forward_only:
            with torch.no_grad():
                loss = step()
        else:
            loss = step()
        out["forward"] = storages.highest
        if not forward_only:
            out["kept"] = storages.live
            storages.highest = storages.live
            loss.backward()
            out["backward"] = storages.highest
    return out


class Nowhere:
    """Storages that nobody counts."""

    highest = live = 0

    def __enter__(self) -> Nowhere:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def own(self, _: torch.Tensor) -> None:
        return None


def execute_head(code: Code | CodeBefore, row: Row) -> Row:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=row.get("context", row["tensor"]))
    torch._dynamo.reset()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    gc.collect()
    gc.disable()
    try:
        with fake:
            if row["tensor"] == 1 or "release" in row:  # Dynamo compiles where no other mode is on
                run(code, row, Nowhere())
                gc.collect()
            return row | run(code, row, Lives())
    finally:
        gc.enable()
        dist.destroy_process_group()


def stage_layers(areal: Path, folder: Path) -> list[Row]:
    stand_in("megatron.core.transformer", TransformerConfig=object)
    stand_in("megatron.core.transformer.pipeline_parallel_layer_layout", PipelineParallelLayerLayout=object)
    stand_in("areal.api", MegatronParallelStrategy=object)
    stand_in("areal.utils.logging", getLogger=lambda _: None)
    sys.modules["areal.utils"].logging = sys.modules["areal.utils.logging"]  # type: ignore[attr-defined]
    code = load(source(areal, "areal/engine/megatron_utils/pipeline_parallel.py"), "areal_pipeline", folder)
    out = []
    for model, stages, chunks, experts in PARTITIONS:
        config = MODELS[model]
        hf = types.SimpleNamespace(**{key: value for key, value in config.items() if key != "model_type"})
        tf = types.SimpleNamespace(num_layers=hf.num_hidden_layers, gated_linear_unit=True, expert_model_parallel_size=experts)
        tf.num_moe_experts, tf.moe_ffn_hidden_size = getattr(hf, "num_experts", None), getattr(hf, "moe_intermediate_size", None)
        layers, embedding, output = code.estimate_stage_parameter_buckets(hf, tf)
        lengths = code._compute_stage_layer_lengths(layers, embedding, output, stages * chunks)
        out.append({"model": model, "config": config, "stages": stages, "chunks": chunks, "experts": experts, "layers": lengths})
    return out


def by_of(row: Row) -> str:
    return f"torch {torch.__version__.split('+')[0]}, AReaL {row.get('release', TAG.removeprefix('v'))} executed on fake tensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areal", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_areal_megatron.jsonl")
    options = parser.parse_args()
    rows: list[Row] = [{"tensor": t, "lengths": lengths, "padding": pad} for t, lengths, pad in TRAINED]
    rows += [{"tensor": t, "lengths": lengths, "padding": pad, "forward_only": True} for t, lengths, pad in FORWARD_ONLY]
    rows += [{"tensor": t, "lengths": lengths, "padding": pad, "local": True} for t, lengths, pad in LOCAL]
    for t, lengths, pad, asks in BEFORE:
        row = {"release": OLDER.removeprefix("v"), "tensor": t, "lengths": lengths, "padding": pad}
        rows.append(row if asks == "actor" else row | {asks: True})
    chunked: Row = {"chunked": True}
    new: list[Row] = [{"tensor": t, "lengths": lengths, "padding": pad} | chunked for t, lengths, pad in CHUNKED]
    new += [{"tensor": t, "lengths": lengths, "padding": pad, "forward_only": True} | chunked for t, lengths, pad in FORWARD_ONLY]
    new += [{"tensor": t, "lengths": lengths, "padding": pad, "local": True} | chunked for t, lengths, pad in CHUNKED_LOCAL]
    new += [{"tensor": 1, "lengths": lengths, "padding": 0, "forward_only": True, "context": c} for c, lengths in GATHERED]
    new += [
        {"tensor": 1, "lengths": [4096], "padding": 0, "local": True, "head_chunk": rows}
        | ({"forward_only": True} if alone else {})
        for rows, alone in IN_CHUNKS
    ]
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        inductor = Inductor()
        now, before = Code(options.areal, Path(folder), inductor), CodeBefore(options.areal, Path(folder), inductor)
        later = Code(options.areal, Path(folder), inductor, LATER)
        for row in rows + new:
            code = later if row in new else before if "release" in row else now
            said = by_of({"release": LATER}) if row in new else by_of(row)
            lines.append(execute_head(code, {"vocab": VOCAB, "hidden": HIDDEN} | row) | {"source": said})
            line = lines[-1]
            unit = 4 * sum(line["lengths"]) * VOCAB
            print(
                {k: line[k] for k in ("tensor", "lengths", "padding")},
                *(f"{k} {line[k] / unit:.4f}" for k in ("forward", "kept", "backward") if k in line),
                flush=True,
            )
        lines += [line | {"source": by_of({})} for line in stage_layers(options.areal, Path(folder))]
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
