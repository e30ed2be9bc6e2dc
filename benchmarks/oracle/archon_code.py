"""Models of AReaL's Archon engine from its own files at a release, without the trainer around them: for execute_archon.py."""

from __future__ import annotations

import importlib
import io
import logging
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import torch
from execute import Row
from tree_code import tree_modules

ARCHON = "areal.experimental.models.archon"


def unpack(clone: Path, release: str, folder: Path) -> Path:
    packed = subprocess.run(["git", "-C", clone, "archive", release, "areal"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "areal"


class NotUsed(torch.nn.Module):
    """In place of what Archon's model files import and the models executed here do not need."""

    def __init__(self, *_args: Any) -> None:
        super().__init__()


def module(name: str, path: Path | None = None, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    if path is not None:
        made.__path__ = [str(path)]
    sys.modules[name] = made
    return made


def archon_modules(root: Path) -> None:
    """AReaL's packages without their __init__.py, which import the whole trainer."""
    for name in [key for key in sys.modules if key.split(".")[0] == "areal"]:
        del sys.modules[name]
    packages = ["", "utils", "models", "models/fsdp", "models/tree_attn", "infra", "utils/functional"]
    packages += ["experimental", "experimental/models", "experimental/models/archon"]
    for family in ("qwen2", "qwen3"):
        packages += [f"experimental/models/archon/{family}{part}" for part in ("", "/model", "/infra")]
    for folder in packages:
        module(".".join(["areal", *folder.split("/")]).rstrip("."), root / folder)
    sys.modules["areal.utils"].logging = logging  # type: ignore[attr-defined]
    for name in ("areal.infra.platforms", "areal.platforms"):  # 1.0, 0.5
        module(name, is_npu_available=True)  # what is compiled elsewhere is not there
    if (root / "models" / "tree_attn" / "module_archon.py").exists():
        tree_modules(module)
    module(f"{ARCHON}.moe.kernels", generate_permute_indices=permute_indices)
    names = dict.fromkeys(("ExpertParallel", "ExpertTensorParallel", "TensorParallel", "ReordererSequenceParallel"), NotUsed)
    module(f"{ARCHON}.expert_parallel", **names)


def permute_indices(
    counts: torch.Tensor, experts: int, ranks: int, rows: int, alignment: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What moe/kernels.py makes around its Triton kernel: indices of 32 bits, sizes and offsets of the experts' rows."""
    starts = torch.cumsum(counts, 0) - counts
    total = torch.clamp_min(counts.view(ranks, -1).sum(0), alignment)
    sizes = ((total + alignment - 1) // alignment * alignment).to(torch.int32)
    offsets = torch.cumsum(sizes, 0)
    _written = offsets - sizes
    del starts
    return torch.full((rows,), -1, dtype=torch.int32), sizes, offsets.to(torch.int32)


def code_of(name: str) -> Any:
    return importlib.import_module(name)


class Settings:
    """What from_hf_config asks of a configuration of transformers."""

    def __init__(self, fields: Row) -> None:
        self.__dict__.update(fields)


def archon_model(config: Row, critic: bool, attention: str = "varlen") -> Any:
    """As ArchonEngine makes it: on the meta device, then in 16 bits (archon_engine.py: _create_device_model)."""
    family = config["model_type"].removesuffix("_moe")
    code, arguments = code_of(f"{ARCHON}.{family}.model.model"), code_of(f"{ARCHON}.{family}.model.args")
    name = family.capitalize()
    given = getattr(arguments, f"{name}ModelArgs").from_hf_config(
        Settings(config), is_critic=critic, attn_type=attention, router_dtype=torch.float32
    )
    with torch.device("meta"):
        model = getattr(code, f"{name}Model")(given)
    for part in model.modules():
        if hasattr(part, "use_grouped_mm"):  # as on CUDA
            part.use_grouped_mm = True
    return model.to(torch.bfloat16)


def parallelize(model: Any, config: Row, dims: Any, checkpoints: Row | None, reshard: str, compiled: bool = False) -> None:
    family = config["model_type"].removesuffix("_moe")
    code = code_of(f"{ARCHON}.{family}.infra.parallelize")
    recomputation = code_of(f"{ARCHON}.activation_checkpoint").ActivationCheckpointConfig
    getattr(code, f"parallelize_{family}")(
        model=model,
        parallel_dims=dims,
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
        loss_parallel=True,
        cpu_offload=False,
        reshard_after_forward_policy=reshard,
        ac_config=recomputation(**checkpoints) if checkpoints else None,
        enable_compile=compiled,
    )
