"""Makes tests/data/executed_megatron_offload.jsonl: Megatron-core's optimizer on the host, executed by megatron-core itself.

    PYTHONPATH=MEGATRON_CORE python benchmarks/oracle/execute_megatron_offload.py [--output tests/data/executed_megatron_offload.jsonl]

Needs torch and megatron-core 0.16.1 (its source is enough); no GPU. Its own DistributedDataParallel (flat buffers, buckets),
DistributedOptimizer and HybridDeviceOptimizer run on fake CUDA tensors, as one rank of PyTorch's fake process group. The model is
its parameters: those of GPTModel with Transformer Engine's specification, in the order in which its modules register them. What
is replaced: streams and pinning, which a build without CUDA lacks, and Transformer Engine's FusedAdam, by an optimizer that
allocates what its initialize_state does (fp32 states; pytorch/optimizers/fused_adam.py, 2.11).

A line: {"id", "config", "fields", "job", "rank", ...} and in bytes, of rank `rank`: `masters` and `states` on the GPU,
`copies`: of whole parameters, which the optimizer made first and which go once it has been made again for its share,
`wide_gradients`: fp32 copies of 16-bit gradients that stay, `transient`: what a step allocates beyond what stays;
`host`: masters, states and gradients on the host, `host_copies`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import weakref
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]

DENSE: Row = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
EXPERTS: Row = {
    **DENSE,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
# config, data ranks, the rank, settings
RUNS: list[tuple[str, int, int, Row]] = [
    *(("dense", 4, rank, {"optimizer_offload_fraction": f}) for f in (0, 0.25, 0.5, 0.75, 1) for rank in (0, 1, 3)),
    *(("dense", 4, 1, {"optimizer_offload_fraction": f, "overlap_grad_reduce": True}) for f in (0.25, 0.6)),
    *(("dense", 4, 1, {"optimizer_offload_fraction": f, "precision_aware_optimizer": False}) for f in (0, 0.25, 1)),
    *(("dense", 4, 1, {"optimizer_offload_fraction": f, "precision": {"reduce": "bf16"}}) for f in (0, 0.5, 1)),
    ("dense", 4, 1, {"optimizer_offload_fraction": 0.5, "precision": {"reduce": "bf16"}, "precision_aware_optimizer": False}),
    ("dense", 1, 0, {"optimizer_offload_fraction": 0.3}),
    ("dense", 64, 5, {"optimizer_offload_fraction": 0.3}),
    *(("experts", 4, rank, {"optimizer_offload_fraction": f}) for f in (0.3, 0.8) for rank in (0, 3)),
    ("experts", 4, 2, {"optimizer_offload_fraction": 1.0}),
]


def parameters_of(config: Row) -> list[tuple[str, tuple[int, ...]]]:
    """In the order of named_parameters(). Names that hold "experts." are those of one expert-parallel rank."""
    hidden, heads, groups, width = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    rows = -(-config["vocab_size"] // 128) * 128
    out: list[tuple[str, tuple[int, ...]]] = [("embedding.word_embeddings.weight", (rows, hidden))]
    for layer in range(config["num_hidden_layers"]):
        at = f"decoder.layers.{layer}."
        out += [
            (at + "self_attention.linear_proj.weight", (hidden, heads * width)),
            (at + "self_attention.linear_qkv.layer_norm_weight", (hidden,)),
            (at + "self_attention.linear_qkv.weight", ((heads + 2 * groups) * width, hidden)),
        ]
        if config["model_type"].startswith("qwen3"):
            out += [(at + f"self_attention.{name}_layernorm.weight", (width,)) for name in "qk"]
        if "num_experts" in config:
            inner = config["moe_intermediate_size"]
            out += [(at + "pre_mlp_layernorm.weight", (hidden,)), (at + "mlp.router.weight", (config["num_experts"], hidden))]
            out += [(f"{at}mlp.experts.linear_fc1.weight{e}", (2 * inner, hidden)) for e in range(config["num_experts"])]
            out += [(f"{at}mlp.experts.linear_fc2.weight{e}", (hidden, inner)) for e in range(config["num_experts"])]
            continue
        inner = config["intermediate_size"]
        out += [
            (at + "mlp.linear_fc1.layer_norm_weight", (hidden,)),
            (at + "mlp.linear_fc1.weight", (2 * inner, hidden)),
            (at + "mlp.linear_fc2.weight", (hidden, inner)),
        ]
    return [*out, ("decoder.final_layernorm.weight", (hidden,)), ("output_layer.weight", (rows, hidden))]


def guard() -> None:
    """A device guard for CUDA that does nothing: operators ask for one even where tensors are fake."""
    import ctypes
    import tempfile

    import torch

    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
        source.write_text(
            "#include <c10/core/impl/DeviceGuardImplInterface.h>\n"
            "C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>);\n",
            encoding="utf-8",
        )
        command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", "-o", str(library), str(source)]
        subprocess.run([*command, f"-L{root / 'lib'}", "-lc10"], check=True)
        ctypes.CDLL(str(library))


def without_cuda() -> None:
    """Streams, pinning and the current device, as far as the optimizer asks for them."""
    import torch

    class Stream:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def wait_stream(self, _other: Any) -> None: ...
        def wait(self, _other: Any = None) -> None: ...
        def synchronize(self) -> None: ...
        def record_event(self) -> Stream:
            return self

    torch.cuda.Stream = Stream  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: Stream()  # type: ignore[assignment,return-value]
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()  # type: ignore[assignment]
    torch.cuda.current_device = lambda: torch.device("cuda:0")  # type: ignore[assignment,return-value]
    torch.distributed.all_gather_object = lambda out, own, *_, **__: out.__setitem__(slice(None), [own] * len(out))
    torch.Tensor.pin_memory = lambda self, *_: self.clone()  # type: ignore[assignment,method-assign]
    empty = torch.empty

    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return empty(*args, **kwargs)

    torch.empty = unpinned  # type: ignore[assignment]


def fused_adam() -> Any:
    import torch

    class FusedAdam(torch.optim.Optimizer):
        def __init__(self, params: Any, **_: Any) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    for name in ("exp_avg", "exp_avg_sq"):
                        if name not in self.state[p]:
                            self.state[p][name] = torch.zeros_like(p, dtype=torch.float32)

    return FusedAdam


def lives() -> Any:
    """Bytes that live on the GPU and on the host."""
    from execute import Storages

    class Lives(Storages):
        def __init__(self) -> None:
            super().__init__()
            self.at = {"cuda": 0, "cpu": 0}
            self.top = dict(self.at)

        def born(self, tensor: Any) -> None:
            storage = tensor.untyped_storage()
            if storage._cdata in self.known or tensor.numel() <= 1:
                return
            kind, bytes_ = tensor.device.type, int(storage.nbytes())
            self.known[storage._cdata] = {"device": kind}, bytes_
            self.at[kind] += bytes_
            self.top[kind] = max(self.top[kind], self.at[kind])
            weakref.finalize(storage, self.died, storage._cdata)

        def died(self, key: int) -> None:
            made, bytes_ = self.known.pop(key)
            self.at[made["device"]] -= bytes_

        def restart(self) -> None:
            self.top = dict(self.at)

    return Lives()


def build(config: Row, settings: Row) -> tuple[Any, Any, Any]:
    import megatron.core.optimizer as made
    import megatron.core.optimizer.optimizer_config as checks
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    checks.is_te_min_version = lambda *_, **__: True
    made.Adam = fused_adam()
    made.CPUAdam = torch.optim.AdamW
    transformer = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4, bf16=True)

    class Parameters(MegatronModule):
        def __init__(self) -> None:
            super().__init__(transformer)
            for name, shape in parameters_of(config):
                parameter = torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16, device="cuda"))
                if "experts." in name:
                    parameter.allreduce = False  # type: ignore[attr-defined]
                self.register_parameter(name.replace(".", "_"), parameter)

    reduce = settings.get("precision", {}).get("reduce", "fp32")
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=reduce == "fp32",
        use_distributed_optimizer=True,
        overlap_grad_reduce=settings.get("overlap_grad_reduce", False),
    )
    model = DistributedDataParallel(transformer, ddp, Parameters())
    gc.collect()
    optimizer = OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=True,
        use_precision_aware_optimizer=settings.get("precision_aware_optimizer", True),
        main_grads_dtype=torch.float32
        if reduce == "fp32" or not settings.get("precision_aware_optimizer", True)
        else torch.bfloat16,
        optimizer_cpu_offload=True,
        optimizer_offload_fraction=settings["optimizer_offload_fraction"],
        overlap_cpu_optimizer_d2h_h2d=True,
        clip_grad=0.0,
    )
    return model, optimizer, made


def steps(lives: Any, model: Any, config: Any, made: Any) -> Row:
    lives.restart()
    before = dict(lives.at)
    gc.disable()
    optimizer = made.get_megatron_optimizer(config, [model], use_gloo_process_groups=False)
    with_copies = dict(lives.at)
    gc.enable()
    gc.collect()
    built = dict(lives.at)
    peaks: list[dict[str, int]] = []
    ends: list[dict[str, int]] = []
    for _ in range(3):
        lives.restart()
        for one in getattr(optimizer, "chained_optimizers", [optimizer]):
            one._copy_model_grads_to_main_grads()
            one.optimizer.step()
            one._copy_main_params_to_model_params()
        peaks.append(dict(lives.top))
        gc.collect()
        ends.append(dict(lives.at))
        optimizer.zero_grad()
    cleared = dict(lives.at)
    return {
        "masters": built["cuda"] - before["cuda"],
        "copies": with_copies["cuda"] - built["cuda"],
        "after_step": ends[-1]["cuda"] - built["cuda"],
        "after_zero_grad": cleared["cuda"] - built["cuda"],
        "transient": peaks[-1]["cuda"] - ends[-1]["cuda"],
        "host": ends[-1]["cpu"] - before["cpu"],
        "host_built": built["cpu"] - before["cpu"],
        "host_copies": with_copies["cpu"] - built["cpu"],
    }


def execute(name: str, ranks: int, rank: int, settings: Row) -> Row:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    config = {"dense": DENSE, "experts": EXPERTS}[name]
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    followed = lives()
    with FakeTensorMode(allow_non_fake_inputs=True), followed:
        figures = steps(followed, *build(config, settings))
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    words = "/".join(f"{key}={value}" for key, value in settings.items())
    trainer = {
        "engine": "megatron",
        "layout": f"d{ranks}",
        "sequences_per_micro_batch": 1,
        "sequence_tokens": 128,
        "micro_batches": 1,
        "optimizer_cpu_offload": True,
        **{"precision_aware_optimizer": True, **settings},
    }
    job = {"framework": "torch", "model": config["model_type"], "trainer": trainer}
    return {"id": f"{name}/d{ranks}/rank{rank}/{words}", "config": name, "fields": config, "job": job, "rank": rank, **figures}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_offload.jsonl")
    given = parser.parse_args()
    guard()
    without_cuda()
    with given.output.open("w", encoding="utf-8") as out:
        for run in RUNS:
            out.write(json.dumps(execute(*run), separators=(",", ":")) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
