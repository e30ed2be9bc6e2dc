"""What torch.compile makes of a module on a GPU, without one: inductor's own generated program, and what it does to memory.

Dynamo, AOTAutograd, its partitioner, inductor's lowering and its scheduler run as they are, on fake tensors. Nothing is launched: a graph
is traced with CPU tensors, named CUDA ones before it is divided into forward and backward, and ends where the program is written
down. For execute_compiled.py. Needs triton (the package, whose names inductor's generator imports), no GPU.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._functorch.partitioners
import torch._inductor.config
import torch._inductor.fx_passes.joint_graph
import torch._inductor.scheduler
import torch.utils._triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import compile_fx
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

aten = torch.ops.aten
DTYPES = ("bfloat16", "float16", "float32", "float64", "complex64", "int64", "uint64", "int32", "bool", "uint8")
DTYPES += ("float8_e4m3fn", "float8_e5m2")


class Hopper:
    """What inductor asks of a device."""

    major, minor, name, warp_size = 9, 0, "NVIDIA H100", 32
    multi_processor_count, total_memory = 132, 80 << 30
    max_threads_per_multi_processor, regs_per_multiprocessor = 2048, 65536
    shared_memory_per_block, shared_memory_per_block_optin = 49152, 232448


class Nothing:
    """A context, a function and a holder of kernels that does nothing."""

    def __init__(self, *_args: Any) -> None:
        pass

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_args: Any) -> None:
        pass

    def __call__(self, *_args: Any, **_options: Any) -> Nothing:
        return self

    def __getattr__(self, _name: str) -> Nothing:
        return self


def name_a_gpu() -> None:
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = torch.cuda._get_device_properties = lambda _device=None: Hopper
    torch.cuda.get_device_capability = lambda _device=None: (Hopper.major, Hopper.minor)
    torch.cuda.get_device_name = lambda _device=None: Hopper.name
    torch.cuda.get_rng_state = lambda _device=None: torch.zeros(1)
    torch.cuda.set_rng_state = lambda *_state: None
    torch.cuda._lazy_init = lambda: None
    torch.cuda.device = CudaInterface.device = Nothing
    torch.version.cuda = "12.8"
    CudaInterface.Worker.get_device_properties = staticmethod(lambda _device=None: Hopper)
    CudaInterface.is_available = staticmethod(lambda: True)
    CudaInterface.device_count = staticmethod(lambda: 1)
    CudaInterface.is_bf16_supported = staticmethod(lambda including_emulation=False: True)
    torch._inductor.scheduler.has_triton = lambda *_: True
    torch.utils._triton.triton_hash_with_backend = lambda *_, **__: "none"
    # patterns of attention and of padding, which a fused attention operator and sides of whole blocks do not meet
    torch._inductor.fx_passes.joint_graph.lazy_init = lambda *_, **__: None
    torch._inductor.config.joint_graph_constant_folding = False
    # Python's binding of copy_ sets the device, the operator itself does not
    torch.Tensor.copy_ = lambda into, x, _non_blocking=False: aten.copy_.default(into, x)
    # attention without dropout draws nothing: no state of a generator to carry into a recomputation
    torch._functorch.partitioners.functionalize_rng_ops = lambda _joint, forward, backward, _saved: (forward, backward)


class Written(Exception):
    """The program is there."""


class Program:
    """One generated program: its source and, without reuse of buffers, what it allocates and frees."""

    def __init__(self, source: str) -> None:
        self.source = source
        body = source[source.index("def call(") :]
        self.lines = [line.strip() for line in body[: body.index("\nrunner")].splitlines()[1:]]


class Inductor:
    """A backend of torch.compile. Each call of a compiled module runs its program on fake tensors."""

    def __init__(self) -> None:
        self.mode: Any = None
        self.programs: list[Program] = []
        self.partition = compile_fx.partition_fn
        compile_fx.partition_fn = self.divide

    def __call__(self, graph: Any, inputs: Any) -> Any:
        name_a_gpu()
        self.mode = torch._guards.detect_fake_mode(inputs)
        return compile_fx.compile_fx(graph, inputs, inner_compile=self.compile)

    def on_gpu(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        mode = x.fake_mode if isinstance(x, FakeTensor) else self.mode
        with mode, torch.no_grad():
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    def divide(self, graph: Any, inputs: Any, **options: Any) -> Any:
        torch._inductor.fx_passes.joint_graph.constant_fold_uniform_value(graph)  # it makes real tensors, which the CPU has
        for node in graph.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = tree_map(self.on_gpu, node.meta["val"])
            node.kwargs = {k: torch.device("cuda:0") if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
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
        self.programs += written
        run = runnable(written[0])
        run._boxed_call = True
        return run


def reinterpret(x: torch.Tensor, shape: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(x, shape, stride, offset)


def on_cpu(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype)


def runnable(program: Program) -> Callable[[list[Any]], Any]:
    """The generated function, whose kernels are nothing and whose tensors are the CPU's: it holds and drops what it does on a GPU."""
    names: dict[str, Any] = defaultdict(Nothing)
    shim = type("torch", (), {"ops": torch.ops, "cuda": Nothing()})
    for dtype in DTYPES:
        setattr(shim, dtype, getattr(torch, dtype))
    names |= {"torch": shim, "empty_strided_cuda": on_cpu, "reinterpret_tensor": reinterpret, "args": None}
    names["copy_if_misaligned"] = lambda x: x
    source = "\n".join(["def call(args):", *indented(program.lines)])
    source = re.sub(r"\b(triton_\w+|extern_kernels)\.\w+\(.*", "pass", source)
    source = re.sub(r"(raw_stream|stream)\d+ = .*", "pass", source)
    source = re.sub(r"assert_(size_stride|alignment)\(.*", "pass", source)
    exec(compile(source, "generated", "exec"), names)
    return names["call"]  # type: ignore[no-any-return]


def indented(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if line.startswith("return"):
            inside = False
        yield ("        " if inside else "    ") + line
        inside = inside or line.startswith("with ")
