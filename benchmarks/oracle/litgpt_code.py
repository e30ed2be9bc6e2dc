"""LitGPT's model files at a release, without its trainer: for execute_litgpt.py."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from execute import Row

ABSENT = """lightning lightning.fabric lightning.fabric.strategies lightning.fabric.utilities lightning.fabric.utilities.load
lightning.fabric.loggers lightning.fabric.plugins lightning.fabric.utilities.types lightning.fabric.utilities.init
lightning.fabric.utilities.throughput lightning.pytorch lightning.pytorch.loggers lightning.pytorch.cli lightning_utilities
lightning_utilities.core lightning_utilities.core.imports torchmetrics jsonargparse"""
FAMILIES: dict[str, Row] = {
    "llama": {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP"},
    "gemma": {"norm_class_name": "RMSNorm", "mlp_class_name": "GemmaMLP", "scale_embeddings": True},
    "gpt_neox": {"norm_class_name": "LayerNorm", "mlp_class_name": "GptNeoxMLP"},
}
FAMILIES["gemma2"] = {**FAMILIES["gemma"], "post_attention_norm": True, "post_mlp_norm": True}
FAMILIES["phi"] = {**FAMILIES["gpt_neox"], "shared_attention_norm": True, "lm_head_bias": True}


def unpack(clone: Path, release: str, folder: Path) -> Path:
    packed = subprocess.run(["git", "-C", clone, "archive", release, "litgpt"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "litgpt"


def modules(root: Path) -> tuple[Any, Any]:
    """litgpt.model and litgpt.lora, without the package's __init__.py and what a model does not need."""
    for name in [key for key in sys.modules if key.split(".")[0] in ("litgpt", "lightning", "lightning_utilities")]:
        del sys.modules[name]
    for name in ABSENT.split():
        stand_in = types.ModuleType(name)
        stand_in.__path__ = []
        stand_in.__dict__["__getattr__"] = lambda _name: MagicMock()
        sys.modules[name] = stand_in
    package = types.ModuleType("litgpt")
    package.__path__ = [str(root)]
    sys.modules["litgpt"] = package
    found = {}
    for name in ("utils", "model", "config", "lora"):
        found[name] = importlib.import_module(f"litgpt.{name}")
        setattr(package, name, found[name])
    return found["model"], found["lora"]


def fields_of(config: Row) -> Row:
    """A config.json in LitGPT's words."""
    family = config["model_type"]
    heads = config["num_attention_heads"]
    out: Row = {
        "name": "Gemma" if family.startswith("gemma") else family,
        "block_size": 4096,
        "padded_vocab_size": config["vocab_size"],
        "vocab_size": config["vocab_size"],
        "n_layer": config["num_hidden_layers"],
        "n_head": heads,
        "n_query_groups": config.get("num_key_value_heads", heads),
        "n_embd": config["hidden_size"],
        "head_size": config.get("head_dim", config["hidden_size"] // heads),
        "intermediate_size": config["intermediate_size"],
        "rotary_percentage": config.get("rotary_pct", config.get("partial_rotary_factor", 1.0)),
        "parallel_residual": family in ("gpt_neox", "phi"),
        "bias": family in ("gpt_neox", "phi"),
        **FAMILIES[family],
    }
    if family == "gemma2":
        out |= {"attention_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention_scores_scalar": 64}
        out |= {"sliding_window_size": config["sliding_window"], "sliding_window_layer_placing": 2}
    return out


def product_of_packed(clone: Path, release: str) -> Any:
    """bitsandbytes' own MatMul4Bit; unpacking a matrix is a CUDA kernel, of which what it allocates is left."""

    def dequantize_4bit(_packed: torch.Tensor, state: Any) -> torch.Tensor:
        absmax = state.absmax
        if state.nested:
            absmax = torch.empty(absmax.shape)  # held while the matrix is made, as there
        return torch.empty(state.shape, dtype=torch.float16).t()  # what is packed came transposed

    functional = types.ModuleType("bitsandbytes.functional")
    functional.__dict__.update({"QuantState": object, "dequantize_4bit": dequantize_4bit, "get_special_format_str": str})
    sys.modules |= {"bitsandbytes": types.ModuleType("bitsandbytes"), "bitsandbytes.functional": functional}
    sys.modules["bitsandbytes"].__dict__["functional"] = functional
    path = f"{release}:bitsandbytes/autograd/_functions.py"
    text = subprocess.run(["git", "-C", clone, "show", path], check=True, capture_output=True, text=True).stdout
    code = types.ModuleType("bitsandbytes.autograd._functions")
    sys.modules[code.__name__] = code
    exec(compile(text, path, "exec"), code.__dict__)
    return code.__dict__["MatMul4Bit"]


class Packed(torch.nn.Module):
    """Linear4bit as Fabric makes it of a linear layer, its statistics as buffers."""

    def __init__(self, layer: torch.nn.Linear, nested: bool, product: Any) -> None:
        super().__init__()
        count = layer.weight.numel()
        blocks = -(-count // 64)
        self.product, self.nested, self.shape, self.out_features = product, nested, layer.weight.shape, layer.out_features
        self.weight = torch.nn.Parameter(torch.empty((count + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
        self.bias = layer.bias
        self.register_buffer("absmax", torch.empty(blocks, dtype=torch.uint8 if nested else torch.float32))
        self.register_buffer("code", torch.empty(16))
        if nested:
            self.register_buffer("second_absmax", torch.empty(-(-blocks // 256)))
            self.register_buffer("offset", torch.empty(()))

    def forward(self, x: torch.Tensor) -> Any:
        return self.product.apply(x, self.weight.t(), None, self.bias, self)


def pack(model: torch.nn.Module, nested: bool, product: Any) -> None:
    for name, layer in list(model.named_modules()):
        if isinstance(layer, torch.nn.Linear):
            setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], Packed(layer, nested, product))


def litgpt_model(root: Path, config: Row, tokens: int, rank: int, targets: list[str], dropout: float, dtype: Any) -> Any:
    """In bf16, as `precision: bf16-true` makes it, or in fp32; with adapters of that rank, or all of it trained."""
    plain, adapted = modules(root)
    fields = fields_of(config)
    code = adapted if rank else plain
    if rank:
        fields |= {"lora_r": rank, "lora_alpha": 16, "lora_dropout": dropout, **{f"lora_{name}": True for name in targets}}
    settings = sys.modules["litgpt.lora" if rank else "litgpt.config"].__dict__["Config"](**fields)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    model = code.GPT(settings)
    torch.set_default_dtype(before)
    model.max_seq_length = tokens  # the loops set it; the tables are made again, in fp32
    if rank:
        adapted.mark_only_lora_as_trainable(model)
    return model.train()
