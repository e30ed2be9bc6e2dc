"""Makes tests/data/executed_rows.jsonl: training steps of small models, executed by PyTorch on the meta device.

    python benchmarks/oracle/execute.py [--only FAMILY...] [--adapted FAMILY...] [--output tests/data/executed_rows.jsonl]

Needs torch and transformers, peft for the rows with LoRA, no GPU. The real modeling code and the real autograd engine run; tensors have shapes, formats and
storages, but no memory. A dispatch mode follows the life of every storage. Attention is the eager one: it has no kernel whose
choice depends on the device. Lines are those of compact.py: configs, and rows with the highest level of each phase and what one
layer saves for backward.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import weakref
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional
import transformers
import transformers.masking_utils
from row_lines import write_rows
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
aten = torch.ops.aten
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

SMALL: Row = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
}
SPANS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
WINDOWS: Row = {"sliding_window": 128, "layer_types": SPANS}
EXPERTS: Row = {"num_experts_per_tok": 4, "moe_intermediate_size": 256, "first_k_dense_replace": 1, "n_shared_experts": 1}
ROUTED: Row = {**EXPERTS, "n_routed_experts": 16, "norm_topk_prob": True, "n_group": 1, "topk_group": 1}
LATENT: Row = {
    "num_key_value_heads": 8,
    "q_lora_rank": 192,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 48,
}
MODELS: dict[str, Row] = {
    "olmo2": {},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v2": {
        **ROUTED,
        **LATENT,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "norm_topk_prob": False,
    },
    "deepseek_v3": {**ROUTED, **LATENT, "n_group": 4, "topk_group": 2},
    "glm4_moe_lite": {**ROUTED, **LATENT, "rope_theta": 10000.0},
    "glm4_moe": {**ROUTED, "head_dim": 64, "use_qk_norm": True, "partial_rotary_factor": 0.5},
    "minimax_m2": {"head_dim": 64, "num_local_experts": 16, "num_experts_per_tok": 4, "rotary_dim": 32, "use_qk_norm": True},
    "gpt_oss": {
        **WINDOWS,
        "head_dim": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "attention_bias": True,
    },
    "gemma3_text": {**WINDOWS, "head_dim": 64, "tie_word_embeddings": True},
    "glm": {"head_dim": 64, "attention_bias": True, "pad_token_id": 0, "partial_rotary_factor": 0.5},
    "cohere2": {**WINDOWS, "head_dim": 64, "tie_word_embeddings": True},
    "stablelm": {"partial_rotary_factor": 0.25},
    "phi": {"num_key_value_heads": 8},
    "starcoder2": {"use_bias": True},
}
# sequences, tokens of one, checkpointing
RUNS = ((1, 512, False), (1, 512, True), (2, 256, False))

# With LoRA: families whose embedding multiplies inside of its module, and one whose does not. The embedding's output wants a gradient.
ADAPTED: dict[str, Row] = {
    "llama": {},
    "gemma": {"head_dim": 64},
    "gemma2": {**WINDOWS, "head_dim": 64, "query_pre_attn_scalar": 64},
    "gemma3_text": MODELS["gemma3_text"],
}
RANK = 16

# What `accumulate` of torch/csrc/autograd/input_buffer.cpp (2.13) adds in place: a gradient that nobody else holds. Seen from inside
# a dispatch mode, under which the engine never adds in place, these are its counts of references: tensor, storage, Python object.
UNSHARED = {(3, 2, 4), (4, 2, 3)}  # CPython 3.12, 3.11
IN_PLACE = {
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
}


class Storages(TorchDispatchMode):
    """Bytes of the storages that live: those of operators' results, from their birth until their last reference goes."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, tuple[Row, int]] = {}
        self.live = self.highest = 0
        self.in_layer = False

    def own(self, tensor: torch.Tensor) -> int:
        """A parameter or a buffer: its bytes, once for each storage. Not counted as live."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.known:
            return 0
        self.known[storage._cdata] = {}, 0
        return int(storage.nbytes())

    def leave_out(self, tensor: torch.Tensor) -> None:
        """A tensor of another device than the one that is looked at."""
        key = tensor.untyped_storage()._cdata
        if key in self.known:
            made, size = self.known[key]
            self.known[key] = made, 0
            self.live -= size

    def born(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        bytes_ = int(storage.nbytes())
        dtype = str(tensor.dtype).removeprefix("torch.")
        made = {"dtype": SHORT.get(dtype, dtype), "shape": list(tensor.shape), "in_layer": self.in_layer}
        self.known[key] = made, bytes_
        self.live += bytes_
        self.highest = max(self.highest, self.live)
        weakref.finalize(storage, self.died, key)

    def died(self, key: int) -> None:
        self.live -= self.known.pop(key)[1]

    def resized(self, storage: torch.UntypedStorage, size: int) -> None:
        """What FSDP empties and fills again."""
        if storage._cdata not in self.known:
            self.known[storage._cdata] = {}, 0
            weakref.finalize(storage, self.died, storage._cdata)
        made, before = self.known[storage._cdata]
        self.known[storage._cdata] = made, size
        self.live += size - before
        self.highest = max(self.highest, self.live)

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # backward: what the engine does in place when no mode is on; a forward pass without gradients (a reentrant checkpoint's) is none
        if not torch.is_grad_enabled() and torch._C._current_graph_task_id() >= 0:
            func = IN_PLACE.get(func, func)
            both = func is aten.add.Tensor and all(isinstance(x, torch.Tensor) for x in args[:2])
            if both and args[0].shape == args[1].shape and args[0].dtype == args[1].dtype:
                storage = torch._C._storage_Use_Count(args[0].untyped_storage()._cdata)
                if (args[0]._use_count(), storage, sys.getrefcount(args[0])) in UNSHARED:
                    func = aten.add_.Tensor
        out = func(*args, **kwargs)
        if (
            func is aten.native_layer_norm.default and out[1].dtype != torch.float32
        ):  # on CUDA statistics of 16-bit rows have 32 bits
            out = (out[0], out[1].float(), out[2].float())
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.born(leaf)
        return out


class SavedBeside:
    """As a hook of what autograd packs: the storages that it keeps beside those of `inputs`, with their bytes."""

    def __init__(self, inputs: Iterable[torch.Tensor]) -> None:
        self.inputs = {t.untyped_storage()._cdata for t in inputs}
        self.seen: dict[int, int] = {}

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in self.inputs:
            self.seen[storage._cdata] = storage.nbytes()
        return t


class SavedByLayer:
    """What one layer of a model saves for the backward pass, each storage once."""

    def __init__(self, storages: Storages, layer: torch.nn.Module) -> None:
        self.storages = storages
        self.made: dict[int, Row] = {}
        layer.register_forward_pre_hook(lambda *_: self.inside(True))
        layer.register_forward_hook(lambda *_: self.inside(False))

    def inside(self, value: bool) -> None:
        self.storages.in_layer = value

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        made = self.storages.known.get(tensor.untyped_storage()._cdata, ({}, 0))[0]
        if made.get("in_layer"):
            self.made[id(made)] = made
        return tensor

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self.pack, lambda tensor: tensor)

    def counted(self) -> list[list[Any]]:
        """[dtype, shape, count]; numbers of a generator's state are told by their bytes."""
        counts = Counter(json.dumps([made["dtype"].replace("uint64", "int64"), made["shape"]]) for made in self.made.values())
        return [[*json.loads(key), count] for key, count in sorted(counts.items())]


