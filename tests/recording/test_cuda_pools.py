"""Pools are destroyed while nothing is captured, whoever drops them and whenever."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ostinato.recording import cuda, cuda_pools, cuda_sync


class Pool:
    """Stands in for ``torch.cuda.MemPool``."""

    id = (0, 1)


class Allocator:
    """Stands in for torch's: it refuses to look through its memory during a capture."""

    def __init__(self) -> None:
        self.is_capturing = False
        self.num_flushed = 0

    def empty_cache(self) -> None:
        if self.is_capturing:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.num_flushed += 1


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocator]:
    made = Allocator()
    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", made.empty_cache, raising=False)
    yield made
    made.is_capturing = False
    cuda_pools.give_back()


def make() -> tuple[cuda.CudaPool, weakref.ref[Any]]:
    backend: Any = object()
    pool = cuda.CudaPool(backend)
    return pool, weakref.ref(pool._pool)


def test_a_closed_pool_is_destroyed_at_once(allocator: Allocator) -> None:
    pool, destroyed = make()
    pool.close()
    assert destroyed() is None and allocator.num_flushed == 1
    cuda_pools.give_back()
    assert allocator.num_flushed == 1  # nothing was left


def test_no_pool_is_destroyed_while_somebody_captures(allocator: Allocator) -> None:
    pool, closed = make()
    allocator.is_capturing = True
    pool.close()
    dropped = make()[1]
    gc.collect()
    assert closed() is not None and dropped() is not None
    allocator.is_capturing = False
    cuda_pools.give_back()
    assert closed() is None and dropped() is None


def test_a_pool_that_is_collected_as_garbage_is_left_to_the_next_call(allocator: Allocator) -> None:
    pool, destroyed = make()
    pool.cycle = pool  # type: ignore[attr-defined]
    del pool
    gc.collect()
    assert destroyed() is not None
    make()[0].close()
    assert destroyed() is None


def test_no_pool_is_destroyed_while_another_lane_warms_up(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator may say nothing when it is only allocated from."""
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda pool: nullcontext())
    pool, closed = make()
    with cuda_pools.allocating_from(Pool()):
        pool.close()
        assert closed() is not None
    cuda_pools.give_back()
    assert closed() is None


def test_no_capture_begins_between_the_question_and_the_end_of_a_pool(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, _ = make()
    has_begun = threading.Event()

    def capture() -> None:
        with cuda_sync.gate.capturing():
            has_begun.set()

    other = threading.Thread(target=capture)

    def flush() -> None:
        other.start()
        assert not has_begun.wait(0.1)

    monkeypatch.setattr(torch._C, "_cuda_emptyCache", flush, raising=False)
    pool.close()
    other.join(5)
    assert has_begun.is_set()
