"""What came, in a few words for an error message; never the content of something large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

MAX_NAMES = 20


def describe(value: Any) -> str:
    """``uint8 (360, 640, 3)``, ``bytes of 12``, ``list of 3``, ``text 'abc'``, ``int 5``."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"bytes of {len(value)}"
    if isinstance(value, Mapping):
        return f"map of {len(value)}"
    if isinstance(value, list | tuple):
        return f"list of {len(value)}"
    if isinstance(value, str):
        return f"text {value[:40]!r}"
    if value is None:
        return "nothing"
    return f"{type(value).__name__} {str(value)[:40]}"


def listed(names: Iterable[str]) -> str:
    """Sorted names in brackets, the first twenty of them."""
    ordered = sorted(names)
    shown = ", ".join(name[:60] for name in ordered[:MAX_NAMES])
    more = f", and {len(ordered) - MAX_NAMES} more" if len(ordered) > MAX_NAMES else ""
    return f"[{shown}{more}]"
