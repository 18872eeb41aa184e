"""Generations under a budget, with holders that only count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import RecordingRefused
from ostinato.recording import cache as module
from ostinato.recording.cache import Budget, Cache, Generation
from ostinato.recording.tape import TapeLane
from tests.mutations import assert_fails_under


class Holder:
    def __init__(self, num_bytes: int, kept: int = 0) -> None:
        self.is_alive, self.is_free = True, False
        self._num_bytes, self._kept = num_bytes, kept

    @property
    def own_bytes(self) -> int:
        return (self._num_bytes if self.is_alive else 0) + (0 if self.is_free else self._kept)

    def release(self, *, keep_executable: bool) -> None:
        self.is_alive = False
        self.is_free = self.is_free or not keep_executable

    def free(self) -> None:
        self.release(keep_executable=False)


def add(cache: Cache, num_bytes: int, **more: Any) -> tuple[Generation, Holder]:
    generation, holder = cache.current(), Holder(num_bytes, **more)
    cache.add(generation, holder)
    return generation, holder


def check_sequence(sizes: list[int], limit: int) -> None:
    budget = Budget(limit)
    cache = Cache(TapeLane(), budget)
    alive: list[Holder] = []
    for size in sizes:
        if cache.make_room(size, cache.current()):
            alive.append(add(cache, size)[1])
        else:
            assert size > limit
        assert budget.held() == sum(h.own_bytes for h in alive) <= limit
    cache.close()
    assert budget.held() == 0 and all(h.is_free for h in alive)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=40), st.integers(20, 200))
def test_never_above_the_limit(sizes: list[int], limit: int) -> None:
    check_sequence(sizes, limit)


def test_the_limit_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("cache.never_retires", lambda: check_sequence([30] * 5, 100), monkeypatch)


def test_the_least_recently_used_generation_goes_first() -> None:
    cache = Cache(TapeLane(), Budget(100))
    made = [add(cache, 30), add(cache, 30)]
    made += [add(cache, 30)]
    generations = [g for g, _ in made]
    assert generations[0] is generations[1] and generations[2] is not generations[0]
    cache.touch(generations[0])
    assert cache.make_room(20, generations[0])
    assert [h.is_alive for _, h in made] == [True, True, False] and cache.num_evicted == 1


@pytest.mark.parametrize("resets_alone", [True, False])
def test_dropping_one_by_one(resets_alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where executables cannot be reset alone they count until the last of a generation goes."""
    monkeypatch.setattr(module, "_resets_alone", lambda: resets_alone)
    cache = Cache(TapeLane(), Budget(1000))
    generation, first = add(cache, 10, kept=5)
    _, second = add(cache, 20, kept=5)
    cache.drop(generation, first)
    assert cache.bytes_held() == (25 if resets_alone else 30)
    assert first.is_free == resets_alone
    cache.drop(generation, second)
    assert cache.bytes_held() == 0 and list(cache) == [] and first.is_free and second.is_free
    assert cache.num_evicted == 0


def test_a_closed_generation_takes_nothing_new() -> None:
    cache = Cache(TapeLane(), Budget(1000))
    generation, _ = add(cache, 10)
    assert cache.current() is generation
    generation.is_open = False
    assert cache.current() is not generation


def test_reservations() -> None:
    budget = Budget(100)
    budget.reserve("kv", 60)
    budget.reserve("kv", 80)
    with pytest.raises(RecordingRefused, match="other wants 30 bytes and 80 of 100 are taken"):
        budget.reserve("other", 30)
    budget.release("kv")
    budget.release("kv")
    assert budget.held() == 0
