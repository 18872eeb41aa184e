"""All recordings of a lane under one byte budget: generations that share a pool, retired as a
whole.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from ostinato.errors import RecordingRefused
from ostinato.recording.backend import Backend, Pool
from ostinato.recording.shared import SharedBuffers

GENERATION_SHARE = 0.5
"""A generation takes no more recordings once it holds this share of the budget."""


def _resets_alone() -> bool:
    """True where destroying one graph leaves its stream's workspaces alone (torch up to 2.11)."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) <= (2, 11)


class Holder(Protocol):
    """What a generation keeps: one recording with its static tensors."""

    is_alive: bool

    @property
    def own_bytes(self) -> int: ...

    def release(self, *, keep_executable: bool) -> None: ...

    def free(self) -> None: ...


class Budget:
    """A number of bytes that several owners share: recordings, and who else wants to (a KV cache).

    ``reserve`` and ``release`` are for other owners; recordings are asked for what they hold.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._reserved: dict[str, int] = {}
        self._askers: list[Callable[[], int]] = []
        self._lock = threading.Lock()

    def ask(self, held: Callable[[], int]) -> None:
        """Count what ``held()`` returns, from now on."""
        with self._lock:
            self._askers.append(held)

    def forget(self, held: Callable[[], int]) -> None:
        with self._lock:
            self._askers.remove(held)

    def reserve(self, owner: str, num_bytes: int) -> None:
        """Set what ``owner`` takes; raises ``RecordingRefused`` when it does not fit beside the
        rest.
        """
        others = self.held() - self._reserved.get(owner, 0)
        if others + num_bytes > self.limit_bytes:
            raise RecordingRefused(
                f"{owner} wants {num_bytes} bytes and {others} of {self.limit_bytes} are taken",
                rule="budget",
            )
        with self._lock:
            self._reserved[owner] = num_bytes

    def release(self, owner: str) -> None:
        with self._lock:
            self._reserved.pop(owner, None)

    def held(self) -> int:
        with self._lock:
            return sum(self._reserved.values()) + sum(ask() for ask in self._askers)


class Generation:
    """Recordings that share one pool. Its segments return when the last of them is freed."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.pool = pool
        self.number = number
        self.is_open = True
        self.last_used = 0
        self.pool_bytes = 0
        self.members: list[Holder] = []
        self.shared = SharedBuffers()

    def measure(self) -> None:
        self.pool_bytes = self.pool.bytes_held()

    def bytes_held(self) -> int:
        own = sum(m.own_bytes for m in self.members)
        return self.pool_bytes + self.shared.num_bytes + own


class Cache:
    """Generations of one lane and the budget they live under. Used on the lane's thread or under
    its lock.
    """

    def __init__(self, backend: Backend, budget: Budget) -> None:
        self._backend = backend
        self.budget = budget
        self._generations: list[Generation] = []
        self._numbers = itertools.count()
        self._ticks = itertools.count(1)
        self.num_evicted = 0
        budget.ask(self.bytes_held)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._generations)

    def bytes_held(self) -> int:
        return sum(g.bytes_held() for g in list(self._generations))

    def current(self) -> Generation:
        """The generation that takes the next recording; a new one where the last is closed or
        full.
        """
        last = self._generations[-1] if self._generations else None
        share = self.budget.limit_bytes * GENERATION_SHARE
        if last is not None and last.is_open and last.bytes_held() < share:
            return last
        self._generations.append(Generation(self._backend.open_pool(), next(self._numbers)))
        return self._generations[-1]

    def touch(self, generation: Generation) -> None:
        generation.last_used = next(self._ticks)

    def make_room(self, num_bytes: int, keep: Generation) -> bool:
        """Retire generations, least recently used first, until ``num_bytes`` more fit.

        ``keep`` is retired last; its recordings are freed but it is opened anew by ``current``.
        False when not even an empty cache has room.
        """
        if not self.retire_others(keep, num_bytes) and keep.members:
            self.retire(keep)
        return self._has_room(num_bytes)

    def retire_others(self, keep: Generation, num_bytes: int) -> bool:
        """Retire generations but ``keep``, least recently used first, until ``num_bytes`` more fit;
        False when that is not enough.
        """
        others = [g for g in self._generations if g is not keep]
        for generation in sorted(others, key=lambda g: g.last_used):
            if self._has_room(num_bytes):
                return True
            self.retire(generation)
        return self._has_room(num_bytes)

    def _has_room(self, num_bytes: int) -> bool:
        return self.budget.held() + num_bytes <= self.budget.limit_bytes

    def add(self, generation: Generation, holder: Holder) -> None:
        generation.members.append(holder)
        generation.measure()
        self.touch(generation)

    def drop(self, generation: Generation, holder: Holder) -> None:
        """Give up one recording; its executable lives on where resetting it alone is not safe."""
        holder.release(keep_executable=not _resets_alone())
        if _resets_alone() and holder in generation.members:
            generation.members.remove(holder)
        if not any(m.is_alive for m in generation.members):
            self.retire(generation, is_eviction=False)

    def retire(self, generation: Generation, *, is_eviction: bool = True) -> None:
        """Free every recording of a generation, then its pool."""
        if generation in self._generations:
            self._generations.remove(generation)
            self.num_evicted += len(generation.members) if is_eviction else 0
            members, generation.members = generation.members, []
            for holder in members:
                holder.free()
            generation.is_open = False
            generation.pool.close()
            generation.pool_bytes = 0

    def close(self) -> None:
        for generation in list(self._generations):
            self.retire(generation, is_eviction=False)
        self.budget.forget(self.bytes_held)
