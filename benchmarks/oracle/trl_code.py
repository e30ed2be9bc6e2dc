"""Losses of TRL's trainers from its own files, without the trainers around them: for execute_preference.py."""

from __future__ import annotations

import ast
import contextlib
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F


def definitions(path: Path, wanted: set[str], owner: str = "") -> list[ast.stmt]:
    """Functions of a file, or methods of one of its classes, without annotations and decorators."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if owner:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == owner).body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    missing = wanted - {node.name for node in found}
    if missing:
        raise SystemExit(f"{path} has no {', '.join(sorted(missing))}")
    for node in found:
        static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
        node.decorator_list = [ast.Name("staticmethod", ast.Load())] if static else []
        node.returns = None
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            argument.annotation = None
    return list(found)


def load(nodes: list[ast.stmt], names: dict[str, Any]) -> dict[str, Any]:
    code = ast.fix_missing_locations(ast.Module(body=nodes, type_ignores=[]))
    exec(compile(code, "trl", "exec"), names)
    return names


@contextlib.contextmanager
def use_adapter(model: Any, adapter_name: str | None) -> Any:
    if adapter_name is None:
        with model.disable_adapter():
            yield
        return
    before = model.active_adapter
    model.set_adapter(adapter_name)
    yield
    model.set_adapter(before)


TRAINERS: dict[str, tuple[str, str, set[str]]] = {
    "trl_dpo": ("trainer/dpo_trainer.py", "DPOTrainer", {"_compute_loss"}),
    "trl_grpo": ("trainer/grpo_trainer.py", "GRPOTrainer", {"_compute_loss", "_get_per_token_logps_and_entropies"}),
    "trl_kto": ("trainer/kto_trainer.py", "KTOTrainer", {"_compute_loss", "_compute_kl_logps"}),
    "reward_pairs": ("trainer/reward_trainer.py", "RewardTrainer", {"compute_loss"}),
    "trl_simpo": (
        "experimental/cpo/cpo_trainer.py",
        "CPOTrainer",
        {"get_batch_logps", "concatenated_forward", "get_batch_loss_metrics", "cpo_loss"},
    ),
    "trl_orpo": (
        "experimental/orpo/orpo_trainer.py",
        "ORPOTrainer",
        {"get_batch_logps", "concatenated_forward", "get_batch_loss_metrics", "odds_ratio_loss"},
    ),
}


def accelerator() -> SimpleNamespace:
    """One process: nothing is exchanged."""

    def same(tensor: torch.Tensor, **_: Any) -> torch.Tensor:
        return tensor

    return SimpleNamespace(
        device=torch.device("cpu"), gather=same, gather_for_metrics=same, reduce=same, unwrap_model=lambda model: model
    )


def trainer(trl: Path, head: str, is_adapted: Callable[[Any], bool]) -> Any:
    """An object with the methods of TRL's trainer that compute its loss, and its defaults."""
    names: dict[str, Any] = {
        "torch": torch,
        "F": F,
        "nn": torch.nn,
        "math": math,
        "contextlib": contextlib,
        "is_peft_model": is_adapted,
        "use_adapter": use_adapter,
        "disable_gradient_checkpointing": lambda *_: contextlib.nullcontext(),
        "is_torch_xla_available": lambda: False,
        "nanmin": torch.min,
        "nanmax": torch.max,
    }
    shared = {"selective_log_softmax", "entropy_from_logits"}
    load(definitions(trl / "trainer/utils.py", shared), names)
    path, owner, methods = TRAINERS[head]
    if head == "trl_orpo":
        load(definitions(trl / path, {"log1mexp"}), names)
    made = load([ast.ClassDef("Made", [], [], definitions(trl / path, methods, owner), [])], names)["Made"]()
    made.__dict__.update(
        accelerator=accelerator(),
        args=SimpleNamespace(
            gradient_checkpointing_kwargs=None, center_rewards_coefficient=None, delta=None, use_bias_correction_kl=False
        ),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        aux_loss_enabled=False,
        is_encoder_decoder=False,
        ld_alpha=None,
        ref_model=None,
        precompute_ref_logps=False,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        beta=0.1,
        use_weighting=False,
        label_smoothing=0.0,
    )
    return made
