"""Layouts from host integers: exact ones from grids, and padded ones for a rung.

A ``Layouts`` belongs to one tower; it keeps recent results under a byte bound. Nothing here
touches a device except ``to_tensors``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ostinato.errors import InputError
from ostinato.vision.bounded import BoundedCache
from ostinato.vision.contract import (
    Grid,
    Int32,
    Layout,
    LayoutArrays,
    LayoutTensors,
    Rung,
    VisionConfig,
)
from ostinato.vision.frames import Frame, make_frame
from ostinato.vision.padding import pad_layout

_Scalar = TypeVar("_Scalar", np.int32, np.float32)


class Layouts:
    """Builds and remembers the layouts of one tower. Safe to call from several threads."""

    def __init__(self, config: VisionConfig, *, max_cache_bytes: int = 64 << 20) -> None:
        self.config = config
        self._frames: BoundedCache[tuple[int, int], Frame] = BoundedCache(max_cache_bytes // 4)
        self._exact: BoundedCache[tuple[Grid, ...], Layout] = BoundedCache(max_cache_bytes // 4)
        self._padded: BoundedCache[tuple[tuple[Grid, ...], Rung], Layout] = BoundedCache(
            max_cache_bytes // 2
        )

    def exact(self, grids: Iterable[Sequence[int]]) -> Layout:
        """The layout of a batch: one ``(frames, rows, columns)`` in patches per image or video.

        Raises ``InputError`` for an empty batch and for a grid that the tower cannot take.
        """
        key = tuple(check_grid(grid, self.config.merge_size) for grid in grids)
        if not key:
            raise InputError("a batch needs at least one item, got none")
        layout = self._exact.get(key)
        if layout is None:
            layout = self._build(key)
            self._exact.put(key, layout, num_bytes(layout.arrays))
        return layout

    def item_size(self, grid: Sequence[int]) -> Rung:
        """The size of one item's exact layout, without making its arrays."""
        n, rows, columns = check_grid(grid, self.config.merge_size)
        frame = self._frame(rows, columns)
        num_windows = 0 if frame.window_ends is None else len(frame.window_ends)
        return Rung(n * rows * columns, n, rows * columns, n * num_windows, frame.max_window)

    def padded(self, layout: Layout, rung: Rung) -> Layout:
        """``layout`` padded up to ``rung``; ``ValueError`` if it does not fit (see ``fits``)."""
        key = (layout.grids, rung)
        padded = self._padded.get(key)
        if padded is None:
            padded = pad_layout(layout, rung, self.config)
            self._padded.put(key, padded, num_bytes(padded.arrays))
        return padded

    def _frame(self, num_rows: int, num_columns: int) -> Frame:
        key = (num_rows, num_columns)
        frame = self._frames.get(key)
        if frame is None:
            frame = make_frame(num_rows, num_columns, self.config)
            self._frames.put(key, frame, frame.num_bytes)
        return frame

    def _build(self, grids: tuple[Grid, ...]) -> Layout:
        unit = self.config.merge_unit
        item_patches = tuple(n * rows * columns for n, rows, columns in grids)
        frames: list[Frame] = []
        lengths: list[int] = []
        for n, rows, columns in grids:
            frames += [self._frame(rows, columns)] * n
            lengths += [rows * columns] * n
        offsets = np.zeros(len(frames) + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        arrays = _join(frames, offsets, unit)
        return Layout(
            grids=grids,
            item_patches=item_patches,
            item_tokens=tuple(n // unit for n in item_patches),
            size=Rung(
                num_patches=int(offsets[-1]),
                num_segments=len(frames),
                max_segment=max(lengths),
                num_windows=0 if arrays.window_offsets is None else len(arrays.window_offsets) - 1,
                max_window=max(frame.max_window for frame in frames),
            ),
            arrays=arrays,
        )


def check_grid(grid: Sequence[int], merge_size: int) -> Grid:
    """A grid as three plain integers; ``InputError`` names the rule it breaks."""
    try:
        frames, rows, columns = (operator.index(value) for value in grid)
    except (TypeError, ValueError):
        raise InputError(
            f"a grid is three integers (frames, rows, columns), got {grid!r}"
        ) from None
    if frames < 1 or rows < 1 or columns < 1:
        raise InputError(f"a grid has no side below 1, got {(frames, rows, columns)}")
    if rows % merge_size or columns % merge_size:
        raise InputError(
            f"rows and columns of a grid must be multiples of {merge_size} (patches are merged), "
            f"got {(frames, rows, columns)}"
        )
    return frames, rows, columns


def to_tensors(arrays: LayoutArrays, device: torch.device | str = "cpu") -> LayoutTensors:
    """Fresh tensors on ``device``, one copy each; the encoder's staged upload does not use this."""
    tensors: dict[str, torch.Tensor] = {
        name: torch.from_numpy(array.copy()).to(device)
        for name, array in arrays._asdict().items()
        if array is not None
    }
    return LayoutTensors(**tensors)


def num_bytes(arrays: LayoutArrays) -> int:
    return sum(array.nbytes for array in arrays if array is not None)


def _join(frames: Sequence[Frame], offsets: Int32, merge_unit: int) -> LayoutArrays:
    """The frames' arrays one after the other; indices shifted by where their frame begins."""
    first = frames[0]
    arrays = LayoutArrays(np.concatenate([f.positions for f in frames]), offsets)
    if first.interpolation_indices is not None:
        arrays = arrays._replace(
            interpolation_indices=_concatenate([f.interpolation_indices for f in frames]),
            interpolation_weights=_concatenate([f.interpolation_weights for f in frames]),
        )
    if first.window_ends is not None:
        starts = offsets[:-1]
        first_units = np.repeat(starts // merge_unit, np.diff(offsets) // merge_unit)
        num_windows = [0 if f.window_ends is None else len(f.window_ends) for f in frames]
        window_offsets = np.zeros(sum(num_windows) + 1, dtype=np.int32)
        window_offsets[1:] = _concatenate([f.window_ends for f in frames])
        window_offsets[1:] += np.repeat(starts, num_windows)
        arrays = arrays._replace(
            window_order=_concatenate([f.window_order for f in frames]) + first_units,
            window_inverse=_concatenate([f.window_inverse for f in frames]) + first_units,
            window_offsets=window_offsets,
        )
    for array in arrays:
        if array is not None:
            array.setflags(write=False)
    return arrays


def _concatenate(parts: Sequence[npt.NDArray[_Scalar] | None]) -> npt.NDArray[_Scalar]:
    return np.concatenate([part for part in parts if part is not None])
