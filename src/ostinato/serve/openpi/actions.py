"""The last look at actions before a robot gets them. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostinato.errors import ConfigError, UnsafeActions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ActionBounds:
    """``low`` and ``high`` per dimension, in robot units; one entry counts for all.

    ``is_clamped``: values outside are brought to the bound, and the reply says how many; otherwise
    they are an error.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    is_clamped: bool = False

    def check(self, action_dim: int) -> None:
        """Raise ``ConfigError`` unless it fits ``action_dim`` dimensions."""
        if len(self.low) not in (1, action_dim):
            raise ConfigError(
                f"action-bounds has {len(self.low)} entries; expected 1 or {action_dim}"
            )

    def describe(self) -> dict[str, Any]:
        """Plain values for the metadata."""
        return {"low": list(self.low), "high": list(self.high), "clamp": self.is_clamped}


def parse_bounds(text: str, *, is_clamped: bool) -> ActionBounds:
    """``LOW:HIGH``, or one pair per dimension with commas between.

    Raises ``ConfigError`` naming the pair that is none.
    """
    low, high = [], []
    for pair in text.split(","):
        left, _, right = pair.partition(":")
        try:
            low.append(float(left))
            high.append(float(right))
        except ValueError:
            raise ConfigError(f"action-bounds {pair!r}: expected LOW:HIGH") from None
        if not low[-1] < high[-1]:
            raise ConfigError(f"action-bounds {pair!r}: expected LOW below HIGH")
    return ActionBounds(tuple(low), tuple(high), is_clamped)


def check_actions(actions: Array, bounds: ActionBounds | None) -> tuple[Array, int]:
    """Safe actions (horizon, D), and how many values were clamped.

    Raises ``UnsafeActions`` for values that are not finite, or outside and not clamped.
    """
    _refuse(actions, ~np.isfinite(actions), "expected finite numbers")
    if bounds is None:
        return actions, 0
    low, high = np.asarray(bounds.low), np.asarray(bounds.high)
    is_outside = (actions < low) | (actions > high)
    if not is_outside.any():
        return actions, 0
    if not bounds.is_clamped:
        dim = int(np.argwhere(is_outside)[0, 1])
        pair = _of(bounds.low, dim), _of(bounds.high, dim)
        _refuse(actions, is_outside, f"dimension {dim} lies in {pair[0]} to {pair[1]}")
    clamped: Array = np.clip(actions, low, high).astype(actions.dtype)
    return clamped, int(is_outside.sum())


def _refuse(actions: Array, is_wrong: Array, expected: str) -> None:
    if is_wrong.any():
        step, dim = np.argwhere(is_wrong)[0].tolist()
        raise UnsafeActions(
            f"[unsafe-actions] {int(is_wrong.sum())} of {actions.size} values, the first "
            f"{actions[step, dim]} at step {step}, dimension {dim}; {expected}"
        )


def _of(values: Sequence[float], dim: int) -> float:
    return values[dim] if len(values) > 1 else values[0]
