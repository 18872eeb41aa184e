"""Frames and layouts against transformers' own helpers, which run per item with Python loops."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from ostinato.vision.contract import Grid
from ostinato.vision.layout import Layouts
from tests.vision.configs import make_config

sides = st.integers(1, 24).map(lambda units: 2 * units)
grids = st.lists(st.tuples(st.integers(1, 4), sides, sides), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(grids=grids)
def test_positions_and_frame_boundaries(grids: list[Grid]) -> None:
    layout = Layouts(make_config()).exact(grids)
    grid_thw = torch.tensor(grids)
    assert np.array_equal(layout.arrays.positions, get_vision_position_ids(grid_thw, 2).numpy())
    assert np.array_equal(layout.arrays.segment_offsets, get_vision_cu_seqlens(grid_thw).numpy())
    assert layout.item_patches == tuple(t * h * w for t, h, w in grids)
    assert layout.item_tokens == tuple(t * h * w // 4 for t, h, w in grids)
    assert layout.size.max_segment == max(h * w for _, h, w in grids)
    assert layout.size.num_segments == sum(t for t, _, _ in grids)


@settings(max_examples=60, deadline=None)
@given(grids=grids, side=st.integers(1, 48))
def test_interpolation_taps_and_weights(grids: list[Grid], side: int) -> None:
    layout = Layouts(make_config(position_side=side)).exact(grids)
    indices, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor(grids), side, align_corners=True, spatial_merge_size=2
    )
    assert layout.arrays.interpolation_indices is not None
    assert layout.arrays.interpolation_weights is not None
    ours = layout.arrays.interpolation_weights
    assert np.abs(ours - weights.numpy()).max() <= 2**-23
    carries = weights.numpy() > 0
    assert np.array_equal(layout.arrays.interpolation_indices[carries], indices.numpy()[carries])
    assert layout.arrays.interpolation_indices.max() < side**2


@settings(max_examples=60, deadline=None)
@given(grids=grids, side=st.integers(1, 6))
def test_windows(grids: list[Grid], side: int) -> None:
    config = make_config(window_side=side)
    layout = Layouts(config).exact(grids)
    grid_thw = torch.tensor(grids)
    order, offsets = get_vision_window_index(grid_thw, 2, window_size=side * 28, patch_size=14)
    arrays = layout.arrays
    assert arrays.window_order is not None
    assert arrays.window_inverse is not None
    assert arrays.window_offsets is not None
    assert np.array_equal(arrays.window_order, order.numpy())
    assert np.array_equal(arrays.window_offsets, offsets.numpy())
    assert np.array_equal(arrays.window_order[arrays.window_inverse], np.arange(order.numel()))
    assert layout.size.num_windows == offsets.numel() - 1
    assert layout.size.max_window == int(offsets.diff().max()) <= config.max_window_patches
    by_unit = get_vision_position_ids(grid_thw, 2).view(-1, 4, 2)[order].view(-1, 2)
    assert np.array_equal(arrays.positions, by_unit.numpy())


def test_hundreds_of_frames_and_one_row_images() -> None:
    config = make_config(window_side=4, position_side=7)
    grids = [(400, 4, 6), (1, 2, 60), (1, 60, 2)]
    layout = Layouts(config).exact(grids)
    assert np.array_equal(
        layout.arrays.segment_offsets, get_vision_cu_seqlens(torch.tensor(grids)).numpy()
    )
    assert layout.size.num_segments == 402
    assert layout.num_patches == 9600 + 240


def test_same_layout_from_every_route() -> None:
    """Cached frames, cached layouts and fresh ones hold equal bytes."""
    config = make_config(window_side=3, position_side=9)
    warm = Layouts(config)
    warm.exact([(1, 8, 6), (2, 4, 10)])
    for grids in ([(2, 4, 10), (3, 8, 6)], [(1, 8, 6)], [(2, 4, 10), (3, 8, 6)]):
        first, fresh = warm.exact(grids), Layouts(config).exact(grids)
        for mine, theirs in zip(first.arrays, fresh.arrays, strict=True):
            assert mine is not None
            assert theirs is not None
            assert mine.tobytes() == theirs.tobytes()
