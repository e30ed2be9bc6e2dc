"""Optimizers for fuzz.py: torch.optim's in their forms, and transformers' Adafactor as its Trainer calls it."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from execute import Row
from fuzz_models import flag, some
from transformers.optimization import Adafactor

SWITCHES = ("loop", "fused", "amsgrad", "nesterov", "decay")  # words behind the optimizer's own name
BY_ELEMENT = ("adamw", "adam", "sgd", "sgd_momentum")
ON_ONE_DEVICE = (
    *("adamw", "adamw", "adamw_fused", "adamw_fused", "adamw_loop", "adam", "adam_loop", "adam_fused"),
    *("adamw_amsgrad", "sgd", "sgd_momentum", "adafactor", "torch_adafactor", "muon"),
)
DECAY = 0.1


def draw(rng: random.Random, case: Row) -> Row:
    """Of one device."""
    return {"optimizer": some(rng, *ON_ONE_DEVICE), "keep_gradients": rng.random() < 0.1 and flag(rng)}


def draw_switches(rng: random.Random, case: Row) -> Row:
    """Any form of what goes element by element, with and without weight decay; of every engine, behind all other draws."""
    kind, _ = parts_of(case["optimizer"])
    if kind not in BY_ELEMENT or rng.random() < 0.3:
        return {}
    kind = some(rng, *BY_ELEMENT)
    words = [kind, some(rng, "", "", "loop", "loop", "fused")]
    if words[1] == "fused" and kind.startswith("sgd"):  # PyTorch has no fake of its kernel
        words[1] = ""
    words.append("amsgrad" if kind.startswith("adam") and rng.random() < 0.15 else "")
    words.append("nesterov" if kind == "sgd_momentum" and flag(rng) else "")
    words.append("decay" if flag(rng) else "")
    return {"optimizer": "_".join(filter(None, words))}


def parts_of(name: str) -> tuple[str, set[str]]:
    words = name.split("_")
    while words[-1] in SWITCHES:
        words.pop()
    kind = "_".join(words)
    return kind, set(name.removeprefix(kind).split("_")) - {""}


def settings_of(case: Row) -> Row:
    kind, switches = parts_of(case["optimizer"])
    out: Row = {"optimizer": kind, "optimizer_form": next(iter(switches & {"loop", "fused"}), "foreach")}
    for name in ("amsgrad", "nesterov"):
        if name in switches:
            out[name] = True
    if kind in BY_ELEMENT:
        out["weight_decay"] = DECAY if "decay" in switches else 0
    if case.get("keep_gradients"):
        out["keep_gradients"] = True
    return out


def stand_in() -> None:
    """Fused kernels also on the meta device."""
    module = sys.modules["torch.optim.optimizer"]
    module._get_fused_kernels_supported_devices = lambda: ["meta", "cpu", "cuda"]  # type: ignore[attr-defined]


def leave_steps_to_the_host(optimizer: Any, lives: Any, offloaded: bool = False) -> None:
    """Counters of steps lie there unless the step is fused and runs on the device: they are not counted."""
    for one in getattr(optimizer, "both", [optimizer]):
        for group in one.param_groups:
            for state in (one.state.get(parameter, {}) for parameter in group["params"]):
                if isinstance(state.get("step"), torch.Tensor) and (offloaded or not group.get("fused")):
                    lives.leave_out(state["step"])


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
    kind, switches = parts_of(name)
    if kind == "torch_adafactor":
        return torch.optim.Adafactor(parameters)
    if kind == "adafactor":
        return Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)
    if kind == "muon":
        inner = {id(p) for layer in layers for p in layer.parameters() if p.ndim == 2}
        return Both([p for p in parameters if id(p) in inner], [p for p in parameters if id(p) not in inner])
    given: Row = {"weight_decay": DECAY if "decay" in switches else 0.0}
    given |= {"fused": True} if "fused" in switches else {"foreach": "loop" not in switches}
    if kind.startswith("sgd"):
        momentum = 0.9 if kind == "sgd_momentum" else 0.0
        return torch.optim.SGD(parameters, lr=0.1, momentum=momentum, nesterov="nesterov" in switches, **given)
    return (torch.optim.AdamW if kind == "adamw" else torch.optim.Adam)(parameters, amsgrad="amsgrad" in switches, **given)
