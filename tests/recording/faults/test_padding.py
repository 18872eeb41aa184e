"""Rows that nobody writes, empty segments, empty batches: no NaN, and nobody else's data."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ostinato
from ostinato import GraphConfig
from ostinato.errors import RouteUnavailable
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.region import Region
from tests.mutations import assert_fails_under
from tests.recording.segments import attend, packed, region
from tests.recording.serving import T, check_calls, content, graphed, rand, serving

LADDER = GraphConfig(min_hits=1, mode="ladder", ladder_ratio=2.0)
AXIS = Axis("n", top=16, rungs=(4, 16))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=5))
def test_zero_length_segments(layouts: list[list[int]]) -> None:
    with serving(region(), LADDER) as served, ostinato.route("rung"):
        for seed, lengths in enumerate(layouts):
            call = packed(seed, *lengths)
            if sum(lengths):
                torch.testing.assert_close(
                    served.call(call, {}), attend(*call), rtol=1e-4, atol=1e-5
                )


def test_empty_batches() -> None:
    check_calls(
        lambda x: (x.sum(0), torch.relu(x @ torch.ones(3, 2)), x.t()),
        [(rand(i, n, 3),) for i, n in enumerate([0, 2, 0, 0, 2, 1, 0])],
        recorded=0.9,
    )
    rungs = graphed(lambda x: x * 2, LADDER, grows={"x": {0: AXIS}})
    for n in (4, 0, 3, 0, 16):
        with ostinato.route("rung"):
            assert content(rungs(rand(n, n, 2))) == content(rand(n, n, 2) * 2)


def check_unwritten_rows_are_refused() -> None:
    """A region that leaves rows of its result to chance."""

    def fn(x: T) -> T:
        out = torch.empty_like(x)
        out[: x.shape[0] // 2] = x[: x.shape[0] // 2] * 2
        return out

    served = graphed(fn)
    for i in range(3):
        served(rand(i, 6, 2))
        assert served.why().route == "direct"


def check_secrets_do_not_leak() -> None:
    """What a longer call left behind a shorter one is filled before it can be read."""
    region = Region("leak", lambda x: (x, x.abs().sum(1) * 2), grows={0: {0: Grows(AXIS)}})
    with serving(region, LADDER) as served, ostinato.route("rung"):
        for n in (16, 5, 16, 9, 5):
            served.call((torch.full((n, 2), 7.0),), {})
            entry = next(
                e for e in served.recordings.entries() if e.rung and max(e.rung.values()) == 16
            )
            assert (entry.inputs.tensors[0][n:] == 0).all()


@pytest.mark.parametrize(
    ("mutation", "check"),
    [
        ("tape.no_poison_and_no_gate", check_unwritten_rows_are_refused),
        ("buffers.padding_keeps_the_last_call", check_secrets_do_not_leak),
    ],
)
def test_rows(mutation: str, check: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(mutation, check, monkeypatch)  # type: ignore[arg-type]


def test_a_region_that_reads_its_padding_is_refused() -> None:
    for fn in (lambda x: x.flip(0), lambda x: x - x.mean(0), lambda x: torch.softmax(x, 0)):
        served = graphed(fn, LADDER, grows={"x": {0: Axis("n", top=8, rungs=(8,))}})
        x = rand(0, 5, 2)
        with ostinato.route("rung"), pytest.raises(RouteUnavailable, match="gate"):
            served(x)
        assert content(served(x)) == content(fn(x))


def test_two_growing_dimensions() -> None:
    rows, columns = Axis("rows", top=8, rungs=(4, 8)), Axis("columns", top=8, rungs=(2, 8))
    served = graphed(lambda x: x * 2, LADDER, grows={"x": {0: rows, 1: columns}})
    with ostinato.route("rung"):
        for i, (n, m) in enumerate([(8, 8), (3, 2), (8, 1), (1, 8), (5, 5), (4, 2), (3, 1)]):
            assert content(served(rand(i, n, m))) == content(rand(i, n, m) * 2)


def test_inputs_that_do_not_grow_alike_are_served_directly() -> None:
    served = graphed(
        lambda x, y: x.sum(0) + y.sum(0), LADDER, grows={"x": {0: AXIS}, "y": {0: AXIS}}
    )
    for n, m in ((3, 4), (4, 4), (16, 1), (3, 3)):
        x, y = rand(n, n, 2), rand(m + 20, m, 2)
        got = served(x, y)
        torch.testing.assert_close(got, x.sum(0) + y.sum(0))
        if n != m:
            assert served.why() == ("direct", f"axis 'n' is {n} and, by input 1, {m}", ())
