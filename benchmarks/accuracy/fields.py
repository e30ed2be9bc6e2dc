"""A row whose fields are taken one by one. What nobody took is refused by its name: no field of a row is passed over in silence.

A taker says what a field may hold: a count, a flag, one of some words. Anything else raises CannotExpress with the field's name.
Fields that bear no memory are listed with one word why (`PASSED_OVER` of a schema); what was observed is told by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from corpus import CannotExpress, Row

T = TypeVar("T")

# What an execution wrote down of itself: figures, not settings.
OBSERVED = re.compile(
    r"(peak|first_step|saved|live_at|allocated|setup_peak|bytes_in|bytes_while|in_flight_max|layer_forward_growth)(_.*|s_.*)?$"
    r"|(parameter|buffer|gradient|gradient_buffer|master|adam_state|optimizer_state)_bytes(_.*)?$"
    r"|(expert_)?parameters(_on_rank)?$|layers_on_rank$|te_workspaces_and_dummy_gradients_bytes$"
    r"|fa2_backward_kernel_extra_bytes_not_included$|schedule_first_step$|middle_layer_index$|seconds(_by_phase)?$"
)


def shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


class Fields:
    """The fields of a row, or of a map in it."""

    def __init__(self, values: Row, place: str = "") -> None:
        self.values = dict(values)
        self.place = place
        self.groups: list[Fields] = []

    def path(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def refuse(self, name: str, value: Any) -> CannotExpress:
        return CannotExpress(f"{shown(value)} of the field {self.path(name)} is not mapped")

    def take(self, name: str) -> Any:
        """Whatever it holds; None when the row has no such field."""
        return self.values.pop(name, None)

    def count(self, name: str, otherwise: int | None = None, least: int = 1) -> int:
        """A whole number; without `otherwise` the row must state it."""
        value = self.take(name)
        if value is None and otherwise is not None:
            return otherwise
        if value is None:
            raise CannotExpress(f"the field {self.path(name)} is not stated")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(name, value)
        return value

    def number(self, name: str, otherwise: float = 0.0) -> float:
        value = self.take(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise self.refuse(name, value)
        return float(value)

    def flag(self, name: str, otherwise: bool = False) -> bool:
        value = self.take(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise self.refuse(name, value)
        return value

    def word(self, name: str, known: Mapping[Any, T]) -> T:
        """What `known` has for the value; None is a value like any other, and what is not stated."""
        value = self.take(name)
        if isinstance(value, (dict, list)) or type(value) not in {type(key) for key in known} or value not in known:
            raise self.refuse(name, value)
        return known[value]

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(name, value)
        return value.strip()

    def group(self, name: str) -> Fields | None:
        """The fields of a map, which must be taken too; None when there is none."""
        value = self.take(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, value)
        inner = Fields(value, self.path(name))
        self.groups.append(inner)
        return inner

    def equal(self, name: str, derived: Any, what: str) -> None:
        """What follows from other fields, when it is said, is what it must be."""
        value = self.take(name)
        if value is not None and value != derived:
            raise CannotExpress(f"the field {self.path(name)} says {shown(value)}, {what} {shown(derived)}")

    def done(self, passed_over: Mapping[str, str] | None = None) -> None:
        """Every field has been taken, is passed over by name, or was observed. One that is null says nothing."""
        for name, value in self.values.items():
            observed = not self.place and OBSERVED.fullmatch(name)
            if value is not None and name not in (passed_over or {}) and not observed:
                raise CannotExpress(f"the field {self.path(name)} of a row is not mapped")
        for inner in self.groups:
            inner.done()
