"""The ladder of a tower, and the rungs for exactly one size."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.vision.layout import Layouts
from ostinato.vision.packing import Load
from ostinato.vision.padding import fits
from ostinato.vision.rungs import (
    FINE_PATCHES,
    FINE_RATIO,
    exact_rung,
    has_same_kernels,
    rungs_between,
    tower_rungs,
)
from tests.mutations import assert_fails_under
from tests.vision.configs import make_config
from tests.vision.encoders import batches, make, tower_of

PLAIN, WINDOWS = make_config(position_side=7), make_config(window_side=4)


@settings(deadline=None)
@given(top=st.integers(4, 20_000), num_processors=st.sampled_from([0, 16, 132]))
def test_the_ladder_reaches_its_top_in_small_steps(top: int, num_processors: int) -> None:
    rungs = tower_rungs(PLAIN, top=top, num_processors=num_processors)
    sizes = sorted({rung.num_patches for rung in rungs})
    assert sizes[-1] == top // 4 * 4
    assert all(size % 4 == 0 for size in sizes)
    for a, b in pairwise(sizes):
        assert b <= max(a * 1.25, a + 16)
        assert b <= a * FINE_RATIO + 16 or a < FINE_PATCHES
    assert rungs == sorted(rungs, key=lambda r: (-r.num_patches, -r.num_segments))
    assert len(set(rungs)) == len(rungs)


def test_rungs_between_are_for_few_segments_and_leave_the_geometric_ladder() -> None:
    rungs = tower_rungs(PLAIN)
    between = rungs_between(rungs)
    rest = [r for r in rungs if r not in between]
    assert between and all(r.num_segments == 8 for r in between)
    assert sorted({r.num_patches for r in rest if r.num_segments == 8}) == sorted(
        {r.num_patches for r in rest if r.num_segments != 8}
    )
    for a, b in pairwise(sorted({r.num_patches for r in rest})):
        assert 1.05 * a < b <= max(a * 1.25, a + 16)


def test_rungs_between_include_whole_rounds_of_tiles() -> None:
    """16 heads of 192 rows a tile on 132 processors: 8, 16, 24, 33, 41, ... tiles of rows."""
    config = replace(PLAIN, width=1152, num_heads=16)
    sizes = {r.num_patches for r in rungs_between(tower_rungs(config, num_processors=132))}
    assert sizes >= {192 * rounds for rounds in (16, 24, 33, 41, 49, 57, 66, 74, 82)}
    plain = {r.num_patches for r in rungs_between(tower_rungs(config))}
    assert not plain & {192 * 49, 192 * 57}


def test_a_top_below_one_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 patches"):
        tower_rungs(PLAIN, top=3)


@settings(deadline=None)
@given(grids=batches())
def test_an_exact_rung_holds_its_layout_and_runs_the_direct_calls_kernels(grids: list) -> None:  # type: ignore[type-arg]
    assume(grids)
    for config in (PLAIN, WINDOWS):
        layout = Layouts(config).exact(grids)
        rung = exact_rung(config, layout.size)
        assert fits(layout, rung)
        assert has_same_kernels(layout.size, rung)
        assert rung.num_patches == layout.size.num_patches
        assert (rung.num_segments == 1) == (layout.size.num_segments == 1)


@settings(deadline=None, max_examples=60)
@given(grids=batches())
def test_what_packing_puts_on_a_rung_fits_it(grids: list) -> None:  # type: ignore[type-arg]
    assume(grids)
    for name in ("tiny-qwen2.5-vl", "tiny-qwen3-vl"):
        _, recorded = make(tower_of(name))
        layouts, load = recorded.layouts, Load(0, 0, 0, 0)
        for grid in grids:
            load = load.plus(recorded.estimates.load_of(layouts.item_size(grid)))
        layout = layouts.exact(grids)
        assert load.num_segments == layout.size.num_segments
        for rung in [*recorded._rungs, exact_rung(layouts.config, layout.size)]:
            timed = recorded.estimates.timed(rung, 1.0)
            if timed.holds(load):
                assert fits(layout, rung)
        assert recorded.estimates.timed(exact_rung(layouts.config, layout.size), 1.0).holds(load)


def test_a_rung_leaves_a_segment_to_the_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        _, recorded = make(tower_of("tiny-qwen3-vl"))
        layout = recorded.layouts.exact([(8, 2, 4)])
        rung = next(r for r in recorded._rungs if (r.num_patches, r.num_segments) == (128, 8))
        load = recorded.estimates.load_of(layout.size)
        assert recorded.estimates.timed(rung, 1.0).holds(load) == fits(layout, rung)

    assert_fails_under("packing.the_tail_takes_nothing", run, monkeypatch)
