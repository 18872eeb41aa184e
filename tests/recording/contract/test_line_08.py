"""Line 8, failure: it denies its key only, and the process is as before."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from ostinato import GraphConfig, state
from ostinato.errors import CaptureFailed, RecordingRefused
from ostinato.recording.region import Region
from ostinato.recording.tape import TapeBackend
from tests.mutations import assert_fails_under
from tests.recording.serving import T, content, graphed, rand, serving


def sometimes(x: T) -> T:
    return x * float(x.sum()) if x.shape[0] == 3 else x * 2


def check_only_the_key_is_denied() -> None:
    served = graphed(sometimes)
    for n in (2, 3, 4, 3, 2, 3, 5):
        x = rand(n, n)
        random = torch.get_rng_state()
        assert content(served(x)) == content(sometimes(x))
        assert served.why().route == ("direct" if n == 3 else "exact")
        assert torch.equal(torch.get_rng_state(), random) and not state.is_active()
    assert served.stats().num_refused == 1 and len(served.stats().refusals) == 1


def test_only_the_key_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("served.refusals_are_forgotten", check_only_the_key_is_denied, monkeypatch)


def test_an_exception_of_the_callable_is_the_callers_and_leaves_no_trace() -> None:
    table = torch.zeros(3)

    def fn(x: T, n: int) -> T:
        table.add_(1)
        if n > 2:
            raise KeyError(n)
        return x + table

    served = graphed(fn)
    with pytest.raises(KeyError):
        served(rand(0, 3), 3)
    before = table.clone()
    served(rand(0, 3), 1)
    assert torch.equal(table, before + 1) and served.why().route == "exact"
    assert not state.is_active()


def test_a_failed_capture_closes_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Region("fails", lambda x: x * 2)) as served:
        served.call((rand(0, 3),), {})
        original = TapeBackend.record
        failure = CaptureFailed("gave up", rule="capture-failed")

        def record(self: TapeBackend, body: Any, **more: Any) -> Any:
            original(self, body, **more)
            raise failure

        with monkeypatch.context() as patched:
            patched.setattr(TapeBackend, "record", record)
            x = rand(1, 4)
            assert content(served.call((x,), {})) == content(x * 2)
            assert "gave up" in served.counters.last().reason  # type: ignore[union-attr]
        (generation,) = served.runner.cache
        assert not generation.is_open
        served.call((rand(0, 5),), {})
        assert [g.is_open for g in served.runner.cache] == [False, True]
        assert content(served.call((rand(0, 3),), {})) == content(rand(0, 3) * 2)
        assert served.counters.last().route == "exact"  # type: ignore[union-attr]


def check_memory_comes_back() -> None:
    storages: list[Any] = []

    def fn(x: T) -> T:
        y = x * 2
        storages.append(weakref.ref(y.untyped_storage()))
        return y * float(y.sum())

    with serving(Region("leaks", fn)) as served:
        for i in range(3):
            served.call((rand(i, 100),), {})
            assert served.runner.budget.held() == 0
        gc.collect()
        assert not [s for s in storages if s() is not None]


def test_memory_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("cache.never_retires", check_memory_leaves_with_close, monkeypatch)
    check_memory_comes_back()


def check_memory_leaves_with_close() -> None:
    served = graphed(lambda x: (x * 2).relu() + 1)
    for _ in range(3):
        for n in (10, 20, 30):
            served(rand(n, n))
        runner = served._only.runner  # type: ignore[union-attr]
        assert runner.budget.held() > 0
        served.close()
        assert runner.budget.held() == 0


def test_record_raises_with_rule_place_and_fix() -> None:
    served = graphed(sometimes)
    with pytest.raises(RecordingRefused, match=r"host-scalar.*test_line_08.py:\d+") as caught:
        served.record(rand(0, 3))
    assert "keep the value in a tensor" in str(caught.value)
    served.record(rand(0, 4))
    assert len(served.recordings()) == 1


def test_running_out_of_memory_denies_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(self: TapeBackend, body: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError("no memory\nmore lines")

    monkeypatch.setattr(TapeBackend, "record", record)
    served = graphed(lambda x: x * 2, GraphConfig(min_hits=1))
    assert content(served(rand(0, 3))) == content(rand(0, 3) * 2)
    assert served.why().reason == "refused: out of memory while recording: no memory"
