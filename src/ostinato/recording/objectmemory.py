"""Compare in one step what can be changed about many Python objects: the class of an instance, the
code and defaults of a function, the number of items of a dictionary or list.

Like ``rawmemory``: words are read where they were found to lie, and asked for one by one where they
were not.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ostinato.recording import rawmemory

_PARTS = ("__code__", "__defaults__", "__kwdefaults__", "__dict__")
_VERSION_OFFSET = 24  # in a dictionary, where Python counts its changes


class ObjectWatch:
    """Everything given is kept alive here, so the words stay readable."""

    def __init__(
        self,
        instances: Sequence[Any],
        functions: Sequence[types.FunctionType],
        sized: Sequence[Any],
    ) -> None:
        self._instances = tuple(instances)
        self._types = list(map(type, instances))
        self._functions = tuple(functions)
        self._parts = [[getattr(f, part) for part in _PARTS] for f in functions]
        self._words: rawmemory.Words | None = None
        if rawmemory.is_supported():
            addresses = self._addresses()
            if addresses is not None:
                has_length = rawmemory.has_length
                addresses += [rawmemory.length_of(s) for s in sized if has_length(s)]
                self._kept = tuple(sized)
                self._words = rawmemory.indices(addresses)
                sized = [s for s in sized if not has_length(s)]
        self._sized = tuple(sized)
        self._lengths = list(map(len, self._sized))
        self._expected = self._read()

    def _addresses(self) -> list[int] | None:
        offsets = function_offsets()
        if offsets is None:
            return None
        found = [rawmemory.type_of(i) for i in self._instances]
        for function, parts in zip(self._functions, self._parts, strict=True):
            for offset, part in zip(offsets, parts, strict=True):
                address = id(function) + offset
                if rawmemory.word(address) != (id(part) if part is not None else 0):
                    return None
                found.append(address)
        return found

    def _read(self) -> Any:
        if self._words is not None:
            return rawmemory.read(self._words)
        parts = [id(getattr(f, part)) for f in self._functions for part in _PARTS]
        return list(map(type, self._instances)), parts

    def is_unchanged(self) -> bool:
        return self._read() == self._expected and (
            not self._sized or list(map(len, self._sized)) == self._lengths
        )


class ChangeCounts:
    """How often some dictionaries were changed; only where ``has_versions``."""

    def __init__(self, dictionaries: Sequence[dict[Any, Any]]) -> None:
        self._kept = tuple(dictionaries)
        self._words = rawmemory.indices([id(d) + _VERSION_OFFSET for d in dictionaries])
        self._expected = rawmemory.read(self._words) if self._kept else b""

    def is_unchanged(self) -> bool:
        return not self._kept or rawmemory.read(self._words) == self._expected


@cache
def function_offsets() -> tuple[int, ...] | None:
    """Where a function keeps ``_PARTS``; None where they are not found."""

    def probe(a: int = 1, *, b: int = 2) -> None: ...

    parts = [id(getattr(probe, part)) for part in _PARTS]  # first: its __dict__ is made when asked
    words = {rawmemory.word(id(probe) + offset): offset for offset in range(16, 16 + 8 * _SPAN, 8)}
    found = [words.get(part) for part in parts]
    return None if None in found else tuple(found)  # type: ignore[arg-type]


_SPAN = sys.getsizeof(lambda: None) // 8 - 4  # words of a function, less than its head and the GC's


@cache
def has_versions() -> bool:
    """True where every change of a dictionary changes one word of it (Python 3.11 and 3.12)."""
    if not rawmemory.is_supported() or sys.version_info >= (3, 13):
        return False
    probe: dict[Any, Any] = {1: 1}
    seen = [rawmemory.word(id(probe) + _VERSION_OFFSET)]
    changes: list[Callable[[], Any]] = [
        lambda: probe.update({1: 2}),
        lambda: probe.update({2: 2}),
        probe.clear,
    ]
    for change in changes:
        change()
        seen.append(rawmemory.word(id(probe) + _VERSION_OFFSET))
    return len(set(seen)) == len(seen)
