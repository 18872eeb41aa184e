"""Measured times scaled to what a call holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.vision.contract import Rung
from ostinato.vision.estimates import FAVOUR, NEAR, SURE, UNTIMED_CALL, Estimates
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
    assert one == pytest.approx(FAVOUR * 3000)
    assert four == pytest.approx(FAVOUR * 3000 * (20_000 + 10_000) / 60_000)
    none = estimates.direct_us(Load(101, num_pairs=0), is_any_recorded=True)
    assert none == pytest.approx(SURE * 1000)  # what the fastest took
    beyond = estimates.direct_us(Load(400, num_pairs=160_000), is_any_recorded=True)
    assert beyond == pytest.approx(FAVOUR * 3000 * 2**1.25)


def test_where_launching_is_the_slower_side_a_rung_serves() -> None:
    estimates = make()
    for rows, direct_us, recorded_us in ((100, 1000.0, 200.0), (200, 1100.0, 600.0)):
        estimates.add_direct(rows, direct_us)
        estimates.add_recorded(Rung(rows, 8, rows), recorded_us)
    load = Load(150, num_pairs=22_500)
    direct = estimates.direct_us(load, is_any_recorded=True)
    assert direct == pytest.approx(SURE * 1000)
    assert estimates.timed(Rung(200, 8, 200), 600.0).time_of(load) < direct


def test_where_the_gpu_is_the_slower_side_only_a_rung_that_is_nearly_full_serves() -> None:
    """However slow the host was when larger direct calls were timed."""
    estimates = make()
    estimates.add_direct(20, 1000.0)
    estimates.add_direct(200, 90_000.0)
    for rows, recorded_us in ((20, 300.0), (100, 2000.0), (200, 6000.0)):
        estimates.add_recorded(Rung(rows, 8, rows), recorded_us)
    rung = estimates.timed(Rung(200, 8, 200), 6000.0)

    def direct_us(rows: int) -> float:
        return estimates.direct_us(Load(rows, num_pairs=rows * rows), is_any_recorded=True)

    def rung_us(rows: int) -> float:
        return rung.time_of(Load(rows, num_pairs=rows * rows))

    assert direct_us(200) == pytest.approx(FAVOUR * 6000)
    assert direct_us(200) > rung_us(200)
    assert 2000 < direct_us(160) < rung_us(160)
    assert direct_us(180) < rung_us(180)
    assert direct_us(196) > rung_us(196)


def test_a_direct_call_that_was_measured_to_be_faster_is_taken_at_its_word() -> None:
    estimates = make()
    estimates.add_direct(10, 100.0)
    estimates.add_direct(100, 900.0)
    estimates.add_recorded(Rung(100, 8, 100), 1000.0)
    load = Load(100, num_pairs=10_000)
    direct = estimates.direct_us(load, is_any_recorded=True)
    assert direct == pytest.approx(FAVOUR * 900)
    assert estimates.timed(Rung(100, 8, 100), 1000.0).time_of(load) > direct


def test_a_rung_may_take_little_more_than_it_would_without_its_padding() -> None:
    estimates = make()
    estimates.add_direct(100, 1000.0)
    load = Load(100, num_pairs=10_000)
    for busy_us, expected in ((970.0, FAVOUR * 970), (2000.0, FAVOUR * 1000), (10.0, SURE * 1000)):
        assert estimates.direct_us(load, busy_us, is_any_recorded=True) == pytest.approx(expected)
    assert make().direct_us(load, 10.0, is_any_recorded=False) == UNTIMED_CALL


def test_a_recording_that_was_timed_on_a_rested_card_does_not_draw_calls() -> None:
    """Its neighbours in size say what an operation takes."""
    estimates, paces = make(), {1000: 10.0, 1100: 10.2, 1200: 8.8, 1300: 9.9, 1400: 10.1}
    for rows, pace in paces.items():
        estimates.add_recorded(Rung(rows, 8, rows), pace * WORK.of_rows(rows, rows * rows))
    found = {
        rows: estimates.recorded_us(Rung(rows, 8, rows)) / WORK.of_rows(rows, rows * rows)  # type: ignore[operator]
        for rows in paces
    }
    assert found == pytest.approx({1000: 10.0, 1100: 10.0, 1200: 10.0, 1300: 9.9, 1400: 10.1})
    load = Load(1150, num_pairs=1150**2)
    direct = estimates.direct_us(load, is_any_recorded=True)
    assert direct == pytest.approx(FAVOUR * 10 * WORK.of_rows(*load[:1], load.num_pairs))
    rungs = [Rung(rows, 8, rows) for rows in paces]
    timed = [estimates.timed(rung, estimates.recorded_us(rung)) for rung in rungs]
    best = min((t for t in timed if t.holds(load)), key=lambda t: t.time_of(load))
    assert best.source == Rung(1200, 8, 1200)
    assert estimates.recorded_us(Rung(1201, 8, 1201)) is None


def test_only_near_sizes_and_the_same_kernels_are_compared() -> None:
    estimates = make()
    measured = {
        **{Rung(rows, 8, rows): 1000.0 for rows in (100, 200, 300)},  # far apart
        **{Rung(rows, 64, 64): 500.0 for rows in (100, 110, 120)},  # short segments
        Rung(110, 8, 110): 800.0,
        Rung(110, 8, 110, num_windows=3): 810.0,  # as large, of the same kind
    }
    for rung, us in measured.items():
        estimates.add_recorded(rung, us)
    assert {rung: estimates.recorded_us(rung) for rung in measured} == pytest.approx(
        measured, rel=0.02
    )


@given(st.lists(st.tuples(st.integers(64, 4096), st.floats(1, 2)), unique_by=lambda p: p[0]))
def test_a_pace_stays_between_those_of_its_neighbours(points: list[tuple[int, float]]) -> None:
    """And what only falls, as launching does for each row, stays as it was."""
    estimates, falling = make(), make()
    for rows, pace in points:
        rung = Rung(rows, 8, rows)
        estimates.add_recorded(rung, pace * WORK.of_rows(rows, rows * rows))
        falling.add_recorded(rung, 1e6)
    for rows, _ in points:
        rung = Rung(rows, 8, rows)
        found = estimates.recorded_us(rung)
        assert found is not None
        near = [p for n, p in points if n <= NEAR * rows and rows <= NEAR * n]
        pace = found / WORK.of_rows(rows, rows * rows)
        assert min(near) * (1 - 1e-9) <= pace <= max(near) * (1 + 1e-9)
        assert falling.recorded_us(rung) == pytest.approx(1e6)


def test_a_recording_for_more_segments_does_not_make_the_gpu_slower() -> None:
    estimates = make()
    estimates.add_direct(100, 9000.0)
    estimates.add_recorded(Rung(100, 8, 100), 1000.0)
    estimates.add_direct(10, 400.0)
    estimates.add_recorded(Rung(10, 8, 10), 100.0)
    load, launched = Load(100, num_pairs=10_000), Load(10, num_pairs=100)
    before = estimates.direct_us(load, is_any_recorded=True)
    estimates.add_recorded(Rung(100, 64, 100), 1300.0)
    after = estimates.direct_us(load, is_any_recorded=True)
    assert after == before == pytest.approx(FAVOUR * 1000)
    assert estimates.direct_us(launched, is_any_recorded=True) == pytest.approx(SURE * 400)


def test_above_the_sizes_measured_a_call_takes_more_than_in_proportion() -> None:
    estimates = make()
    estimates.add_direct(100, 1000.0)
    estimates.add_recorded(Rung(100, 8, 100), 1000.0)
    estimates.add_recorded(Rung(200, 8, 200), 3000.0)  # its direct call was not measured
    loads = [Load(rows, num_pairs=rows * rows) for rows in (200, 400)]
    at, beyond = (estimates.direct_us(load, is_any_recorded=True) for load in loads)
    assert at == pytest.approx(FAVOUR * 3000)
    work = (40_000 + 160_000) / (20_000 + 40_000)
    assert beyond == pytest.approx(at * work * 2**0.25)


def test_rows_that_windows_leave_unused_are_additive() -> None:
    estimates = make(window=16)
    first, second = Rung(24, 1, 24, 2, 16), Rung(16, 1, 16, 1, 16)
    loads = [estimates.load_of(size) for size in (first, second)]
    both = loads[0].plus(loads[1])
    assert [load.num_windows for load in loads] == [8, 0] and both.num_windows == 8
    assert both.num_pairs == 24**2 + 16**2
    assert estimates.timed(Rung(40, 2, 24, 3, 16), 1.0).holds(both)
    assert not estimates.timed(Rung(40, 2, 24, 2, 16), 1.0).holds(both)
