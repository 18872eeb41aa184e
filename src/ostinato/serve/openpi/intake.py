"""A robot's map of names to what a policy reads: images, state, prompt; what is left are wishes.

Importable without torch. A name that nobody declared is never taken for another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ostinato.errors import InputError
from ostinato.serve.openpi.codec import text_key
from ostinato.serve.openpi.contract import ObservationSpec
from ostinato.serve.openpi.describe import describe, listed
from ostinato.serve.openpi.images import Array, is_file, read_image

COMPOSITE = "composite"
STATE, JOINTS, GRIPPER = "state", "joint_position", "gripper_position"
PROMPTS = ("prompt", "task")
SMALL = 2**14
"""Bytes of something that is copied without a thought."""
LARGEST = float(np.finfo(np.float32).max)
_PREFIX = re.compile(r"(?:observation[/.])?(?:images[/.])?")
_FROM_ZERO = re.compile(r"exterior_image_(\d)_left")


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """``rename``: name as sent to name as declared. ``is_resized``: other image sizes are brought
    to the declared one.
    """

    rename: Mapping[str, str] = field(default_factory=dict)
    is_resized: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """One entry under its declared name; ``sent`` is the name it came with."""

    sent: str
    value: Any


class Intake:
    """Reads the observations of one policy."""

    def __init__(self, spec: ObservationSpec, settings: IntakeSettings) -> None:
        self._spec = spec
        self._settings = settings
        self._images = {*spec.cameras, *([COMPOSITE] if spec.composite_hw else [])}

    def read(self, message: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The observation (``images``, ``state``, ``prompt``), and the entries that are none of it.

        Raises ``InputError`` with what was expected and what came.
        """
        named: dict[str, Named] = {}
        for name, entry in self._named(message):
            if name in named:
                raise InputError(
                    f"[two-names] {named[name].sent} and {entry.sent} both mean {name}; "
                    "expected one of them"
                )
            named[name] = entry
        observation = {
            "images": self._read_images(named),
            "state": self._read_state(named),
            "prompt": _read_prompt(named),
        }
        return observation, {name: entry.value for name, entry in named.items()}

    def is_quick(self, message: Mapping[Any, Any]) -> bool:
        """Whether ``read`` copies and computes next to nothing: images as declared, no files."""
        return all(map(self._is_quick, message.values()))

    def _is_quick(self, value: Any) -> bool:
        if isinstance(value, np.ndarray):
            is_image = value.dtype == np.uint8 and value.shape[:2] == self._spec.camera_hw
            return is_image or value.nbytes <= SMALL
        if isinstance(value, bytes | str):
            return len(value) <= SMALL and not is_file(value)
        if isinstance(value, list):
            return all(map(self._is_quick, value))
        return not isinstance(value, Mapping) or self.is_quick(value)

    def _named(self, message: Mapping[Any, Any]) -> Iterator[tuple[str, Named]]:
        """Entries under declared names; maps called ``images`` or ``observation`` are opened."""
        flat = list(_flat(message, ""))
        is_from_zero = any(plain.endswith("exterior_image_0_left") for _, plain, _ in flat)
        for sent, plain, value in flat:
            renamed = self._settings.rename.get(sent) or self._settings.rename.get(plain)
            if renamed is not None:
                yield renamed, Named(sent, value)
                continue
            counted = _FROM_ZERO.fullmatch(plain)
            if is_from_zero and counted:
                plain = f"exterior_image_{int(counted[1]) + 1}_left"
            yield self._spec.aliases.get(plain, plain), Named(sent, value)

    def _read_images(self, named: dict[str, Named]) -> dict[str, Array]:
        spec = self._spec
        if COMPOSITE in named and spec.composite_hw is not None:
            for name in spec.cameras:
                named.pop(name, None)
            value = named.pop(COMPOSITE).value
            return {COMPOSITE: read_image(value, COMPOSITE, spec.composite_hw, is_resized=False)}
        missing = [name for name in spec.cameras if name not in named]
        if missing:
            raise InputError(
                f"[missing-cameras] missing {listed(missing)}; expected {listed(spec.cameras)}, "
                f"received {listed(entry.sent for entry in named.values())} "
                "(names are mapped with --rename)"
            )
        images = {}
        for name in spec.cameras:
            entry = named.pop(name)
            label = name if entry.sent == name else f"{name} ({entry.sent})"
            images[name] = read_image(
                entry.value, label, spec.camera_hw, is_resized=self._settings.is_resized
            )
        return images

    def _read_state(self, named: dict[str, Named]) -> Array:
        """(state_dim,) float32, of its own."""
        dim = self._spec.state_dim
        names = [STATE] if STATE in named else [JOINTS, GRIPPER]
        missing = [name for name in names if name not in named]
        if missing:
            raise InputError(
                f"[missing-state] no state; expected state ({dim} numbers), or {JOINTS} and "
                f"{GRIPPER} ({dim} together); received "
                f"{listed(entry.sent for entry in named.values())}"
            )
        parts = [_numbers(named[name].value, named[name].sent) for name in names]
        for name in (STATE, JOINTS, GRIPPER):
            named.pop(name, None)
        num = sum(part.size for part in parts)
        if num != dim:
            sizes = " and ".join(f"{n} {p.size}" for n, p in zip(names, parts, strict=True))
            raise InputError(f"[state-size] {sizes}: {num} numbers; expected {dim}")
        return np.concatenate(parts).astype(np.float32)


def _flat(message: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, str, Any]]:
    """(name as sent, name without prefixes, value)."""
    for key, value in message.items():
        sent = prefix + text_key(key)
        plain = _PREFIX.sub("", sent, count=1)
        if plain in ("images", "observation") and isinstance(value, Mapping):
            yield from _flat(value, f"{sent}.")
        elif plain in ("images", "observation"):
            raise InputError(f"[{plain}] {sent} is {describe(value)}; expected a map of names")
        else:
            yield sent, plain, value


def _numbers(value: Any, name: str) -> Array:
    """A flat float64 array of finite numbers."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"[state-type] {name} is an uneven {describe(value)}") from None
    if array.dtype.kind not in "iuf":
        raise InputError(f"[state-type] {name} is {describe(value)}; expected numbers")
    if array.ndim > 1 and array.size != array.shape[-1]:
        raise InputError(f"[state-shape] {name} is {describe(array)}; expected one row of numbers")
    flat: Array = array.reshape(-1).astype(np.float64)
    is_finite = np.abs(flat) <= LARGEST  # not a number is not
    if not is_finite.all():
        places = np.flatnonzero(~is_finite)[:8].tolist()
        raise InputError(
            f"[state-finite] {name} holds {flat[places].tolist()} at {places}; "
            "expected finite numbers"
        )
    return flat


def _read_prompt(named: dict[str, Named]) -> str:
    """``prompt``, else ``task``, else empty; bytes are UTF-8, a list has one entry."""
    entries = [named.pop(name) for name in PROMPTS if name in named]
    value = next((entry.value for entry in entries if entry.value is not None), "")
    if isinstance(value, list | tuple | np.ndarray) and np.size(value) == 1:
        value = np.asarray(value).reshape(-1)[0].item()
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"[prompt] bytes that are not UTF-8: {error.reason}") from None
    if not isinstance(value, str):
        raise InputError(f"[prompt] the prompt is {describe(value)}; expected text")
    return value
