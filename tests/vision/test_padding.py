"""Properties of padded layouts: every row in a segment, no segment beyond the baked bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ostinato.vision.contract import Grid, Rung
from ostinato.vision.examples import example_layouts
from ostinato.vision.layout import Layouts
from ostinato.vision.padding import fits, misfit
from tests.vision.configs import make_config

sides = st.integers(1, 12).map(lambda units: 2 * units)
batches = st.lists(st.tuples(st.integers(1, 3), sides, sides), min_size=1, max_size=5)
CONFIG = make_config(position_side=6, window_side=2)


@settings(max_examples=150, deadline=None)
@given(
    grids=batches,
    tail_units=st.integers(0, 300),
    spare=st.integers(0, 40),
    slack=st.integers(0, 200),
)
def test_padding_covers_every_row_within_the_bounds(
    grids: list[Grid], tail_units: int, spare: int, slack: int
) -> None:
    layouts = Layouts(CONFIG)
    exact = layouts.exact(grids)
    size = exact.size
    rung = Rung(
        num_patches=size.num_patches + 4 * tail_units,
        num_segments=size.num_segments + spare,
        max_segment=size.max_segment + slack,
        num_windows=size.num_windows + 2 * spare,
        max_window=CONFIG.max_window_patches,
    )
    assume(fits(exact, rung))
    padded = layouts.padded(exact, rung)
    arrays, before = padded.arrays, exact.arrays
    assert padded.size == rung
    assert padded.num_patches == exact.num_patches
    assert padded.item_tokens == exact.item_tokens
    for offsets, real, capacity, bound in (
        (arrays.segment_offsets, before.segment_offsets, rung.num_segments, rung.max_segment),
        (arrays.window_offsets, before.window_offsets, rung.num_windows, rung.max_window),
    ):
        assert offsets is not None
        assert real is not None
        assert offsets.shape == (capacity + 1,)
        assert np.array_equal(offsets[: len(real)], real)
        lengths = np.diff(offsets)
        assert lengths.min() >= 0
        assert lengths.max() <= bound
        assert offsets[0] == 0
        assert offsets[-1] == rung.num_patches
    units = np.arange(rung.num_patches // 4)
    assert arrays.window_order is not None
    assert arrays.window_inverse is not None
    assert np.array_equal(np.sort(arrays.window_order), units)
    assert np.array_equal(arrays.window_order[arrays.window_inverse], units)
    real_units = exact.num_patches // 4
    assert np.array_equal(arrays.window_order[:real_units], before.window_order)
    for padded_array, array in (
        (arrays.positions, before.positions),
        (arrays.interpolation_indices, before.interpolation_indices),
        (arrays.interpolation_weights, before.interpolation_weights),
    ):
        assert padded_array is not None
        assert array is not None
        assert padded_array.shape == (rung.num_patches, array.shape[1])
        assert np.array_equal(padded_array[: len(array)], array)
        assert not padded_array[len(array) :].any()


def test_spare_segments_shorten_the_tail() -> None:
    layouts = Layouts(make_config())
    exact = layouts.exact([(1, 10, 10)])
    rung = Rung(num_patches=1100, num_segments=5, max_segment=1000)
    lengths = np.diff(layouts.padded(exact, rung).arrays.segment_offsets)
    assert lengths.tolist() == [100, 250, 250, 250, 250]
    wide = Rung(num_patches=1100, num_segments=20, max_segment=1000)
    lengths = np.diff(layouts.padded(exact, wide).arrays.segment_offsets)
    assert lengths[1:9].tolist() == [128] * 7 + [104]
    assert not lengths[9:].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_patches": 396}, "400 patches, the rung holds 396"),
        ({"max_segment": 99}, "a segment of 100 patches, the rung allows 99"),
        ({"max_window": 15}, "a window of 16 patches, the rung allows 15"),
        ({"num_segments": 4}, "5 segments with the tail's, the rung holds 4"),
        ({"num_windows": 42}, "43 windows with the tail's, the rung holds 42"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, int], message: str) -> None:
    layouts = Layouts(CONFIG)
    exact = layouts.exact([(4, 10, 10)])
    rung = Rung(num_patches=500, num_segments=5, max_segment=100, num_windows=43, max_window=16)
    assert misfit(exact.size, rung) is None
    worse = replace(rung, **change)
    assert not fits(exact, worse)
    with pytest.raises(ValueError, match=message):
        layouts.padded(exact, worse)


def test_a_rung_ends_with_a_whole_merge_unit() -> None:
    layouts = Layouts(make_config())
    with pytest.raises(ValueError, match="no multiple of 4"):
        layouts.padded(layouts.exact([(1, 2, 2)]), Rung(10, 4, 10))


@settings(max_examples=100, deadline=None)
@given(
    num_units=st.integers(1, 2000),
    num_segments=st.integers(1, 64),
    segment_units=st.integers(1, 2000),
    windowed=st.booleans(),
)
def test_example_layouts_fit_and_differ(
    num_units: int, num_segments: int, segment_units: int, windowed: bool
) -> None:
    config = CONFIG if windowed else make_config()
    rung = Rung(
        num_patches=4 * num_units,
        num_segments=num_segments,
        max_segment=4 * segment_units,
        num_windows=num_units if windowed else 0,
        max_window=config.max_window_patches,
    )
    examples = example_layouts(Layouts(config), rung)
    assert len({layout.grids for layout in examples}) == len(examples)
    for layout in examples:
        assert layout.size == rung
    can_hold_something = num_segments * segment_units >= num_units
    assert bool(examples) >= can_hold_something
