"""Reads a ``vision_config`` field by field; a wrong value is an error that names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ostinato.errors import WeightsError
from ostinato.layers.mlp import ACTIVATIONS


class Fields:
    """One ``vision_config``. Every method raises ``WeightsError`` naming field and value."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def count(self, name: str, default: int, *, alias: str | None = None) -> int:
        """A positive integer; ``alias`` is the field's older name."""
        value = self._values.get(name)
        if value is None and alias is not None:
            value = self._values.get(alias)
        if value is None:
            return default
        if type(value) is not int or value <= 0:
            raise self._error(name, value, "a positive integer")
        return value

    def square_root(self, name: str, default: int) -> int:
        """The side of a square number of entries."""
        value = self.count(name, default)
        side = math.isqrt(value)
        if side * side != value:
            raise self._error(name, value, "a square number")
        return side

    def blocks(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Block numbers, ascending and below ``depth`` where that is given."""
        value = self._values.get(name)
        if value is None:
            return default
        is_list = isinstance(value, list | tuple) and all(type(index) is int for index in value)
        if not is_list or list(value) != sorted(set(value)) or any(index < 0 for index in value):
            raise self._error(name, value, "ascending block numbers")
        return tuple(value)

    def activation(self, default: str) -> str:
        value = self._values.get("hidden_act") or default
        if value not in ACTIVATIONS:
            raise self._error("hidden_act", value, f"one of {', '.join(sorted(ACTIVATIONS))}")
        return str(value)

    def must_be(self, name: str, expected: str) -> None:
        value = self._values.get(name) or expected
        if value != expected:
            raise self._error(name, value, expected)

    def rope_theta(self) -> float:
        """The rotary base; only the two-axis kind without scaling is known."""
        parameters = self._values.get("rope_parameters") or {}
        kind = parameters.get("rope_type", "axial")
        if kind != "axial":
            raise self._error("rope_parameters.rope_type", kind, "axial")
        return float(parameters.get("rope_theta", 10000.0))

    @staticmethod
    def _error(name: str, value: object, expected: str) -> WeightsError:
        return WeightsError(f"vision_config.{name} must be {expected}, got {value!r}")
