"""Typed reading of a policy's configuration: a wrong value is an error that names its field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.errors import ConfigError


class Fields:
    """Typed reading of a JSON object; a null counts as missing."""

    def __init__(self, raw: Mapping[str, Any], what: str) -> None:
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{what} is {raw!r}; expected an object")
        self._raw = raw
        self._what = what

    def refuse_unknown(self, known: set[str]) -> None:
        unknown = sorted(set(self._raw) - known)
        if unknown:
            raise ConfigError(f"{self._what}: unknown keys {', '.join(unknown)}")

    def get(self, name: str, default: Any = None) -> Any:
        value = self._raw.get(name)
        return default if value is None else value

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self._what}: {name} is missing")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._required(name, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self._what}: {name} is {value!r}; expected text")
        return value

    def integer(self, name: str, default: int | None = None, *, at_least: int) -> int:
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise ConfigError(
                f"{self._what}: {name} is {value!r}; expected an integer of at least {at_least}"
            )
        return value

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        at_least: float | None = None,
        above: float | None = None,
    ) -> float:
        value = self._required(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_low = is_number and (
            (at_least is not None and value < at_least) or (above is not None and value <= above)
        )
        if not is_number or is_low or not math.isfinite(value):
            bound = f"at least {at_least}" if above is None else f"above {above}"
            raise ConfigError(
                f"{self._what}: {name} is {value!r}; expected a finite number {bound}"
            )
        return float(value)

    def integers(self, name: str, default: Sequence[int], *, at_least: int) -> tuple[int, ...]:
        value = self.get(name, default)
        is_list = isinstance(value, list | tuple)
        if not is_list or any(
            isinstance(v, bool) or not isinstance(v, int) or v < at_least for v in value
        ):
            raise ConfigError(
                f"{self._what}: {name} is {value!r}; expected integers of at least {at_least}"
            )
        return tuple(value)

    def choice(self, name: str, options: Sequence[Any], default: Any) -> Any:
        value = self.get(name, default)
        if value not in options:
            raise ConfigError(f"{self._what}: {name} is {value!r}; expected one of {options}")
        return value
