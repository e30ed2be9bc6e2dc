"""Makes tests/data/executed_offload.jsonl: training steps whose saved variables lie on the host, executed by PyTorch.

    python benchmarks/oracle/execute_offload.py VERL [--output tests/data/executed_offload.jsonl]

VERL is a clone of volcengine/verl (b178a3cd): its own verl/utils/activation_offload.py runs, under FSDP1's own code
(execute_fsdp1.py). torch's save_on_cpu, around the model and (offload_wrapper) around each layer, runs on one device and there. Tensors are those of
the meta device; copies on the host are stand-ins that hold shapes and count bytes, addresses are numbers of storages. What the copy of
a tensor that is not one block takes on the device is made too, where save_on_cpu pins memory. Lines are those of execute.py, with
the highest level of the host. Needs peft for the rows with LoRA.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import execute_fsdp1
import execute_parallel
import torch
import transformers
import transformers.masking_utils
from execute import RANK, ROOT, SMALL, Row, Storages, half_to_float, job_of, make_model
from row_lines import write_rows
from torch.distributed.fsdp import FSDPModule

TOKENS = 256
NARROW: Row = {"num_hidden_layers": 6, "vocab_size": 1024}
CONFIGS: dict[str, Row] = {
    "llama, 6 layers": {"model_type": "llama", **SMALL, **NARROW},
    "qwen3, 5 layers": {"model_type": "qwen3", **SMALL, **NARROW, "num_hidden_layers": 5, "head_dim": 64},
    "gpt_neox, 6 layers": {"model_type": "gpt_neox", **SMALL, **NARROW, "use_parallel_residual": False},
    "gpt2, 6 layers": {
        "model_type": "gpt2",
        **{"n_embd": 512, "n_layer": 6, "n_head": 8, "vocab_size": 1024, "n_positions": 4096},
        **{"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0},  # without a device masks are not boolean
    },
    "glm4, 6 layers": {"model_type": "glm4", **SMALL, **NARROW, "head_dim": 64, "pad_token_id": 0},
    "gemma2, 6 layers": {
        "model_type": "gemma2",
        **SMALL,
        **NARROW,
        "head_dim": 64,
        "sliding_window": 128,
        "query_pre_attn_scalar": 64,
    },
    "mixtral, 5 layers": {
        "model_type": "mixtral",
        **SMALL,
        **NARROW,
        "num_hidden_layers": 5,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "llama, large vocabulary": {"model_type": "llama", **SMALL, "num_hidden_layers": 6, "vocab_size": 32768},
    "llama, 3 layers": {"model_type": "llama", **SMALL, **NARROW, "num_hidden_layers": 3},
}


class Host:
    """Copies on the host: their bytes, now and at most."""

    def __init__(self) -> None:
        self.live = self.highest = 0

    def take(self, tensor: torch.Tensor) -> Copy:
        copy = Copy(tensor)
        self.live += copy.bytes
        self.highest = max(self.highest, self.live)
        weakref.finalize(copy, self.drop, copy.bytes)
        return copy

    def drop(self, bytes_: int) -> None:
        self.live -= bytes_


class Copy:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.bytes = tensor.numel() * tensor.element_size()

    def back(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


host = Host()


# ---- torch.autograd.graph.save_on_cpu


@contextlib.contextmanager
def save_on_cpu(pinned: bool) -> Iterator[None]:
    def leave(tensor: torch.Tensor) -> Copy:
        if pinned and not tensor.is_contiguous():
            torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        return host.take(tensor)

    with torch.autograd.graph.saved_tensors_hooks(leave, Copy.back):
        yield


def around(module: Any, pinned: bool = True) -> None:
    """torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py: OffloadWrapper.forward."""
    forward = module.forward

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with save_on_cpu(pinned):
            return forward(*args, **kwargs)

    module.forward = wrapped


def one_device(config: Row, how: str, sequences: int, recompute: str, attention: str, adapters: bool = False) -> tuple[Row, int]:
    model: Any = make_model(config, False, False, attention)
    if adapters:
        import peft

        with torch.device("meta"):
            model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules="all-linear"))
    if recompute != "none":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": recompute == "reentrant"})
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    if how == "offload_wrapper":
        for layer in layers:
            around(layer)
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    host.highest = host.live = 0
    with storages:
        ids = torch.empty(sequences, TOKENS, dtype=torch.int64, device="meta")
        labels = torch.empty_like(ids)
        whole = how in ("save_on_cpu", "save_on_cpu_pinned")
        with save_on_cpu(how == "save_on_cpu_pinned") if whole else contextlib.nullcontext():
            loss = model(input_ids=ids, labels=labels).loss
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    return {"forward": resident + forward, "backward": resident + storages.highest}, host.highest


HOW = ("save_on_cpu", "save_on_cpu_pinned", "offload_wrapper")


def torch_rows() -> Iterator[Row]:
    for name, config in CONFIGS.items():
        for how in HOW:
            for sequences, recompute, attention in (
                (1, "none", "eager"),
                (2, "none", "sdpa"),
                (1, "nonreentrant", "eager"),
                (1, "reentrant", "sdpa"),
            ):
                if config["model_type"] == "gemma2" and attention == "sdpa":
                    continue
                if recompute != "none" and (how == "offload_wrapper" or config["model_type"] == "gpt2"):
                    continue  # GPT-2 gives its checkpoints the mask by position: saved too, which is refused
                job = job_of(sequences, TOKENS, recompute != "none")
                job["trainer"] |= {
                    "offload_activations": how,
                    "reentrant": recompute == "reentrant",
                    "kernels": f"hf_{attention}",
                }
                row = {"id": f"{name}/{how}/b{sequences}/{attention}/{recompute}", "config": name, "job": job}
                peaks, highest = one_device(config, how, sequences, recompute, attention)
                yield row | {"peaks": peaks, "host": highest}


def adapted_rows() -> Iterator[Row]:
    """LoRA: every linear layer saves its frozen weight for the gradient of its input."""
    name = "llama, 6 layers"
    for how in HOW:
        job = job_of(1, TOKENS, False)
        job["trainer"] |= {"offload_activations": how, "lora": {"rank": RANK}}
        peaks, highest = one_device(CONFIGS[name], how, 1, "none", "eager", adapters=True)
        yield {"id": f"{name}/{how}/lora", "config": name, "job": job, "peaks": peaks, "host": highest}


# ---- torch's under FSDP1

FLAT: list[tuple[str, str, Row]] = [
    ("llama, 6 layers", "offload_wrapper", {}),
    ("llama, 6 layers", "offload_wrapper", {"strategy": "SHARD_GRAD_OP"}),
    ("llama, 6 layers", "offload_wrapper", {"storage": "bf16", "reduce": "bf16", "micro_batches": 2}),
    ("llama, 6 layers", "save_on_cpu_pinned", {}),
    ("llama, 6 layers", "save_on_cpu", {"use_orig_params": True}),
    ("llama, large vocabulary", "save_on_cpu", {"recompute": "nonreentrant"}),
    ("llama, large vocabulary", "save_on_cpu_pinned", {"recompute": "reentrant"}),
    ("mixtral, 5 layers", "offload_wrapper", {}),
    ("gpt2, 6 layers", "offload_wrapper", {}),
    ("llama, large vocabulary", "offload_wrapper", {"ranks": 1, "strategy": "NO_SHARD"}),
]


def flat_rows() -> Iterator[Row]:
    made = execute_fsdp1.make_model
    execute_fsdp1.TOKENS = TOKENS
    for name, how, changes in FLAT:

        def make(config: Row, case: Row, how: str = how) -> Any:
            model = made(config, case)
            if how == "offload_wrapper":
                for layer in next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList)):
                    around(layer._fsdp_wrapped_module)
            else:
                around(model, how == "save_on_cpu_pinned")
            return model

        case = execute_fsdp1.USUAL | changes
        execute_fsdp1.make_model = make
        job = execute_fsdp1.job_of(case)
        job["trainer"] |= {"offload_activations": how, "sequence_tokens": TOKENS}
        words = "/".join(f"{key}={value}" for key, value in changes.items()) or "usual"
        host.highest = host.live = 0
        peaks = execute_fsdp1.execute(CONFIGS[name], case)
        yield {"id": f"{name}/fsdp1/{how}/{words}", "config": name, "job": job, "peaks": peaks, "host": host.highest}
    execute_fsdp1.make_model = made


# ---- verl


def verl_code(verl: Path) -> Any:
    """Its file, with what it asks of a device."""

    def key(tensor: torch.Tensor) -> Any:
        return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype

    device = types.ModuleType("verl.utils.device")
    device.get_torch_device = execute_fsdp1.Device  # type: ignore[attr-defined]
    units = types.ModuleType("verl.utils.fsdp_utils")
    units.FSDPModule = FSDPModule  # type: ignore[attr-defined]
    sys.modules |= {"verl": types.ModuleType("verl"), "verl.utils": types.ModuleType("verl.utils")}
    sys.modules |= {"verl.utils.device": device, "verl.utils.fsdp_utils": units}
    spec = importlib.util.spec_from_file_location("activation_offload", verl / "verl" / "utils" / "activation_offload.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._get_unique_tensor_key = key
    module.FSDPParameterFilter.__call__ = lambda self, x: x.untyped_storage()._cdata not in self.model_parameters_storage

    def update(self: Any, model: Any) -> None:
        self.model_parameters_storage = {p.data.untyped_storage()._cdata for p in model.parameters()}

    module.FSDPParameterFilter.update_model_parameters = update
    handler = module.SynchronizedGroupOffloadHandler
    handler.offload = staticmethod(lambda tensor, pin_memory=True: (None, host.take(tensor)))
    handler.reload = staticmethod(lambda state, non_blocking=None: state[1].back())
    return module


def flash_only(made: Any, checkpointed: bool, code: Any) -> Any:
    def make(config: Row, case: Row) -> Any:
        model = made(config, case | {"recompute": "none"})
        model.module.config._attn_implementation = "executed"
        code.enable_activation_offloading(model, "fsdp", checkpointed)
        return model

    return make


# Queries that are joined from halves lie by head, and so does what flash-attention makes of them: a copy that no kernel set has.
BY_HEAD = ("gpt_neox, 6 layers", "glm4, 6 layers")
VERL: list[tuple[str, Row]] = [
    *((name, {"recompute": "none"}) for name in CONFIGS if name not in ("gemma2, 6 layers", *BY_HEAD)),
    *((name, {"recompute": "reentrant"}) for name in CONFIGS if name != "gemma2, 6 layers"),
    ("llama, 6 layers", {"strategy": "SHARD_GRAD_OP"}),
    ("llama, 6 layers", {"recompute": "reentrant", "backward_prefetch": "post"}),
    ("llama, 6 layers", {"micro_batches": 2, "recompute": "reentrant"}),
    ("llama, 6 layers", {"micro_batches": 3, "no_sync": True}),
    ("llama, 6 layers", {"storage": "bf16", "reduce": "bf16"}),
    ("llama, large vocabulary", {"ranks": 1, "strategy": "NO_SHARD"}),
]


def verl_rows(verl: Path) -> Iterator[Row]:
    code = verl_code(verl)
    made = execute_fsdp1.make_model
    execute_fsdp1.TOKENS = TOKENS
    for name, changes in VERL:
        case = execute_fsdp1.USUAL | changes
        execute_fsdp1.make_model = flash_only(made, case["recompute"] != "none", code)
        job = execute_fsdp1.job_of(case)
        job["framework"] = "verl"
        job["trainer"] |= {"offload_activations": "verl", "kernels": "hf_flash", "sequence_tokens": TOKENS}
        words = "/".join(f"{key}={value}" for key, value in changes.items())
        host.highest = host.live = 0
        peaks = execute_fsdp1.execute(CONFIGS[name], case)
        yield {"id": f"{name}/verl/{words}", "config": name, "job": job, "peaks": peaks, "host": host.highest}
    execute_fsdp1.make_model = made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_offload.jsonl")
    options = parser.parse_args()
    softmax = torch.nn.functional.softmax
    execute_fsdp1.stand_in()
    torch.nn.functional.softmax = half_to_float(softmax)
    torch.nn.functional.scaled_dot_product_attention = execute_parallel.flash_sdpa
    transformers.AttentionInterface.register("executed", execute_parallel.attend)
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["executed"] = lambda *_, **__: None
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # reads data: nothing is packed
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on the meta device"
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    for rows, source in (
        (torch_rows(), by),
        (adapted_rows(), f"{by}, peft 0.21.2"),
        (flat_rows(), by),
        (verl_rows(options.verl), f"{by}, verl b178a3cd"),
    ):
        for row in rows:
            lines.append({**row, "source": source})
            print(row["id"], row["peaks"], row["host"], flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
