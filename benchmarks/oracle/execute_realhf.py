"""Makes tests/data/executed_realhf.jsonl: pipeline stages of AReaL's realhf trainer, executed.

    python benchmarks/oracle/execute_realhf.py AREAL [--output tests/data/executed_realhf.jsonl]

AREAL is a clone of areal-project/AReaL with its history (a bare one will do). realhf's own modules of 0.3.0 are read at the tag and run as
they are: ReaLModelBlock, VocabPositionEmbedding and the heads (realhf/impl/model/nn/real_llm_base.py with impl/model/modules and
impl/model/parallelism/tensor_parallel), TrainSchedule, TensorBuffer and the instructions of a stage (impl/model/backend/pipe_runner.py),
gather_packed_shifted_log_probs (impl/model/utils/functional.py) and partition_pipeline_layers (impl/model/nn/real_llm_parallel.py). Around
them stand the loops that need a cluster: ReaLModel.__forward, the step of impl/model/backend/megatron.py with the hook that adds a
gradient to Megatron's buffer and drops it, and stand-ins for constants, p2p, flash-attention (its saved tensors and results, nothing
inside) and Apex's fused gradient. Tensors are fake CPU ones, collectives those of PyTorch's fake process group, whose ranks allocate
nothing. Without tensor parallelism gather_logprobs goes through torch.compile: inductor writes its program for an H100.

A line of a stage: the settings; `forward` and `backward`, the highest levels of a step above what stays from step to step, `stays` (rotary
tables and the gather buffer) and `parameters`. A line of a partition: its arguments and the layers of every stage, the embedding and the
head counted as one each.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import gc
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from execute import ROOT, Row, Storages
from inductor_program import Inductor
from row_lines import write_rows
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.activations import ACT2FN  # before flash-attention has a stand-in

TAG = "v0.3.0"
assert "silu" in ACT2FN
WORLD: dict[str, Any] = {}  # what `constants` says

SMALL = {"hidden": 512, "heads": 8, "kv": 2, "head": 64, "ffn": 1408, "vocab": 4096, "layers": 8, "bias": True, "qk_norm": False}
TIED = SMALL | {"tied": True}
QWEN3 = SMALL | {"bias": False, "qk_norm": True, "head": 128, "hidden": 1024}
LLAMA = SMALL | {"bias": False, "kv": 8, "vocab": 8192}
# model, tensor, stages, stage, more
STAGES: list[tuple[Row, int, int, int, Row]] = [
    *((model, t, 1, 0, {}) for model in (SMALL, TIED, QWEN3, LLAMA) for t in (1, 2)),
    *((model, t, 4, stage, {}) for model in (SMALL, QWEN3) for t in (1, 2) for stage in (0, 1, 3)),
    *((LLAMA, t, 2, stage, {}) for t in (1, 4) for stage in (0, 1)),
    *((SMALL, t, 1, 0, {"asks": asks}) for t in (1, 2) for asks in ("sft", "critic")),
    *((SMALL, t, 2, 1, {"asks": asks}) for t in (1, 2) for asks in ("actor", "sft", "critic", "log_probs")),
    *((SMALL, t, p, 0, {"asks": "log_probs"}) for t in (1, 2) for p in (1, 2)),
    *((model, t, 1, 0, {"checkpoints": False}) for model in (SMALL, QWEN3) for t in (1, 2)),
    (SMALL, 2, 2, 1, {"tokens": 2047}),
]
PARTITIONS = [(layers, hidden, ffn, heads, kv, head, vocab, bias, qk, stages)
              for layers, hidden, ffn, heads, kv, head, vocab, bias, qk in [
                  (28, 1536, 8960, 12, 2, 128, 151936, True, False), (28, 3584, 18944, 28, 4, 128, 152064, True, False),
                  (64, 5120, 27648, 40, 8, 128, 152064, True, False), (36, 4096, 12288, 32, 8, 128, 151936, False, True),
                  (40, 5120, 17408, 40, 8, 128, 151936, False, True)] for stages in (1, 2, 4, 8)]


class Lives(Storages):
    @classmethod
    def is_infra_mode(cls) -> bool:
        """Dynamo leaves everything alone under any other mode."""
        return True


class Nowhere:
    highest = live = 0

    def __enter__(self) -> Nowhere:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def own(self, _: torch.Tensor) -> int:
        return 0


def stand_in(name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]
    for key, value in names.items():
        setattr(module, key, value)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            stand_in(parent)
        setattr(sys.modules[parent], last, module)
    return module


class Flash(torch.autograd.Function):
    """flash_attn_varlen_func 2: saves its arguments, the output, the log-sum-exp, the offsets and the state of the generator."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        out = q.new_empty(q.shape)
        lse = q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse, offsets)
        return out

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        q, k, v, *_rest = ctx.saved_tensors
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), None


