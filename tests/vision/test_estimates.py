"""Measured times scaled to what a call holds."""

from __future__ import annotations

import pytest

from ostinato.vision.contract import Rung
from ostinato.vision.estimates import SURE, UNTIMED_CALL, Estimates
from ostinato.vision.packing import Load
from ostinato.vision.work import Work

WORK = Work(per_row=100.0, per_pair=1.0)


def make(window: int = 0) -> Estimates:
    return Estimates(WORK, window=window, top=1000)


def test_without_a_clock_few_calls_are_cheaper_and_recorded_ones_cheapest() -> None:
    estimates = make()
    direct = estimates.direct_us(Load(100), is_any_recorded=True)
    assert direct == 10 * (UNTIMED_CALL + 100)
    assert estimates.timed(Rung(100, 8, 100), None).time_us == UNTIMED_CALL + 100 < direct
    assert estimates.direct_us(Load(100), is_any_recorded=False) == UNTIMED_CALL


def test_direct_calls_of_several_segments_take_less_down_to_launching() -> None:
    estimates = make()
    estimates.add_direct(100, 1000.0)
    estimates.add_direct(200, 3000.0)
    one = estimates.direct_us(Load(200, num_pairs=40_000), is_any_recorded=True)
    four = estimates.direct_us(Load(200, num_pairs=10_000), is_any_recorded=True)
    assert one == pytest.approx(SURE * 3000)
    assert four == pytest.approx(SURE * 3000 * (20_000 + 10_000) / 60_000)
    none = estimates.direct_us(Load(110, num_pairs=0), is_any_recorded=True)
    assert none == pytest.approx(SURE * 1000)  # what the smallest took
    beyond = estimates.direct_us(Load(400, num_pairs=160_000), is_any_recorded=True)
    assert beyond == pytest.approx(SURE * 3000 * 2**1.25)


def test_a_rung_that_is_as_fast_as_a_direct_call_is_not_chosen() -> None:
    estimates = make()
    estimates.add_direct(100, 1000.0)
    load = Load(100, num_pairs=10_000)
    direct = estimates.direct_us(load, is_any_recorded=True)
    assert estimates.timed(Rung(100, 8, 100), 1000.0).time_of(load) > direct
    assert estimates.timed(Rung(100, 8, 100), 970.0).time_of(load) < direct


def test_rows_that_windows_leave_unused_are_additive() -> None:
    estimates = make(window=16)
    first, second = Rung(24, 1, 24, 2, 16), Rung(16, 1, 16, 1, 16)
    loads = [estimates.load_of(size) for size in (first, second)]
    both = loads[0].plus(loads[1])
    assert [load.num_windows for load in loads] == [8, 0] and both.num_windows == 8
    assert both.num_pairs == 24**2 + 16**2
    assert estimates.timed(Rung(40, 2, 24, 3, 16), 1.0).holds(both)
    assert not estimates.timed(Rung(40, 2, 24, 2, 16), 1.0).holds(both)
