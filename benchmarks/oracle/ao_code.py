"""torchao's float8 training from its own files at a commit, without the package around them: for compiled_float8.py."""

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
from titan_code import module

FLOAT8 = "torchao.float8."


class Answers(types.ModuleType):
    """In place of torchao.utils: every release of PyTorch is there, no device is AMD's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("TORCH_VERSION_AT_LEAST"):
            return True
        return (lambda *_: True) if name.startswith("torch_version_at_least") else (lambda *_: False)


def unpack_float8(clone: Path, commit: str, folder: Path) -> Path:
    packed = subprocess.run(["git", "-C", clone, "archive", commit, "torchao/float8"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "torchao"


def float8_modules(root: Path) -> None:
    for name in [key for key in sys.modules if key.split(".")[0] == "torchao"]:
        del sys.modules[name]
    module("torchao", root)
    module("torchao.float8", root / "float8")
    sys.modules["torchao.utils"] = Answers("torchao.utils")


def matrix(linear: Any) -> Any:
    """What FSDP2's float8 all-gather hands to a layer: 8-bit numbers and their scale."""
    tensors = sys.modules.get(FLOAT8 + "float8_training_tensor") or sys.modules[FLOAT8 + "float8_tensor"]
    kind = getattr(tensors, "Float8TrainingTensor", None) or tensors.Float8Tensor
    role = tensors.GemmInputRole.WEIGHT
    with torch.no_grad():
        numbers = torch.empty(linear.weight.shape, dtype=torch.float8_e4m3fn)
        made = kind(numbers, torch.empty((), dtype=torch.float32), torch.bfloat16, linear.linear_mm_config, role)
    return torch.nn.Parameter(made)


def convert(model: Any, scaling: str, gathered: bool) -> None:
    """Every matrix but the output layer's, as torchtitan's converter does."""
    settings = importlib.import_module(FLOAT8 + "config").Float8LinearConfig
    config = settings() if scaling == "tensorwise" else settings.from_recipe_name(scaling)
    linears = importlib.import_module(FLOAT8 + "float8_linear_utils")
    linears.convert_to_float8_training(model, config=config, module_filter_fn=lambda _module, name: name != "output")
    if not gathered:
        return
    for block in model.layers.values():
        for linear in block.modules():
            if isinstance(linear, torch.nn.Linear):
                linear.weight = matrix(linear)


def float8_styles() -> Any:
    """With a scale for each tensor torchtitan divides by torchao's styles, which gather in 8 bits."""
    code = importlib.import_module(FLOAT8 + "float8_tensor_parallel")
    return code.Float8ColwiseParallel, code.Float8RowwiseParallel, code.PrepareFloat8ModuleInput