def half_to_float(softmax: Any) -> Any:
    """On CUDA a softmax of 16 bits with a result in fp32 is one kernel; elsewhere the input is cast first."""

    def replaced(x: torch.Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
        if dtype == torch.float32 and x.dtype in (torch.bfloat16, torch.float16):
            return aten._softmax(x, dim, True)
        return softmax(x, dim, dtype=dtype)

    return replaced


def as_on_cuda() -> None:
    """CUDA's softmax, and a mask that is made without reading data: tensors have none, and nothing is packed."""
    torch.nn.functional.softmax = half_to_float(torch.nn.functional.softmax)
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None


def adapted(model: Any) -> Any:
    """With adapters beside every linear layer, in fp32: peft casts nothing on the meta device."""
    import peft

    model.enable_input_require_grads()
    with torch.device("meta"):
        return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules="all-linear"))


def make_model(config: Row, checkpointing: bool, adapters: bool, attention: str = "eager") -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16, attn_implementation=attention)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return adapted(model) if adapters else model


def execute(
    config: Row, sequences: int, tokens: int, checkpointing: bool, adapters: bool = False, attention: str = "eager"
) -> tuple[Row, list[list[Any]]]:
    """The highest level of forward and backward, in bytes, and what the middle layer saves: [dtype, shape, count]."""
    model = make_model(config, checkpointing, adapters, attention)
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == config["num_hidden_layers"])
    gc.collect()
    gc.disable()  # storages die by reference counts, as in a training loop
    storages = Storages()
    saved = SavedByLayer(storages, layers[len(layers) // 2])
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    with storages:
        ids = torch.empty(sequences, tokens, dtype=torch.int64, device="meta")
        labels = torch.empty_like(ids)
        with saved.hooks():
            loss = model(input_ids=ids, labels=labels).loss
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    return {"forward": resident + forward, "backward": resident + storages.highest}, saved.counted()


def job_of(sequences: int, tokens: int, checkpointing: bool, adapters: bool = False) -> Row:
    same = {"storage": "bf16", "compute": "bf16", "reduce": "bf16"}
    trainer: Row = {
        "kernels": "hf_eager",
        "precision": same,
        "autocast": False,
        "recompute": "full" if checkpointing else "none",
        "reentrant": False,
        "optimizer": "sgd",
        "optimizer_form": "foreach",
        "head": "hf_loss",
        "sequences_per_micro_batch": sequences,
        "sequence_tokens": tokens,
        "kernel_internals": False,
        "engine": "single",
    }
    if adapters:
        trainer["lora"] = {"rank": RANK}
    # PyTorch alone asks for a gradient at the embedding's output only under checkpoints; the RL frameworks always do
    return {"framework": "verl" if adapters else "torch", "trainer": trainer, "apart": {"forward_only": False}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(MODELS))
    parser.add_argument("--adapted", nargs="*", default=list(ADAPTED))
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_rows.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    lines: list[Row] = []
    chosen = [(family, MODELS[family], False) for family in options.only]
    chosen += [(family, ADAPTED[family], True) for family in options.adapted]
    for family, fields, adapters in chosen:
        config = {"model_type": family, **SMALL, **fields}
        lines.append({"config": family, "fields": config})
        for sequences, tokens, checkpointing in RUNS:
            peaks, saved = execute(config, sequences, tokens, checkpointing, adapters)
            name = f"{family}/b{sequences}s{tokens}" + ("/lora" if adapters else "") + ("/checkpointed" if checkpointing else "")
            row = {"id": name, "config": family, "job": job_of(sequences, tokens, checkpointing, adapters)}
            by = f"{versions}, peft {metadata.version('peft')}" if adapters else versions
            row |= {"source": f"{by} executed on the meta device", "peaks": peaks}
            if not checkpointing:
                row |= {"layer": config["num_hidden_layers"] // 2, "saved": saved}
            lines.append(row)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
