"""Dense models of torchtitan from its own files at a commit, without the trainer around them: for execute_parallel.py."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from execute import Row


def unpack(clone: Path, commit: str, folder: Path) -> Path:
    packed = subprocess.run(["git", "-C", clone, "archive", commit, "torchtitan"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "torchtitan"


class NotUsed(torch.nn.Module):
    """In place of what torchtitan's model files import and a dense model does not need."""

    def __init__(self, *_args: Any) -> None:
        super().__init__()


class Attention(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any, **_options: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v)


def module(name: str, path: Path | None = None, **names: Any) -> None:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    if path is not None:
        made.__path__ = [str(path)]
    sys.modules[name] = made


def titan_modules(root: Path) -> None:
    """torchtitan's packages without their __init__.py, which import the whole trainer."""
    for name in [key for key in sys.modules if key.split(".")[0] == "torchtitan"]:
        del sys.modules[name]
    for folder in ("", "models", "models/llama", "models/llama3", "models/llama3/model", "experiments"):
        module(".".join(["torchtitan", *folder.split("/")]).rstrip("."), root / folder)
    for folder in ("experiments/qwen3", "experiments/qwen3/model", "models/qwen3", "models/qwen3/model"):
        module("torchtitan." + folder.replace("/", "."), root / folder)
    names = """create_attention_mask create_varlen_metadata_for_document FlexAttentionWrapper get_causal_mask_mod VarlenMetadata
    get_document_mask_mod VarlenAttentionWrapper BaseTokenizer trunc_normal_ AttentionMasksType JobConfig logger MoE MoEArgs
    get_moe_model_nparams_and_flops has_cuda_capability get_dense_model_nparams_and_flops"""
    is_module = (
        "class Transformer(ModelProtocol)" in (root / "models/llama3/model/model.py").read_text() if newer(root) else False
    )
    given: Row = dict.fromkeys(names.split(), NotUsed)
    given |= {"ScaledDotProductAttentionWrapper": Attention, "build_attention": lambda *_: Attention(), "BaseModelArgs": object}
    given["ModelProtocol"] = NotUsed if is_module else type("ModelProtocol", (), {})
    packages = "components components.tokenizer models.attention models.utils models.moe protocols protocols.model config tools"
    for package in [*packages.split(), "protocols.train_spec", "tools.logging", "tools.utils"]:
        module(f"torchtitan.{package}", **given)


def newer(root: Path) -> bool:
    return (root / "models/llama3/model/model.py").exists()


def titan_model(root: Path, config: Row, tokens: int) -> Any:
    titan_modules(root)
    sizes = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    sizes |= {"n_kv_heads": "num_key_value_heads", "vocab_size": "vocab_size"}
    qwen = config["model_type"] == "qwen3"
    home = "models" if (root / "models/qwen3").exists() else "experiments"  # since October 2025
    name = f"torchtitan.{home}.qwen3.model" if qwen else f"torchtitan.models.{'llama3.model' if newer(root) else 'llama'}"
    code = importlib.import_module(f"{name}.model")
    arguments = getattr(code, "Qwen3ModelArgs" if qwen else "TransformerModelArgs" if newer(root) else "ModelArgs")()
    fields: Row = {ours: config[theirs] for ours, theirs in sizes.items()} | {"max_seq_len": tokens}
    if qwen:
        fields |= {"head_dim": config["head_dim"], "hidden_dim": config["intermediate_size"], "qk_norm": True}
        fields |= {"moe_enabled": False, "enable_weight_tying": False}
    else:
        # 8/3 of the hidden width, rounded up to a multiple
        fields |= {"multiple_of": config["intermediate_size"], "ffn_dim_multiplier": 1.0, "norm_type": "rmsnorm"}
    for field, value in fields.items():
        setattr(arguments, field, value)
    model_class = code.Qwen3Model if qwen else code.Transformer
    model_class.init_weights = lambda *_args, **_options: None
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = model_class(arguments)
    torch.set_default_dtype(before)
    half = config["head_dim"] // 2
    for key, shape, dtype in (("freqs_cis", (tokens, half), torch.complex64), ("rope_cache", (tokens, 4 * half), torch.float32)):
        if hasattr(model, key):
            setattr(model, key, torch.empty(shape, dtype=dtype))
    return model