class Buffers:
    """GlobalMemoryBuffer."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def get_tensor(self, shape: list[int], dtype: torch.dtype, name: str) -> torch.Tensor:
        size = 1
        for one in shape:
            size *= one
        if name not in self.kept:
            self.kept[name] = torch.empty(size, dtype=dtype)
        return self.kept[name][:size].view(*shape)


class Code:
    def __init__(self, areal: Path, folder: Path, inductor: Inductor) -> None:
        self.areal, self.folder = areal, folder
        says = lambda key: lambda *_a: WORLD[key]  # noqa: E731
        names = {f"{axis}_parallel_world_size": says(axis) for axis in ("tensor", "pipe", "data")}
        names |= {"tensor_parallel_rank": lambda: 0, "pipe_parallel_rank": says("stage"), "sequence_parallel": says("sequence")}
        names |= {"tensor_parallel_group": lambda: dist.group.WORLD, "data_parallel_group": lambda: dist.group.WORLD}
        names |= {"is_last_pipe_stage": lambda: WORLD["stage"] == WORLD["pipe"] - 1, "is_first_pipe_stage": lambda: WORLD["stage"] == 0}
        names |= {"gradient_checkpointing": says("checkpoints"), "gradient_accumulation_fusion": says("fused")}
        names |= {"get_global_memory_buffer": says("buffers"), "use_te_impl": lambda: False, "current_device": lambda: "cpu"}
        names |= {"prev_pipe_stage": lambda: 0, "next_pipe_stage": lambda: 0, "use_cuda": lambda: False}
        constants = stand_in("realhf.base.constants", **names)
        log = stand_in("realhf.base.logging", getLogger=lambda *_: types.SimpleNamespace(debug=lambda *_: None, warning=lambda *_: None))
        stand_in("realhf.base", constants=constants, logging=log)
        stand_in("realhf.base.constants", **names)
        sys.modules["realhf.base"].constants = sys.modules["realhf.base.constants"]  # type: ignore[attr-defined]
        stand_in("realhf.base.logging", **vars(log))
        stand_in("einops", rearrange=None, repeat=None)
        stand_in("flash_attn", flash_attn_func=None, flash_attn_with_kvcache=None,
                 flash_attn_varlen_func=lambda q, k, v, offsets, *_a, **_k: Flash.apply(q, k, v, offsets))
        stand_in("fused_weight_gradient_mlp_cuda", wgrad_gemm_accum_fp32=lambda *_: None, wgrad_gemm_accum_fp16=lambda *_: None)
        stand_in("realhf.impl.model.utils.padding", pad_input=None, unpad_input=None)
        stand_in("realhf.impl.model.utils.random", _initialize_affine_weight_gpu=lambda *_a, **_k: None)
        model_api = stand_in("realhf.api.core.model_api", Optional=None)
        stand_in("realhf.api.core", model_api=model_api)
        sys.modules["realhf.api.core"].model_api = model_api  # type: ignore[attr-defined]
        text = self.source("realhf/api/core/model_api.py")
        wanted = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name in ("ReaLMoEConfig", "ReaLModelConfig")]
        space = {"dataclasses": dataclasses, "torch": torch, "__name__": "realhf.api.core.model_api"}
        exec("from typing import *\n" + "\n".join(ast.unparse(node) for node in wanted), space)
        for node in wanted:
            setattr(model_api, node.name, space[node.name])
        self.config = space["ReaLModelConfig"]
        real = torch.compile
        torch.compile = lambda fn=None, **_: real(fn, backend=inductor, fullgraph=True) if fn else (lambda f: f)  # type: ignore
        self.functional = self.load("realhf.impl.model.utils.functional")
        compiled = torch.compile(self.functional._gather_logprobs)
        self.functional.gather_logprobs = lambda logits, labels: compiled(logits, labels)
        torch.compile = real
        parallel = "realhf.impl.model.parallelism.tensor_parallel"
        for name in ("utils", "mappings", "modules"):
            self.load(f"{parallel}.{name}")
        modules = stand_in("realhf.impl.model.modules")
        for name in ("activations", "rotary", "embedding", "mlp", "attn"):
            module = self.load(f"realhf.impl.model.modules.{name}")
            for key, value in vars(module).items():
                if not key.startswith("__"):
                    setattr(modules, key, value)
        modules.LayerNormMoELayer = None  # type: ignore[attr-defined]
        self.base = self.load("realhf.impl.model.nn.real_llm_base")
        schedule = "realhf.impl.model.parallelism.pipeline_parallel"
        p2p = stand_in(f"{schedule}.p2p", send=lambda *_a, **_k: None, recv=lambda *_a, **_k: None)
        self.load(f"{schedule}.instruction")
        self.schedule = self.load(f"{schedule}.static_schedule")
        self.storage = self.load(f"{schedule}.tensor_storage")
        runner = self.source("realhf/impl/model/backend/pipe_runner.py")
        kept = ("_zero_grads", "PipeInferenceInstrSet", "PipeTrainForwardCommInstrSet")
        nodes = [n for n in ast.parse(runner).body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name in kept]
        space = {"dataclasses": dataclasses, "torch": torch, "constants": sys.modules["realhf.base.constants"], "p2p": p2p}
        space |= {"schedule": self.schedule, "PipeTransferData": self.base.PipeTransferData, "SequenceSample": object}
        space |= {"ReaLModel": object, "TensorBuffer": self.storage.TensorBuffer, "__name__": "pipe_runner"}
        exec("from __future__ import annotations\n" + "\n".join(ast.unparse(node) for node in nodes), space)
        self.train, self.inference = space["PipeTrainForwardCommInstrSet"], space["PipeInferenceInstrSet"]

    def source(self, path: str) -> str:
        done = subprocess.run(["git", "-C", str(self.areal), "show", f"{TAG}:{path}"], check=True, capture_output=True, text=True)
        return done.stdout

    def load(self, dotted: str) -> Any:
        text = self.source(dotted.replace(".", "/") + ".py").replace('str(q.device) == "cpu"', "False")
        text = re.sub(r"^@torch.jit.script\n", "", text, flags=re.MULTILINE)
        path = self.folder / f"{dotted}.py"
        path.write_text(text, encoding="utf-8")
        module = stand_in(dotted)
        module.__file__ = str(path)
        module.__package__ = dotted.rpartition(".")[0]
        exec(compile(text, str(path), "exec"), module.__dict__)
        return module


def configuration(code: Code, row: Row) -> Any:
    return code.config(
        n_layers=row["layers"], n_kv_heads=row["kv"], n_q_heads=row["heads"], hidden_dim=row["hidden"], intermediate_dim=row["ffn"],
        vocab_size=row["vocab"], n_positions=1 << 20, head_dim=row["head"], embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0,
        activation_function="silu", scale_attn_by_inverse_layer_idx=False, use_attention_bias=row["bias"], use_attn_proj_bias=False,
        layer_norm_type="rms", mlp_type="llama", apply_rotary=True, tied_embedding=row.get("tied", False), qk_layernorm=row["qk_norm"],
        is_critic=row.get("asks") == "critic")


def build(code: Code, config: Any, span: tuple[int, int]) -> nn.ModuleList:
    """ReaLModel._build_layer and _sync_embedding_and_output_weights."""
    base, layers = code.base, []
    kind = {"dtype": torch.float16, "device": "cpu"}
    for i in range(*span):
        if i == 0:
            layers.append(base.VocabPositionEmbedding(config, **kind))
        elif i <= config.n_layers:
            layers.append(base.ReaLModelBlock(config=config, layer_index=i - 1, output_layernorm=i == config.n_layers, **kind))
        elif config.is_critic and WORLD["sequence"]:
            layers.append(base.SequenceParallelCriticHead(config.hidden_dim, 1, bias=False, **kind))
        elif not config.is_critic and WORLD["tensor"] > 1:
            fused = WORLD["fused"]
            layers.append(base.ParallelActorHead(config.hidden_dim, config.vocab_size, bias=False, gradient_accumulation_fusion=fused, **kind))
        else:
            layers.append(base.OutputHead(config.hidden_dim, 1 if config.is_critic else config.vocab_size, bias=False, **kind))
    if config.tied_embedding and not config.is_critic and WORLD["pipe"] == 1:
        layers[-1].weight = layers[0].wte.weight
    out = nn.ModuleList(layers)
    return out


def prepare(layers: nn.ModuleList, storages: Any) -> int:
    """Megatron's buffers: gradients are added to main_grad and dropped by a hook."""
    count = 0
    for p in layers.parameters():
        storages.own(p)
        p.main_grad = torch.empty(p.shape, dtype=torch.float32)  # type: ignore[attr-defined]
        storages.own(p.main_grad)
        p.grad_added_to_main_grad = False  # type: ignore[attr-defined]
        p.register_post_accumulate_grad_hook(lambda q: setattr(q, "grad", None))
        count += p.numel()
    for b in layers.buffers():
        storages.own(b)
    return count


