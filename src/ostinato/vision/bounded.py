"""A small cache under a byte bound; the entry that was not asked for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class BoundedCache(Generic[_Key, _Value]):
    """Safe to call from several threads. A value larger than the bound is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._lock = Lock()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: _Key) -> _Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: _Key, value: _Value, num_bytes: int) -> None:
        """Keep ``value``, dropping older entries as needed."""
        with self._lock:
            former = self._entries.pop(key, None)
            if former is not None:
                self._num_bytes -= former[1]
            if num_bytes > self._max_bytes:
                return
            self._entries[key] = (value, num_bytes)
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._num_bytes -= dropped
