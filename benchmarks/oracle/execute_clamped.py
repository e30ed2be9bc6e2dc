"""Makes tests/data/executed_clamped.jsonl: the log-probs and the clamped entropy of AReaL's recipe AEnt behind a narrow model.

    python benchmarks/oracle/execute_clamped.py AREAL [--output tests/data/executed_clamped.jsonl]

AREAL is a clone of areal-project/AReaL with its history. gather_logprobs_clamped_entropy (recipe/AEnt/functional.py) runs as it is. Its
chunk is compiled: inductor writes its program for a GPU (inductor_program.py), and what that allocates and frees is done on the meta
device. The chunk looks for the least logits on the host: tensors there are left out. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
import re
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from execute import ROOT, Row, Storages, as_on_cuda, job_of, make_model
from execute_heads import CONFIG, LENGTHS
from inductor_program import DTYPES, Inductor, Program, Written, compile_fx, indented
from row_lines import write_rows
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

RELEASE = "v0.5.3"
CLAMP = 0.4  # recipe/AEnt/configs/gsm8k_aent_grpo.yaml
SOURCE, CHUNK = "recipe/AEnt/functional.py", "_gather_logprobs_clamped_entropy"

HOST = torch.library.Library("clamped", "DEF")
for _name in ("to_host", "to_device"):
    HOST.define(f"{_name}(Tensor x) -> Tensor")
    HOST.impl(_name, torch.clone, "CPU")
    torch.library.register_fake(f"clamped::{_name}", torch.empty_like, lib=HOST)
TO_HOST, TO_DEVICE = torch.ops.clamped.to_host.default, torch.ops.clamped.to_device.default


class TwoDevices(Inductor):
    """What lies between the two copies is the host's."""

    def at(self, x: Any, device: str) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        mode = x.fake_mode if isinstance(x, FakeTensor) else self.mode
        with mode, torch.no_grad():
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)

    def divide(self, graph: Any, inputs: Any, **options: Any) -> Any:
        torch._inductor.fx_passes.joint_graph.constant_fold_uniform_value(graph)
        host: set[Any] = set()
        before = [node for back in graph.graph.nodes if back.target is TO_DEVICE for node in back.all_input_nodes]
        while before:
            node = before.pop()
            host.add(node)
            before += [] if node.target is TO_HOST else [each for each in node.all_input_nodes if each not in host]
        for node in graph.graph.nodes:
            device = "cpu" if node in host else "cuda"
            if "val" in node.meta:
                node.meta["val"] = tree_map(lambda x, d=device: self.at(x, d), node.meta["val"])
            node.kwargs = {k: torch.device(device) if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
            if node.target in (TO_HOST, TO_DEVICE):
                node.target, node.args = (
                    torch.ops.prims.device_put.default,
                    (node.args[0], torch.device("cpu" if node in host else "cuda:0")),
                )
        graph.recompile()
        return self.partition(graph, tree_map(self.on_gpu, list(inputs)), **options)

    def compile(self, graph: Any, inputs: Any, **options: Any) -> Any:
        written: list[Program] = []

        def take(lowering: Any) -> Any:
            written.append(Program(lowering.codegen()[0].value))
            raise Written

        GraphLowering.compile_to_module = take
        try:
            compile_fx.compile_fx_inner(graph, [self.on_gpu(x) for x in inputs], **options)
        except Exception as problem:
            if not written:
                raise problem
        self.programs.append(written[0])
        results = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        values = [node.meta["val"] if hasattr(node, "meta") else None for node in results]

        def run(given: list[Any]) -> tuple[Any, ...]:
            given.clear()
            return tuple(v if v is None else torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def on_meta(program: Program) -> Any:
    """The program's allocations and frees of the GPU's memory, its kernels and the host's part left out."""
    host = set(re.findall(r"(\w+) = (?:empty_strided_cpu|torch\.ops\.aten\.topk)\b", "\n".join(program.lines)))
    lines = []
    for line in program.lines:
        if re.match(r"(with |#|torch\.cuda\.|raw_stream|assert_|triton_|cpp_fused)", line):
            continue
        made = re.match(r"(\w+) = (\w+)\[", line)
        if made and made[2] in host:
            host.add(made[1])
        if not host.intersection(re.findall(r"\w+", line)):
            lines.append(line)
    shim = types.SimpleNamespace(**{dtype: getattr(torch, dtype) for dtype in DTYPES})
    make = lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype, device="meta")  # noqa: E731
    names = {"torch": shim, "empty_strided_cuda": make, "reinterpret_tensor": torch.as_strided, "copy_if_misaligned": lambda x: x}
    source = "\n".join(["def call(args):", *indented(lines)])
    exec(compile(source, "generated", "exec"), names)
    return names["call"]


def aent(clone: Path) -> Row:
    """The recipe's functions, whose compiled chunk is a placeholder."""
    text = subprocess.run(
        ["git", "-C", str(clone), "show", f"{RELEASE}:{SOURCE}"], check=True, capture_output=True, text=True
    ).stdout
    text = re.sub(r"(?s)from areal[^\n]*\(.*?\)\n", "", text).replace("@torch.compile", "")
    text = text.replace("torch.cuda.empty_cache()", "pass")
    text = text.replace("logits.cpu().detach()", "torch.ops.clamped.to_host(logits.detach())")
    text = text.replace("rm_mask.to(logits.device)", "torch.ops.clamped.to_device(rm_mask)")
    names: Row = {"get_ulysses_sequence_parallel_world_size": lambda: 1}
    exec(compile(text, SOURCE, "exec"), names)
    return names


class CompiledChunk(torch.autograd.Function):
    """CompiledFunction of AOTAutograd: the forward program's further results are saved."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, programs: list[Any]) -> Any:
        out = programs[0]([logits, labels])
        ctx.save_for_backward(*out[2:])
        ctx.backward_program = programs[1]
        return out[0], out[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        given = [*ctx.saved_tensors, *gradients]
        return ctx.backward_program(given)[0], None, None


class Chunks:
    """The compiled chunk, one program for each number of rows."""

    def __init__(self, chunk: Callable[..., Any]) -> None:
        self.chunk, self.inductor = chunk, TwoDevices()
        self.programs: dict[int, list[Any]] = {}

    def compile(self, rows: int) -> None:
        if rows in self.programs:
            return
        torch._dynamo.reset()
        self.inductor.programs = []
        logits = torch.zeros(rows, CONFIG["vocab_size"], dtype=torch.bfloat16, requires_grad=True)
        labels = torch.zeros(rows, dtype=torch.int64)
        out = torch.compile(self.chunk, backend=self.inductor, dynamic=False)(logits, labels, CLAMP, 1.0)
        sum(each.sum() for each in out).backward()  # type: ignore[union-attr]
        self.programs[rows] = [on_meta(program) for program in self.inductor.programs]

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, _clamp: float, _temperature: float) -> Any:
        return CompiledChunk.apply(logits, labels, self.programs[len(labels)])


def execute(names: Row, tokens: int) -> Row:
    model = make_model(CONFIG, True, False)
    gc.collect()
    gc.disable()
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    with storages:
        ids = torch.empty(1, tokens, dtype=torch.int64, device="meta")
        labels = torch.empty_like(ids)
        output = model(input_ids=ids)
        logits = output.logits.squeeze(0)
        log_probs, entropy = names["gather_logprobs_clamped_entropy"](logits, labels[0], CLAMP)
        loss = (log_probs - entropy).mean()
        del log_probs, entropy
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    return {"forward": resident + forward, "backward": resident + storages.highest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areal", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_clamped.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, AReaL {RELEASE}"
    lines: list[Row] = [{"config": "narrow", "fields": CONFIG}]
    names = aent(options.areal)
    chunks = names[CHUNK] = Chunks(names[CHUNK])
    for tokens in LENGTHS:
        for rows in {min(tokens, 1024), tokens % 1024 or 1024}:
            chunks.compile(rows)
        job = job_of(1, tokens, True)
        job["framework"] = "areal 0.5.3"
        job["trainer"]["head"] = "areal_clamped"
        peaks = execute(names, tokens)
        print(tokens, peaks, flush=True)
        lines.append({"id": f"areal_clamped/s{tokens}", "config": "narrow", "job": job, "source": versions, "peaks": peaks})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
