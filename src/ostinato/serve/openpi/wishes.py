"""What a request asks for besides an answer: ids, a deadline, a seed, a prefix to continue.

Importable without torch. Our own wishes stand in one reserved map, ``ostinato``, which other
servers ignore; the names that SGLang's and LeRobot's clients send beside the observation count too.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostinato.errors import InputError
from ostinato.serve.openpi.codec import text_key
from ostinato.serve.openpi.describe import describe, listed

RESERVED = "ostinato"
MAX_DEADLINE_MS = 3_600_000.0
MAX_ID_LENGTH = 128
_OPTIONS = {
    "seed": "seed",
    "noise": "noise",
    "num_steps": "num_inference_steps",
    "num_inference_steps": "num_inference_steps",
}
_RTC = {
    "prefix": "prev_chunk_left_over",
    "delay": "inference_delay",
    "horizon": "execution_horizon",
    "schedule": "prefix_attention_schedule",
    "max_guidance_weight": "max_guidance_weight",
}
_IDS = ("request_id", "session_id")


@dataclass(frozen=True, slots=True)
class Wishes:
    """``deadline_ms``: after so long, counted from the last byte of the request, the answer is
    worth nothing. ``ignored``: names that mean nothing here.
    """

    options: Mapping[str, Any]
    request_id: str
    session_id: str | None = None
    deadline_ms: float | None = None
    ignored: tuple[str, ...] = ()


def read_wishes(
    entries: Mapping[str, Any],
    known: frozenset[str],
    *,
    request_id: str | None = None,
    session_id: str | None = None,
) -> Wishes:
    """The reserved map, and those of ``entries`` that ``known`` holds, as options of the policy.

    Raises ``InputError`` for what the reserved map does not know and for wishes given twice.
    """
    options = {name: _own(value) for name, value in entries.items() if name in known}
    ignored = sorted(name for name in entries if name not in known and name != RESERVED)
    reserved = _texts(entries.get(RESERVED), RESERVED)
    rtc = _texts(reserved.pop("rtc", None), f"{RESERVED}.rtc")
    allowed = {*_OPTIONS, *_IDS, "deadline_ms"}
    _refuse(set(reserved) - allowed, RESERVED, allowed | {"rtc"})
    _refuse(set(rtc) - set(_RTC), f"{RESERVED}.rtc", set(_RTC))
    given = [(_OPTIONS[name], reserved[name]) for name in reserved if name in _OPTIONS]
    given += [(_RTC[name], value) for name, value in rtc.items()]
    for name, value in given:
        if name in options:
            raise InputError(f"[two-names] {name} was given twice; expected it once")
        if name not in known:
            raise InputError(f"[option] this policy has no {name}; expected {listed(known)}")
        options[name] = _own(value)
    return Wishes(
        options,
        _id(reserved, "request_id") or request_id or uuid.uuid4().hex,
        _id(reserved, "session_id") or session_id,
        _deadline(reserved.get("deadline_ms")),
        tuple(ignored[:20]),
    )


def read_id(value: Any, name: str) -> str | None:
    """An id as text; nothing for none."""
    if value is None:
        return None
    if isinstance(value, bytes) and value.isascii():
        value = value.decode()
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        value = str(value)
    is_good = isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and value.isprintable()
    if not is_good:
        raise InputError(
            f"[id] {name} is {describe(value)}; expected printable text, {MAX_ID_LENGTH} at most"
        )
    return str(value)


def _id(reserved: Mapping[str, Any], name: str) -> str | None:
    return read_id(reserved.get(name), f"{RESERVED}.{name}")


def _deadline(value: Any) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not 0 < (number := float(value)) <= MAX_DEADLINE_MS or math.isnan(number):
        raise InputError(
            f"[deadline] deadline_ms is {describe(value)}; expected above 0, "
            f"{MAX_DEADLINE_MS:.0f} at most"
        )
    return number


def _texts(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"[{RESERVED}] {name} is {describe(value)}; expected a map")
    return {text_key(key): entry for key, entry in value.items()}


def _refuse(unknown: set[str], name: str, allowed: set[str]) -> None:
    if unknown:
        raise InputError(
            f"[{RESERVED}] {name} holds {listed(unknown)}; expected some of {listed(allowed)}"
        )


def _own(value: Any) -> Any:
    """Arrays of the policy's own, that it may keep and write to; plain numbers for scalars."""
    if isinstance(value, np.ndarray):
        return np.array(value, value.dtype.newbyteorder("="))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {text_key(key): _own(entry) for key, entry in value.items()}
    return value