def loss_of(code: Code, asks: str, logits: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """_ppo_actor_loss_from_model_outputs and compute_packed_sft_loss (interface/{ppo,sft}_interface.py) up to sums of rows; what is
    compiled of them, the entropy, makes rows alone. A critic's: interface/ppo_interface.py, _ppo_critic_loss_from_model_outputs."""
    if asks == "critic":
        values = logits.squeeze(-1).float()
        return values.mean()
    if asks == "actor":
        logits /= 1.0
    logprobs = code.functional.gather_packed_shifted_log_probs(logits, offsets, ids).float()
    lowest, highest = logits.detach().min(-1).values.float(), logits.detach().max(-1).values.float()
    del lowest, highest
    return logprobs.mean()


def forward(layers: nn.ModuleList, x: Any, ys: list[Any]) -> tuple[Any, list[Any]]:
    """ReaLModel.__forward."""
    raw_pp_input = x.pp_input
    for _i, (layer, y) in enumerate(zip(layers, ys, strict=True)):
        x = layer(x, y)
        x.pp_input = x.pp_output
    x.pp_input = raw_pp_input
    return x, ys


class Stage:
    """What the instructions see as the model."""

    def __init__(self, layers: nn.ModuleList, config: Any) -> None:
        self.layers, self.config, self.device, self.dtype = layers, config, torch.device("cpu"), torch.float16

    def forward(self, x: Any, ys: list[Any]) -> tuple[Any, list[Any]]:
        return forward(self.layers, x, ys)


def inputs(code: Code, layers: nn.ModuleList, ids: torch.Tensor, offsets: torch.Tensor, longest: int) -> tuple[Any, list[Any]]:
    x = code.base.PipeTransferData(cu_seqlens=offsets, max_seqlen=longest, store_kv_cache=False)
    return x, [code.base.PipeCacheData(packed_input_ids=ids if i == 0 else None) for i in range(len(layers))]


def without_stages(code: Code, row: Row, layers: nn.ModuleList, batches: list[Any], told: Any) -> None:
    """ReaLMegatronEngine.train_batch, and PipelinableInferenceEngine.forward."""
    for ids, offsets, longest in batches:
        x, ys = inputs(code, layers, ids, offsets, longest)
        told("forward")
        x, ys = forward(layers, x, ys)
        logits = x.pp_output
        del x, ys
        pad = row["padding"]
        if pad:
            logits = logits[:-pad]
        if row["asks"] == "log_probs":
            logits /= 1.0
            logits = code.functional.gather_packed_shifted_log_probs(logits, offsets, ids[: len(ids) - pad])
            continue
        loss = loss_of(code, row["asks"], logits, ids[: len(ids) - pad], offsets)
        loss *= 1.0
        told("backward")
        loss.backward()


def with_stages(code: Code, row: Row, stage: Stage, batches: list[Any], told: Any) -> None:
    buffer = code.storage.TensorBuffer()
    infer = row["asks"] == "log_probs"
    for i, (ids, offsets, longest) in enumerate(batches):
        x, ys = inputs(code, stage.layers, ids, offsets, longest)
        buffer.put("batch_input_x", i, x)
        buffer.put("batch_input_ys", i, ys)
        rows = len(ids) // WORLD["tensor"] if WORLD["sequence"] else len(ids)
        buffer.put("mb_seq_lens", i, rows)
        buffer.put("pipe_transfer_infos", i, {"cu_seqlens": offsets, "max_seqlen": longest, "store_kv_cache": False})
        buffer.put("pad_size", i, row["padding"])
        buffer.put("input_cache", i, (ids[: len(ids) - row["padding"]], offsets))
        buffer.put("loss_scale", i, 1.0)

        def asked(logits: torch.Tensor, given: Any) -> torch.Tensor:
            if infer:
                logits /= 1.0
                return code.functional.gather_packed_shifted_log_probs(logits, given[1], given[0])  # type: ignore[no-any-return]
            return loss_of(code, row["asks"], logits, *given)

        buffer.put("post_hook" if infer else "loss_fn", i, asked)
    x = ys = ids = offsets = None
    kind = code.schedule.InferenceSchedule if infer else code.schedule.TrainSchedule
    plan = kind(micro_batches=len(batches), stages=WORLD["pipe"], stage_id=WORLD["stage"])

    def backward(stage: Stage, buffer: Any, number: int, micro: int, step: int) -> None:
        """PipeTrainInstrSetForMegatron._exec_backward_pass."""
        output_x = buffer.get("batch_output_x", micro, remove=True)
        if WORLD["stage"] == WORLD["pipe"] - 1:
            loss = buffer.get("losses", micro, remove=True)
            loss.backward()
            buffer.put("losses", micro, loss.detach().clone())
            return
        grad = buffer.get("grad", micro, remove=True)
        output_tensor = output_x.pp_output
        torch.autograd.backward(tensors=output_tensor, grad_tensors=grad)

    known = {**(code.inference if infer else code.train).INSTRUCTION_MAP, code.schedule.BackwardPass: backward}
    for _step, _micro, commands in plan:
        for command in commands:
            name = type(command).__name__
            if name in ("ReduceGrads", "OptimizerStep"):
                continue
            if name in ("ForwardPass", "RecvActivation"):
                told("forward")
            elif name in ("BackwardPass", "RecvGrad"):
                told("backward")
            known[type(command)](stage, buffer, *command.args)


def play(code: Code, row: Row, storages: Any) -> Row:
    WORLD["buffers"] = Buffers()
    config = configuration(code, row)
    layers = build(code, config, tuple(row["span"]))
    out: Row = {"parameters": prepare(layers, storages)}
    layers.train(row["asks"] != "log_probs")
    whole = row["tokens"] + row["padding"]
    highest = {"forward": 0, "backward": 0}
    state = {"now": "forward"}

    def told(what: str) -> None:
        highest[state["now"]] = max(highest[state["now"]], storages.highest)
        storages.highest = storages.live
        state["now"] = what

    with storages:
        count = WORLD["pipe"] - WORLD["stage"] + 2 if WORLD["pipe"] > 1 else 2
        lengths = [row["tokens"] // 2, row["tokens"] - row["tokens"] // 2]
        offsets = torch.empty(3 + (1 if row["padding"] else 0), dtype=torch.int32)
        batches = [(torch.empty(whole, dtype=torch.int64), offsets, max(lengths)) for _ in range(count)]
        grad = row["asks"] != "log_probs"
        with torch.set_grad_enabled(grad):
            for again in (False, True):  # tables and buffers are there in the second step
                if again:
                    gc.collect()
                    out["stays"] = storages.live
                    storages.highest = storages.live
                    highest = {"forward": 0, "backward": 0}
                    state["now"] = "forward"
                if WORLD["pipe"] > 1:
                    with_stages(code, row, Stage(layers, config), batches, told)
                else:
                    without_stages(code, row, layers, batches, told)
                told("forward")
        for name in ("forward", "backward") if grad else ("forward",):
            out[name] = highest[name] - out["stays"]
    return out


def pieces(text: str, names: tuple[str, ...]) -> str:
    """Functions, classes and lists of a module, by name."""
    kept = []
    for node in ast.parse(text).body:
        own = {getattr(node, "name", "")} | {getattr(t, "id", "") for t in getattr(node, "targets", [])}
        if own & set(names):
            kept.append(ast.unparse(node))
    return "from __future__ import annotations\n" + "\n".join(kept)


def spans_of(code: Code, row: Row) -> list[list[int]]:
    """Layers of every stage: from, to; the embedding is number 0."""
    parallel = code.source("realhf/impl/model/nn/real_llm_parallel.py")
    space: dict[str, Any] = {"np": numpy, "numba": types.SimpleNamespace(njit=lambda f: f)}
    exec(pieces(code.source("realhf/base/datapack.py"), ("partition_balanced",)), space)
    space |= {"datapack": types.SimpleNamespace(partition_balanced=space["partition_balanced"])}
    space |= {"ReaLModelParamKeys": code.base.ReaLModelParamKeys}
    names = ("COLUMN_LINEAR_KEYS", "ROW_LINEAR_KEYS", "get_real_model_param_shape", "ReaLModelParamCount", "partition_pipeline_layers")
    exec(pieces(parallel, names), space)
    parts = space["partition_pipeline_layers"](configuration(code, row), row["pipe"])
    return [[int(parts[s][0]), int(parts[s][1])] for s in range(row["pipe"])]


def execute(code: Code, row: Row) -> Row:
    WORLD.update(tensor=row["tensor"], pipe=row["pipe"], data=1, stage=row["stage"], checkpoints=row["checkpoints"])
    WORLD.update(sequence=row["tensor"] > 1, fused=row["tensor"] > 1)
    row = row | {"span": spans_of(code, row)[row["stage"]]}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=row["tensor"])
    torch._dynamo.reset()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    gc.collect()
    gc.disable()
    try:
        with fake:
            if row["tensor"] == 1:  # Dynamo compiles where no other mode is on
                play(code, row, Nowhere())
                gc.collect()
            return row | play(code, row, Lives())
    finally:
        gc.enable()
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areal", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_realhf.jsonl")
    options = parser.parse_args()
    by = f"torch {torch.__version__.split('+')[0]}, AReaL {TAG.removeprefix('v')} (realhf) executed on fake tensors"
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        code = Code(options.areal, Path(folder), Inductor())
        for model, tensor, pipe, stage, more in STAGES:
            row = {"tokens": 2048, "asks": "actor", "checkpoints": True, **model, "tensor": tensor, "pipe": pipe, "stage": stage, **more}
            row["padding"] = -row["tokens"] % tensor if tensor > 1 else 0
            lines.append(execute(code, row) | {"source": by})
            print({k: v for k, v in lines[-1].items() if k not in ("source", "bias", "ffn")}, flush=True)
        for layers, hidden, ffn, heads, kv, head, vocab, bias, qk, stages in PARTITIONS:
            row = {"layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "kv": kv, "head": head, "vocab": vocab}
            row |= {"bias": bias, "qk_norm": qk, "pipe": stages}
            lines.append(row | {"spans": spans_of(code, row), "source": by})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
