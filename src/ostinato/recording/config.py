"""What a user may choose about recording, and what is resolved from it. Both are frozen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Literal

import torch

from ostinato.errors import ConfigError

Mode = Literal["auto", "exact", "ladder", "off"]
Verify = Literal["on_record", "paranoid", "off"]

MODES: tuple[Mode, ...] = ("auto", "exact", "ladder", "off")
VERIFIES: tuple[Verify, ...] = ("on_record", "paranoid", "off")

CPU_BUDGET_BYTES = 1 << 30
BUDGET_SHARE = 0.125


@dataclass(frozen=True)
class GraphConfig:
    """How calls may be recorded.

    ``mode``: ``auto`` (the fastest of exact, rung and direct), ``exact`` (no padding), ``ladder``
    (rungs only; needs a description of what grows), ``off`` (every call is direct).
    ``budget_bytes``: all recordings of the device together; ``None`` is an eighth of its memory.
    ``min_hits``: a key is recorded at its n-th call. ``promote_hits``: a key that a rung serves
    gets an exact recording of its own, off the request's path, after so many calls. ``verify``:
    ``on_record`` (the gate), ``paranoid`` (every call is also made directly and compared),
    ``off`` (no gate; for measuring what it costs). ``tolerance``: largest relative distance of a
    rung's result from the unpadded direct call's; ``None`` is by dtype. ``cache_dir``: where
    timings and refusals are kept between processes.
    """

    mode: Mode = "auto"
    budget_bytes: int | None = None
    min_hits: int = 2
    promote_hits: int = 32
    verify: Verify = "on_record"
    ladder_ratio: float = 1.25
    tolerance: float | None = None
    cache_dir: str | Path | None = None

    def __post_init__(self) -> None:
        _require(self.mode in MODES, "mode", self.mode, f"one of {', '.join(MODES)}")
        _require(self.verify in VERIFIES, "verify", self.verify, f"one of {', '.join(VERIFIES)}")
        for name in ("min_hits", "promote_hits", "budget_bytes"):
            value = getattr(self, name)
            if value is not None or name != "budget_bytes":
                _require(
                    type(value) is int and value >= 1, name, value, "a whole number of at least 1"
                )
        ratio, tolerance = self.ladder_ratio, self.tolerance
        _require(_is_number(ratio) and ratio > 1.0, "ladder_ratio", ratio, "a number above 1")
        if tolerance is not None:
            is_right = _is_number(tolerance) and tolerance > 0
            _require(is_right, "tolerance", tolerance, "a number above 0")
        if self.cache_dir is not None:
            is_right = isinstance(self.cache_dir, (str, Path))
            _require(is_right, "cache_dir", self.cache_dir, "a path")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _require(is_right: bool, name: str, value: object, expected: str) -> None:
    if not is_right:
        raise ConfigError(f"GraphConfig.{name} is {value!r}; expected {expected}")


def resolve_budget(config: GraphConfig, device: torch.device) -> GraphConfig:
    """The same configuration with a number of bytes in ``budget_bytes``."""
    if config.budget_bytes is not None:
        return config
    if device.type != "cuda":
        return replace(config, budget_bytes=CPU_BUDGET_BYTES)
    total = torch.cuda.get_device_properties(device).total_memory
    return replace(config, budget_bytes=int(total * BUDGET_SHARE))
