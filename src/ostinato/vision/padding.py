"""Pads a layout up to a rung, so that every row of the rung belongs to a segment.

The tail (rows past the real ones) becomes segments and windows of its own, none longer than the
rung's bounds, so that ``max_length`` baked into the recording stays a proven upper bound. Spare
segments make the tail cheaper: attention costs the square of a segment's length. What is left of
the capacity repeats the last offset. Permutations stay permutations: the tail keeps its place.
"""

from __future__ import annotations

import numpy as np

from ostinato.vision.contract import Int32, Layout, LayoutArrays, Rung, VisionConfig

_TAIL_ROWS = 128
"""A tail segment is not made shorter than this: one tile of the attention kernels."""


def fits(layout: Layout, rung: Rung) -> bool:
    """True if ``pad_layout`` can pad ``layout`` up to ``rung``."""
    return misfit(layout.size, rung) is None


def misfit(size: Rung, rung: Rung) -> str | None:
    """Why a layout of ``size`` does not fit the rung, or ``None``."""
    tail = rung.num_patches - size.num_patches
    if tail < 0:
        return f"{size.num_patches} patches, the rung holds {rung.num_patches}"
    if size.max_segment > rung.max_segment:
        return f"a segment of {size.max_segment} patches, the rung allows {rung.max_segment}"
    if size.max_window > rung.max_window:
        return f"a window of {size.max_window} patches, the rung allows {rung.max_window}"
    segments = size.num_segments + _ceil_div(tail, rung.max_segment)
    if segments > rung.num_segments:
        return f"{segments} segments with the tail's, the rung holds {rung.num_segments}"
    if size.num_windows:
        windows = size.num_windows + _ceil_div(tail, rung.max_window)
        if windows > rung.num_windows:
            return f"{windows} windows with the tail's, the rung holds {rung.num_windows}"
    return None


def pad_layout(layout: Layout, rung: Rung, config: VisionConfig) -> Layout:
    """``layout`` with ``rung``'s shapes; tail rows have position 0 and interpolation weight 0.

    Raises ``ValueError`` saying what does not fit.
    """
    reason = misfit(layout.size, rung)
    if reason is None and rung.num_patches % config.merge_unit:
        reason = f"{rung.num_patches} patches are no multiple of {config.merge_unit}"
    if reason is not None:
        raise ValueError(f"the layout does not fit the rung: {reason}")
    exact = layout.arrays
    rows = rung.num_patches
    units = rows // config.merge_unit
    arrays = LayoutArrays(
        positions=_extend(exact.positions, rows),
        segment_offsets=pad_offsets(
            exact.segment_offsets, rows, rung.num_segments, rung.max_segment
        ),
    )
    if exact.interpolation_indices is not None and exact.interpolation_weights is not None:
        weights = np.zeros((rows, 4), dtype=np.float32)
        weights[: exact.interpolation_weights.shape[0]] = exact.interpolation_weights
        arrays = arrays._replace(
            interpolation_indices=_extend(exact.interpolation_indices, rows),
            interpolation_weights=weights,
        )
    if exact.window_order is not None and exact.window_inverse is not None:
        assert exact.window_offsets is not None
        arrays = arrays._replace(
            window_order=_extend_identity(exact.window_order, units),
            window_inverse=_extend_identity(exact.window_inverse, units),
            window_offsets=pad_offsets(
                exact.window_offsets, rows, rung.num_windows, rung.max_window
            ),
        )
    for array in arrays:
        if array is not None:
            array.setflags(write=False)
    return Layout(layout.grids, layout.item_patches, layout.item_tokens, rung, arrays)


def pad_offsets(offsets: Int32, num_rows: int, capacity: int, max_length: int) -> Int32:
    """(capacity + 1,) int32: ``offsets``, then the tail up to ``num_rows``, then repeats of it.

    The caller has checked that ``capacity`` leaves room for the tail in parts of ``max_length``.
    """
    used = offsets.shape[0] - 1
    real_rows = int(offsets[-1])
    tail, spare = num_rows - real_rows, capacity - used
    padded = np.full(capacity + 1, num_rows, dtype=np.int32)
    padded[: used + 1] = offsets
    if tail:
        length = max(_ceil_div(tail, spare), min(_TAIL_ROWS, max_length))
        num_parts = _ceil_div(tail, length)
        begins = real_rows + length * np.arange(num_parts, dtype=np.int32)
        padded[used : used + num_parts] = begins
    return padded


def _extend(array: Int32, num_rows: int) -> Int32:
    """``array`` with zero rows appended."""
    extended = np.zeros((num_rows, *array.shape[1:]), dtype=np.int32)
    extended[: array.shape[0]] = array
    return extended


def _extend_identity(order: Int32, num_units: int) -> Int32:
    extended = np.arange(num_units, dtype=np.int32)
    extended[: order.shape[0]] = order
    return extended


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
