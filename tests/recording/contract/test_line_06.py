"""Line 6, results: the caller's own, whatever is replayed afterwards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mutations import assert_fails_under
from tests.recording.serving import T, check_calls, content, graphed, rand


def fn(x: T, y: T) -> dict[str, T]:
    z = x @ y
    return {"z": z, "t": z.t(), "sum": z.sum(), "rows": (x + 1)[:2]}


def check_results_are_kept() -> None:
    calls = [(rand(i, 3, 3), rand(i + 50, 3, 3)) for i in range(8)]
    check_calls(fn, calls, recorded=0.9)


def test_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("results.borrowed_always", check_results_are_kept, monkeypatch)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 5), min_size=3, max_size=20))
def test_any_order_of_shapes(sizes: list[int]) -> None:
    check_calls(fn, [(rand(i, n, n), rand(i + 50, n, n)) for i, n in enumerate(sizes)])


def test_a_caller_may_write_into_its_result() -> None:
    served = graphed(fn)
    x, y = rand(0, 3, 3), rand(1, 3, 3)
    for _ in range(4):
        result = served(x, y)
        assert content(result) == content(fn(x, y))
        for t in result.values():
            t.fill_(7)


def test_borrow_is_the_static_result_until_the_next_replay_of_its_key() -> None:
    served = graphed(lambda x: x * 2)
    x = rand(0, 4)
    served(x)
    first = served.borrow(x)
    assert torch.equal(first, x * 2)
    other = served(rand(1, 5))
    assert torch.equal(first, x * 2) and other.shape == (5,)
    second = served.borrow(x + 1)
    assert second.data_ptr() == first.data_ptr() and torch.equal(first, (x + 1) * 2)
    own = served(x)
    assert own.data_ptr() != first.data_ptr()


def test_results_made_in_inference_mode_are_as_direct() -> None:
    served = graphed(lambda x: x * 2)
    with torch.inference_mode():
        assert served(rand(0, 2)).is_inference() and served(rand(0, 2)).is_inference()
    assert not served(rand(0, 2)).is_inference()
