"""What one frame of a given size contributes to a layout; videos repeat it, batches join it.

Pure functions of integers. Patches come in *merge order*: merge units row by row, inside a unit
row by row. Returned arrays are read-only, since they are cached and shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ostinato.vision.contract import Float32, Int32, VisionConfig

_Scalar = TypeVar("_Scalar", np.int32, np.float32)


@dataclass(frozen=True, slots=True)
class Frame:
    """N = rows * columns patches, U = N / merge_unit merge units, W windows that are not empty."""

    positions: Int32
    """(N, 2): row and column, in the order the blocks see (window order if there are windows)."""
    interpolation_indices: Int32 | None
    """(N, 4)."""
    interpolation_weights: Float32 | None
    """(N, 4)."""
    window_order: Int32 | None
    """(U,): merge unit at each place."""
    window_inverse: Int32 | None
    """(U,): place of each merge unit."""
    window_ends: Int32 | None
    """(W,): end of each window, in patches."""
    max_window: int
    """Patches of the largest window; 0 without windows."""

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in _arrays(self))


def make_frame(num_rows: int, num_columns: int, config: VisionConfig) -> Frame:
    """The frame of a grid whose sides are multiples of ``config.merge_size``."""
    merge = config.merge_size
    positions = merge_order_positions(num_rows, num_columns, merge)
    indices = weights = order = inverse = ends = None
    max_window = 0
    if config.position_side:
        indices, weights = interpolation(num_rows, num_columns, merge, config.position_side)
    if config.window_side:
        order, sizes = window_order(num_rows // merge, num_columns // merge, config.window_side)
        max_window = int(sizes.max()) * config.merge_unit
        inverse = np.empty_like(order)
        inverse[order] = np.arange(order.shape[0], dtype=np.int32)
        ends = np.cumsum(sizes * config.merge_unit, dtype=np.int32)
        by_unit = positions.reshape(-1, 2 * config.merge_unit)
        positions = by_unit.take(order, axis=0).reshape(-1, 2)
    frame = Frame(positions, indices, weights, order, inverse, ends, max_window)
    for array in _arrays(frame):
        array.setflags(write=False)
    return frame


def _arrays(frame: Frame) -> Iterator[Int32 | Float32]:
    for name in Frame.__slots__:
        value = getattr(frame, name)
        if isinstance(value, np.ndarray):
            yield value


def merge_order_positions(num_rows: int, num_columns: int, merge: int) -> Int32:
    """(N, 2): row and column of each patch in merge order."""
    shape = (num_rows // merge, num_columns // merge, merge, merge)
    positions = np.empty((*shape, 2), dtype=np.int32)
    rows = np.arange(num_rows, dtype=np.int32).reshape(shape[0], 1, merge, 1)
    columns = np.arange(num_columns, dtype=np.int32).reshape(1, shape[1], 1, merge)
    positions[..., 0] = rows
    positions[..., 1] = columns
    return positions.reshape(-1, 2)


def interpolation(num_rows: int, num_columns: int, merge: int, side: int) -> tuple[Int32, Float32]:
    """Bilinear taps (N, 4) into a ``side`` x ``side`` table and their weights, corners aligned.

    A position ``i`` of ``n`` lies at ``i * (side - 1) / (n - 1)`` of the table (0 for n = 1), in
    float32, between its floor and the next entry. Patches are in merge order.
    """
    row_taps, row_weights = _row_terms(num_rows, merge, side)
    column_taps, column_weights = _column_terms(num_columns, merge, side)
    taps = row_taps[:, None] + column_taps[None, :]
    weights = row_weights[:, None] * column_weights[None, :]
    return taps.reshape(-1, 4), weights.reshape(-1, 4)


@lru_cache(maxsize=256)
def _row_terms(num_rows: int, merge: int, side: int) -> tuple[Int32, Float32]:
    """What a row of units adds to taps and multiplies weights by: (units, 4 * merge_unit) each."""
    taps, weights = _axis_taps(num_rows, side)
    shape = (num_rows // merge, merge, 1, 2, 1)
    return _spread(taps * np.int32(side), shape), _spread(weights, shape)


@lru_cache(maxsize=256)
def _column_terms(num_columns: int, merge: int, side: int) -> tuple[Int32, Float32]:
    """The same for a column of units."""
    taps, weights = _axis_taps(num_columns, side)
    shape = (num_columns // merge, 1, merge, 1, 2)
    return _spread(taps, shape), _spread(weights, shape)


def _spread(
    values: npt.NDArray[_Scalar], shape: tuple[int, int, int, int, int]
) -> npt.NDArray[_Scalar]:
    """One unit per row, as its (rows, columns, row taps, column taps) lie in merge order.

    Flat rows make the product of two axes one long inner loop.
    """
    units, merge = shape[0], max(shape[1], shape[2])
    return np.broadcast_to(values.reshape(shape), (units, merge, merge, 2, 2)).reshape(units, -1)


def _axis_taps(length: int, side: int) -> tuple[Int32, Float32]:
    """(length, 2) taps and weights along one axis."""
    index = np.arange(length, dtype=np.float32)
    source = index * np.float32(side - 1) / np.float32(max(length - 1, 1))
    low = np.floor(source)
    fraction = source - low
    taps = np.stack((low, np.minimum(low + 1, side - 1)), axis=1).astype(np.int32)
    weights = np.stack((1 - fraction, 1 - np.abs(fraction - 1)), axis=1)
    return taps, weights.astype(np.float32)


def window_order(num_rows: int, num_columns: int, side: int) -> tuple[Int32, Int32]:
    """Merge units (U,) window by window, row by row inside each, and each window's size (W,).

    Windows at the right and lower edge are cut off; none is empty.
    """
    row_window = np.arange(num_rows, dtype=np.int32) // side
    column_window = np.arange(num_columns, dtype=np.int32) // side
    windows_per_row = -(-num_columns // side)
    window = row_window[:, None] * np.int32(windows_per_row) + column_window[None, :]
    numbers = window.reshape(-1)
    if windows_per_row * int(row_window[-1] + 1) < 1 << 15:
        numbers = numbers.astype(np.int16)  # numpy sorts 16 bits by radix, in linear time
    order = np.argsort(numbers, kind="stable").astype(np.int32)
    heights, widths = np.bincount(row_window), np.bincount(column_window)
    sizes = (heights[:, None] * widths[None, :]).reshape(-1).astype(np.int32)
    return order, sizes
