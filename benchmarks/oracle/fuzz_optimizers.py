"""Optimizers for fuzz.py: torch.optim's in their forms, and transformers' Adafactor as its Trainer calls it."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from execute import Row
from fuzz_models import flag, some
from transformers.optimization import Adafactor

FORMS = ("loop", "fused", "amsgrad")  # what a name ends with
ON_ONE_DEVICE = (
    *("adamw", "adamw", "adamw_fused", "adamw_fused", "adamw_loop", "adam", "adam_loop", "adam_fused"),
    *("adamw_amsgrad", "sgd", "sgd_momentum", "adafactor", "torch_adafactor", "muon"),
)


def draw(rng: random.Random, case: Row) -> Row:
    """Of one device."""
    return {"optimizer": some(rng, *ON_ONE_DEVICE), "keep_gradients": rng.random() < 0.1 and flag(rng)}


def settings_of(case: Row) -> Row:
    name, _, form = case["optimizer"].rpartition("_")
    if form not in FORMS:
        name, form = case["optimizer"], ""
    out: Row = {"optimizer": name, "optimizer_form": form if form in ("loop", "fused") else "foreach"}
    if form == "amsgrad":
        out["amsgrad"] = True
    if case.get("keep_gradients"):
        out["keep_gradients"] = True
    return out


def stand_in() -> None:
    """Fused kernels also on the meta device."""
    module = sys.modules["torch.optim.optimizer"]
    module._get_fused_kernels_supported_devices = lambda: ["meta", "cpu", "cuda"]  # type: ignore[attr-defined]


class Both(torch.optim.Optimizer):
    """Muon for the matrices of the layers, AdamW for the rest: one step behind the other."""

    def __init__(self, matrices: list[Any], others: list[Any]) -> None:
        made: list[Any] = [torch.optim.Muon(matrices, lr=1e-3)] if matrices else []
        self.both = [*made, torch.optim.AdamW(others, foreach=True)]

    def step(self, *_: Any) -> None:  # type: ignore[override]
        for optimizer in self.both:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.both:
            optimizer.zero_grad(set_to_none=set_to_none)


def optimizer_of(name: str, parameters: Any, layers: Any = ()) -> Any:
    parameters = list(parameters)
    if name.startswith("sgd"):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9 if name == "sgd_momentum" else 0.0, foreach=True)
    if name == "torch_adafactor":
        return torch.optim.Adafactor(parameters)
    if name == "adafactor":
        return Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)
    if name == "muon":
        inner = {id(p) for layer in layers for p in layer.parameters() if p.ndim == 2}
        return Both([p for p in parameters if id(p) in inner], [p for p in parameters if id(p) not in inner])
    kind = torch.optim.AdamW if name.startswith("adamw") else torch.optim.Adam
    if name.endswith("_fused"):
        return kind(parameters, fused=True)
    return kind(parameters, foreach=not name.endswith("_loop"), amsgrad=name.endswith("_amsgrad"))
