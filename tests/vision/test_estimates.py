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
    estimates.add_times(100, direct_us=1000.0, recorded_us=None)
    estimates.add_times(200, direct_us=3000.0, recorded_us=None)
    one = estimates.direct_us(Load(200, num_pairs=40_000), is_any_recorded=True)
    four = estimates.direct_us(Load(200, num_pairs=10_000), is_any_recorded=True)
    assert one == pytest.approx(3000)
    assert four == pytest.approx(3000 * (20_000 + 10_000) / 60_000)
    none = estimates.direct_us(Load(110, num_pairs=0), is_any_recorded=True)
    assert none == pytest.approx(SURE * 1000)  # what the fastest took
    beyond = estimates.direct_us(Load(400, num_pairs=160_000), is_any_recorded=True)
    assert beyond == pytest.approx(3000 * 2**1.25)


def test_where_launching_is_the_slower_side_a_rung_serves() -> None:
    estimates = make()
    estimates.add_times(100, direct_us=1000.0, recorded_us=200.0)
    estimates.add_times(200, direct_us=1100.0, recorded_us=600.0)
    load = Load(150, num_pairs=22_500)
    direct = estimates.direct_us(load, is_any_recorded=True)
    assert direct == pytest.approx(SURE * 1000)
    assert estimates.timed(Rung(200, 8, 200), 600.0).time_of(load) < direct


def test_where_the_gpu_is_the_slower_side_only_a_full_rung_serves() -> None:
    """However slow the host was when direct calls were timed."""
    estimates = make()
    estimates.add_times(100, direct_us=1000.0, recorded_us=2000.0)
    estimates.add_times(200, direct_us=9000.0, recorded_us=6000.0)
    full, less = Load(200, num_pairs=40_000), Load(190, num_pairs=36_100)
    rung = estimates.timed(Rung(200, 8, 200), 6000.0)
    assert estimates.direct_us(full, is_any_recorded=True) == pytest.approx(rung.time_of(full))
    between = estimates.direct_us(less, is_any_recorded=True)
    assert 2000 < between < rung.time_of(less)
    assert between == pytest.approx(6000 * (19_000 + 36_100) / 60_000, rel=0.05)


def test_a_direct_call_that_was_measured_to_be_faster_is_taken_at_its_word() -> None:
    estimates = make()
    estimates.add_times(100, direct_us=900.0, recorded_us=1000.0)
    load = Load(100, num_pairs=10_000)
    direct = estimates.direct_us(load, is_any_recorded=True)
    assert direct == pytest.approx(900)
    assert estimates.timed(Rung(100, 8, 100), 1000.0).time_of(load) > direct


def test_a_recording_for_more_segments_does_not_make_the_gpu_slower() -> None:
    estimates = make()
    estimates.add_times(100, direct_us=9000.0, recorded_us=1000.0)
    load, launched = Load(100, num_pairs=10_000), Load(10, num_pairs=100)
    estimates.add_times(10, direct_us=500.0, recorded_us=100.0)
    before = estimates.direct_us(load, is_any_recorded=True)
    estimates.add_times(100, direct_us=9000.0, recorded_us=1300.0)
    assert estimates.direct_us(load, is_any_recorded=True) == before == pytest.approx(1000)
    assert estimates.direct_us(launched, is_any_recorded=True) == pytest.approx(SURE * 500)


def test_rows_that_windows_leave_unused_are_additive() -> None:
    estimates = make(window=16)
    first, second = Rung(24, 1, 24, 2, 16), Rung(16, 1, 16, 1, 16)
    loads = [estimates.load_of(size) for size in (first, second)]
    both = loads[0].plus(loads[1])
    assert [load.num_windows for load in loads] == [8, 0] and both.num_windows == 8
    assert both.num_pairs == 24**2 + 16**2
    assert estimates.timed(Rung(40, 2, 24, 3, 16), 1.0).holds(both)
    assert not estimates.timed(Rung(40, 2, 24, 2, 16), 1.0).holds(both)
