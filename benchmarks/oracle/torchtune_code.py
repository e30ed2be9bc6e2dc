"""torchtune's modules at a release, without what its recipes need beside them: for execute_torchtune.py."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
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

ABSENT = {"torchao", "torchdata", "omegaconf", "sentencepiece", "tiktoken", "blobfile", "PIL", "datasets"}
ABSENT |= {"huggingface_hub", "torchvision", "tqdm", "safetensors"}
ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that the model files import and a forward pass does not use."""

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__dict__.update({"__version__": "0.7.0", "__getattr__": lambda _name: MagicMock()})
        return module

    def exec_module(self, _module: Any) -> None:
        pass


def unpack(clone: Path, release: str, folder: Path) -> None:
    """Makes `import torchtune` find that release."""
    packed = subprocess.run(["git", "-C", clone, "archive", release, "torchtune"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    sys.path.insert(0, str(folder))
    sys.meta_path.insert(0, StandIns())


def torchtune_model(config: Row, rank: int, targets: list[str], dropout: float) -> Any:
    """In bf16, as the recipes make it under set_default_dtype; Llama 3.2's builders tie the output layer, Llama 3.1's do not."""
    rotary = importlib.import_module("torchtune.models.llama3_1._position_embeddings")
    rotary.Llama3ScaledRoPE.apply_scaling = lambda _self, frequencies, *_: frequencies  # looks at values, makes the same shape
    tied = bool(config["tie_word_embeddings"])
    builders = importlib.import_module(f"torchtune.models.{'llama3_2' if tied else 'llama3_1'}._component_builders")
    name = "llama3_2" if tied else "llama3_1"
    sizes: Row = {
        "vocab_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "num_kv_heads": config["num_key_value_heads"],
        "embed_dim": config["hidden_size"],
        "max_seq_len": config["max_position_embeddings"],
        "intermediate_dim": config["intermediate_size"],
    }
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    if rank:
        attention = [ATTENTION[target] for target in targets if target in ATTENTION]
        settings: Row = {"lora_rank": rank, "lora_alpha": 2 * rank, "lora_dropout": dropout}
        model = getattr(builders, f"lora_{name}")(attention, "up_proj" in targets, **sizes, **settings)
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad = "lora_" in parameter_name
    else:
        model = getattr(builders, name)(**sizes)
    torch.set_default_dtype(before)
    return model.train()
