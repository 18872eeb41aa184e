"""Keeps results by content, within a byte bound, and computes each of them once at a time.

A key is the content itself (its bytes, hashed, with size, mode and dtype) and everything that
decides what becomes of it (all processing options, the fingerprint of the weights). Values are
the cache's own: the caller hands over something no replay writes to, and what it gets back is
shared and must not be written to. Knows no tensors.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from ostinato.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class ContentKey:
    """What makes two requests the same. Every part is compared, and none has a default."""

    digest: bytes  # of the bytes: pixels, or the encoded file
    form: tuple[Hashable, ...]  # how the bytes are meant: kind, shape or size, mode, dtype
    options: Hashable  # all processing options, as one frozen record
    model: str  # fingerprint of the weights and of the processing configuration


def content_key(content: Any, *, kind: str, options: Hashable, model: str) -> ContentKey:
    """The key of encoded bytes, a ``PIL.Image`` (decoded here if it is not), or an array.

    ``kind``: ``"image"`` or ``"video"``. Anything else raises ``TypeError``: read a file or a
    tensor first. A list of frames is keyed frame by frame.
    """
    digest = hashlib.blake2b(digest_size=32)
    form = _feed(digest.update, content)
    return ContentKey(digest.digest(), (kind, form), options, model)


def _feed(update: Callable[[Any], None], content: Any) -> tuple[Hashable, ...]:
    if isinstance(content, (bytes, bytearray, memoryview)):
        update(content)
        return "encoded", len(content)
    if isinstance(content, np.ndarray):
        if content.dtype.hasobject:
            raise TypeError("an array of objects has no content to hash")
        update(np.ascontiguousarray(content).reshape(-1).view(np.uint8))
        return "array", content.shape, content.dtype.str
    if isinstance(content, (list, tuple)):
        return "frames", tuple(_feed(update, frame) for frame in content)
    if hasattr(content, "getpalette") and hasattr(content, "tobytes"):  # PIL.Image
        update(content.tobytes())
        palette = content.palette.tobytes() if content.palette is not None else b""
        transparency = repr(content.info.get("transparency"))
        return "pil", content.size, content.mode, palette, transparency
    raise TypeError(f"no content key for {type(content).__name__}")


@dataclass
class _Flight(Generic[T]):
    """A computation under way. ``done`` is set once, however it ends."""

    owner: int = field(default_factory=threading.get_ident)
    done: threading.Event = field(default_factory=threading.Event)
    value: T | None = None
    failure: BaseException | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether it was stopped from outside, so that its failure concerns nobody else."""
        is_error = isinstance(self.failure, Exception)
        return self.failure is not None and (
            not is_error or isinstance(self.failure, CancelledError)
        )


@dataclass(frozen=True)
class CacheStats:
    """Counts since the start, and what is held now."""

    num_hits: int
    num_misses: int
    num_joined: int  # calls that waited for another call's computation
    num_evicted: int
    num_oversized: int  # results served and not kept
    num_entries: int
    num_bytes: int


class ContentCache(Generic[T]):
    """A byte-bounded least-recently-used cache. Any thread may use it.

    ``max_bytes``: bound on the sum of ``size_of(value)`` over all entries; 0 keeps nothing.
    ``size_of``: bytes that a value holds.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[T], int]) -> None:
        if max_bytes < 0:
            raise ConfigError(f"max_bytes must be at least 0, got {max_bytes}")
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._num_bytes = 0
        self._counts = dict.fromkeys(("hits", "misses", "joined", "evicted", "oversized"), 0)

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The value of ``key``; ``compute()`` makes it where it is missing.

        Callers that come while another computes wait for that one. Where it fails with an
        ``Exception``, the waiters get the same exception. Where it is cancelled (a cancelled task
        or future, an interrupt), the waiters were not asked: one of them computes anew. Failures
        are not kept. A ``compute`` that asks for its own key is a ``RuntimeError``.
        """
        while True:
            with self._lock:
                if key in self._entries:
                    self._counts["hits"] += 1
                    self._entries.move_to_end(key)
                    return self._entries[key][0]
                flight = self._flights.get(key)
                if flight is None:
                    self._counts["misses"] += 1
                    flight = self._flights[key] = _Flight()
                    break
                if flight.owner == threading.get_ident():
                    raise RuntimeError(f"the computation of {key} waits for itself")
                self._counts["joined"] += 1
            flight.done.wait()
            if flight.failure is None:
                return flight.value  # type: ignore[return-value]
            if not flight.is_cancelled:
                raise flight.failure
        return self._fly(key, flight, compute)

    def peek(self, key: Hashable) -> T | None:
        """The value if it is held; computes nothing, waits for nothing."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def clear(self) -> None:
        """Forget every entry. Computations under way are delivered, and kept."""
        with self._lock:
            self._entries.clear()
            self._num_bytes = 0

    def stats(self) -> CacheStats:
        """A snapshot."""
        with self._lock:
            counts = {f"num_{name}": count for name, count in self._counts.items()}
            return CacheStats(**counts, num_entries=len(self._entries), num_bytes=self._num_bytes)

    def _fly(self, key: Hashable, flight: _Flight[T], compute: Callable[[], T]) -> T:
        try:
            value = compute()
            num_bytes = self._size_of(value)
            flight.value = value
        except BaseException as failure:
            flight.failure = failure
            raise
        else:
            self._keep(key, value, num_bytes)
            return value
        finally:
            with self._lock:
                del self._flights[key]
            flight.done.set()

    def _keep(self, key: Hashable, value: T, num_bytes: int) -> None:
        with self._lock:
            if num_bytes > self._max_bytes:
                self._counts["oversized"] += 1
                return
            while self._num_bytes + num_bytes > self._max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._num_bytes -= freed
                self._counts["evicted"] += 1
            self._entries[key] = (value, num_bytes)
            self._num_bytes += num_bytes
