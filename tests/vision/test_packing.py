"""Packing: every item once, no limit exceeded, never worse than the obvious, order restored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.vision.packing import EMPTY, EXACT_UP_TO, SPLIT, Load, Packer, Rung

counts = st.integers(0, 30)
lengths = st.integers(0, 400)
pairs = st.integers(0, 160_000)
loads = st.builds(Load, st.integers(1, 400), st.integers(1, 20), counts, st.just(1), lengths, pairs)
capacities = st.builds(
    Load, st.integers(1, 1_500), st.integers(1, 60), counts, st.integers(1, 9), lengths, pairs
)


@st.composite
def timed_rungs(draw: st.DrawFn) -> Rung:
    """Pairs take a part of the measured time."""
    capacity, time_us = draw(capacities), draw(st.floats(0, 1_000))
    part = draw(st.sampled_from((0.0, 0.5, 1.0)))
    return Rung(capacity, time_us, pair_us=part * 0.999 * time_us / max(capacity.num_pairs, 1))


rungs = st.lists(timed_rungs(), max_size=12)
batches = st.lists(loads, max_size=24)
slopes = st.tuples(st.floats(0, 500), st.floats(0, 2))


def packer(rungs: list[Rung], slope: tuple[float, float]) -> Packer:
    return Packer(rungs, lambda load, _: slope[0] + slope[1] * load.num_tokens)


def total(items: list[Load]) -> Load:
    """Sums, but of lengths the largest."""
    if not items:
        return EMPTY
    *added, lengths, num_pairs = zip(*items, strict=True)
    return Load(*(sum(values) for values in added), max(lengths), sum(num_pairs))


@settings(deadline=None)
@given(rungs=rungs, batch=batches, slope=slopes)
def test_every_item_once_and_no_limit_exceeded(
    rungs: list[Rung], batch: list[Load], slope: tuple[float, float]
) -> None:
    packing = packer(rungs, slope).pack(batch)
    assert sorted(packing.order) == list(range(len(batch)))
    for call in packing.calls:
        assert call.items
        assert call.load == total([batch[place] for place in call.items])
        if call.rung is not None:
            for taken, held in zip(call.load[:-1], call.rung.capacity[:-1], strict=True):
                assert taken <= held
            assert call.time_us == call.rung.time_of(call.load)
        else:
            assert call.time_us == slope[0] + slope[1] * call.load.num_tokens


@settings(deadline=None)
@given(rungs=rungs, batch=batches, slope=slopes)
def test_never_costlier_than_one_by_one_nor_all_in_one(
    rungs: list[Rung], batch: list[Load], slope: tuple[float, float]
) -> None:
    packs = packer(rungs, slope)
    time_us = packs.pack(batch).time_us
    one_by_one = sum(packs.cheapest(item)[0] for item in batch)
    assert time_us * SPLIT <= one_by_one * (1 + 1e-9)
    if batch:
        assert time_us <= packs.cheapest(total(batch))[0] * (1 + 1e-9)


def partitions(places: list[int]) -> Iterator[list[list[int]]]:
    if not places:
        yield []
        return
    first, rest = places[0], places[1:]
    for partition in partitions(rest):
        yield [[first], *partition]
        for i, group in enumerate(partition):
            yield [*partition[:i], [first, *group], *partition[i + 1 :]]


@settings(max_examples=60, deadline=None)
@given(rungs=rungs, batch=st.lists(loads, max_size=EXACT_UP_TO), slope=slopes)
def test_small_batches_are_solved_exactly(
    rungs: list[Rung], batch: list[Load], slope: tuple[float, float]
) -> None:
    packs = packer(rungs, slope)
    best = min(
        sum(packs.cheapest(total([batch[i] for i in group]))[0] for group in partition)
        for partition in partitions(list(range(len(batch))))
    )
    found = packs.pack(batch)
    if len(found.calls) == 1:
        assert best >= found.time_us * SPLIT * (1 - 1e-9)
    elif batch:
        assert found.time_us == pytest.approx(best)
        assert best < packs.cheapest(total(batch))[0] * SPLIT * (1 + 1e-9)


@settings(deadline=None)
@given(rungs=rungs, load=loads, slope=slopes)
def test_the_cheapest_call_is_the_cheapest(
    rungs: list[Rung], load: Load, slope: tuple[float, float]
) -> None:
    fitting = [r for r in rungs if load.fits(r.capacity)]
    assume(not any(rung.is_alike(load) for rung in fitting))
    expected = min([*(r.time_of(load) for r in fitting), slope[0] + slope[1] * load.num_tokens])
    assert packer(rungs, slope).cheapest(load)[0] == expected


def test_a_padded_rung_that_was_timed_at_a_higher_clock_gives_way_to_a_direct_call() -> None:
    """Its padding takes time at any clock, unless launching takes longer than it all."""
    load, rung = Load(90, num_pairs=8_100), Rung(Load(100, 9, 9, 9, 100, 10_000), 100.0)
    for launching_us, expected in ((80.0, (90.0, None)), (101.0, (100.0, rung))):
        estimates = {float("inf"): 120.0}  # by another rung's time
        packer = Packer([rung], lambda _, busy: max(estimates.get(busy, busy), launching_us))  # noqa: B023
        assert packer.cheapest(load) == expected
    with_pairs = Rung(rung.capacity, 100.0, pair_us=0.005)
    assert with_pairs.unpadded_us(load) == pytest.approx(50 * 0.9 + 0.005 * 8_100)


@pytest.mark.parametrize(
    ("load", "is_alike"),
    [
        (Load(100, 2, 0, 2), True),
        (Load(100, 9, 0, 2), True),
        (Load(99, 2, 0, 2), False),  # padded
        (Load(100, 1, 0, 1), False),  # one segment has other kernels
    ],
)
def test_a_rung_of_the_same_rows_and_kernels_is_never_slower(load: Load, is_alike: bool) -> None:
    rung = Rung(Load(100, 9, 9, 9), 100.0)
    assert rung.is_alike(load) == is_alike
    served = rung if is_alike else None
    assert Packer([rung], lambda load, _: 95.0).cheapest(load)[1] is served
    assert Packer([rung], lambda load, _: 90.0).cheapest(load)[1] is None  # beyond noise
    padded = Rung(Load(110, 9, 9, 9), 95.0)
    assert Packer([rung, padded], lambda load, _: inf).cheapest(load)[1] is (served or padded)
    one = Rung(Load(100, 1, 9, 9), 100.0)
    assert one.is_alike(Load(100, 1, 0, 1)) and not one.is_alike(Load(50, 1, 0, 1))


@settings(deadline=None)
@given(rungs=rungs, batch=batches, slope=slopes)
def test_results_and_side_data_return_in_the_callers_order(
    rungs: list[Rung], batch: list[Load], slope: tuple[float, float]
) -> None:
    packing = packer(rungs, slope).pack(batch)
    adapters = [f"adapter {i}" for i in range(len(batch))]
    results = [
        [(batch[place], adapter) for place, adapter in zip(call.items, dealt, strict=True)]
        for call, dealt in zip(packing.calls, packing.split(adapters), strict=True)
    ]
    assert packing.restore(results) == list(zip(batch, adapters, strict=True))


def test_several_short_segments_take_less_than_the_long_one_a_rung_was_timed_with() -> None:
    rung = Rung(Load(100, 9, 9, 9, 100, 10_000), 10.0, pair_us=6e-4)
    assert rung.time_of(Load(100, num_pairs=10_000)) == 10.0
    assert rung.time_of(Load(80, num_pairs=2_000)) == pytest.approx(10 - 6e-4 * (8_000 - 400))
    assert rung.time_of(Load(100, num_pairs=20_000)) == 10.0  # never more than was measured
    assert rung.least_us == pytest.approx(4.0)
    halves = [Load(50, longest=50, num_pairs=2_500)] * 2
    joined = Packer([rung, Rung(Load(50, 1, 9, 9, 50, 2_500), 3.6)], lambda load, _: 99.0)
    assert [call.rung for call in joined.pack(halves).calls] == [rung]


def test_a_split_that_saves_less_than_noise_is_not_made() -> None:
    one = Rung(Load(50, 99, 9, 99), 10.0)
    for together_us, num_calls in ((21.0, 1), (21.2, 2)):
        rungs = [one, Rung(Load(100, 99, 9, 99), together_us)]
        for num_items in (2, 10):  # searched in two ways
            batch = [Load(100 // num_items)] * num_items
            calls = Packer(rungs, lambda load, _: inf).pack(batch).calls
            assert len(calls) == num_calls
    assert Packer([one], lambda load, _: inf).pack([]).calls == ()


def test_side_data_and_results_must_be_complete() -> None:
    packing = packer([], (1.0, 1.0)).pack([Load(4), Load(9)])
    with pytest.raises(ConfigError, match="1 entries for 2 items"):
        packing.split(["one"])
    with pytest.raises(ValueError, match="argument"):
        packing.restore([[1]] * (len(packing.calls) + 1))


def test_each_dimension_limits_by_itself() -> None:
    """Two items of half a rung each share it, unless one dimension is in the way."""
    for tight in range(4):
        capacity = [100, 100, 100, 100]
        half = Load(10, 10, 10, 1)
        capacity[tight] = half[tight] * 2 - 1
        limited = Packer([Rung(Load(*capacity), 10.0)], lambda load, _: 1_000.0)
        assert [call.items for call in limited.pack([half, half]).calls] == [(0,), (1,)]
        roomy = Packer([Rung(Load(100, 100, 100, 100), 10.0)], lambda load, _: 1_000.0)
        assert len(roomy.pack([half, half]).calls) == 1


def test_the_order_of_packing_is_not_the_callers() -> None:
    """Otherwise the tests above would prove little about restoring it."""
    batch = [Load(60), Load(90), Load(40), Load(10)]
    packing = Packer([Rung(Load(100, 9, 9, 9), 10.0)], lambda load, _: 1_000.0).pack(batch)
    assert {frozenset(call.items) for call in packing.calls} == {
        frozenset({0, 2}),
        frozenset({1, 3}),
    }
    assert packing.order != (0, 1, 2, 3)


def test_a_rung_needs_a_time() -> None:
    with pytest.raises(ConfigError, match="got nan"):
        Packer([Rung(Load(1), float("nan"))], lambda load, _: 1.0)


def test_sixteen_items_take_about_a_millisecond() -> None:
    table = [
        Rung(Load(int(256 * 1.25**i), segments, 1_000, 64), 100 + 60 * 1.25**i + segments)
        for i in range(20)
        for segments in (8, 32, 128)
    ]
    packs = Packer(table, lambda load, _: 800 + 0.3 * load.num_tokens)
    for num_items in (EXACT_UP_TO, 16):
        batch = [Load(100 + 197 * i % 3_000) for i in range(num_items)]
        times_ms = []
        for _ in range(50):
            begin = time.perf_counter()
            packs.pack(batch)
            times_ms.append((time.perf_counter() - begin) * 1e3)
        assert min(times_ms) < 2.0  # half of it on an idle machine; other work is not ours


def test_the_longest_of_several_counts_and_not_their_sum() -> None:
    short, roomy = Rung(Load(128, 8, 0, 8, 64), 5.0), Rung(Load(128, 8, 0, 8, 128), 10.0)
    packer = Packer([short, roomy], lambda load, _: 1_000.0)
    assert packer.pack([Load(64, longest=64)] * 2).calls[0].rung is short
    assert packer.pack([Load(65, longest=65)]).calls[0].rung is roomy
