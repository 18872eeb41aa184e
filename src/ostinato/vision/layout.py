"""Layouts from host integers: exact ones from grids, and padded ones for a rung.

A ``Layouts`` belongs to one tower; it keeps recent results under a byte bound. Nothing here
touches a device except ``to_tensors``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
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
        frames = [self._frame(rows, columns) for _, rows, columns in grids]
        repeats = [grid[0] for grid in grids]
        areas = [rows * columns for _, rows, columns in grids]
        item_patches = tuple(n * area for n, area in zip(repeats, areas, strict=True))
        starts = tuple(accumulate(item_patches, initial=0))
        ends = [
            start + area * np.arange(1, n + 1, dtype=np.int32)
            for start, area, n in zip(starts, areas, repeats, strict=False)
        ]
        arrays = LayoutArrays(
            positions=_join([f.positions for f in frames], repeats),
            segment_offsets=_with_zero(ends),
        )
        max_window = 0
        if self.config.position_side:
            arrays = arrays._replace(
                interpolation_indices=_join([f.interpolation_indices for f in frames], repeats),
                interpolation_weights=_join([f.interpolation_weights for f in frames], repeats),
            )
        if self.config.window_side:
            steps = [area // unit for area in areas]
            begins = [start // unit for start in starts]
            offsets = _with_zero(
                _shifted([f.window_ends for f in frames], repeats, starts, areas)
            )
            orders = _shifted([f.window_order for f in frames], repeats, begins, steps)
            inverses = _shifted([f.window_inverse for f in frames], repeats, begins, steps)
            arrays = arrays._replace(
                window_order=np.concatenate(orders),
                window_inverse=np.concatenate(inverses),
                window_offsets=offsets,
            )
            max_window = int(np.diff(offsets).max())
        _freeze(arrays)
        return Layout(
            grids=grids,
            item_patches=item_patches,
            item_tokens=tuple(n // unit for n in item_patches),
            size=Rung(
                num_patches=starts[-1],
                num_segments=sum(repeats),
                max_segment=max(areas),
                num_windows=0
                if arrays.window_offsets is None
                else arrays.window_offsets.shape[0] - 1,
                max_window=max_window,
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
    return LayoutTensors(
        *(None if a is None else torch.from_numpy(a.copy()).to(device) for a in arrays)
    )


def num_bytes(arrays: LayoutArrays) -> int:
    return sum(array.nbytes for array in arrays if array is not None)


def _join(
    parts: Sequence[npt.NDArray[_Scalar] | None], repeats: Sequence[int]
) -> npt.NDArray[_Scalar]:
    """Each part ``repeats`` times, one after the other."""
    return np.concatenate(
        [part for part, n in zip(parts, repeats, strict=True) if part is not None for _ in range(n)]
    )


def _shifted(
    parts: Sequence[Int32 | None], repeats: Sequence[int], starts: Sequence[int], steps: Sequence[int]
) -> list[Int32]:
    """Each part once per frame, shifted by where that frame begins."""
    shifted = []
    for part, n, start, step in zip(parts, repeats, starts, steps, strict=False):
        assert part is not None
        begins = start + step * np.arange(n, dtype=np.int32)
        shifted.append((part[None, :] + begins[:, None]).reshape(-1))
    return shifted


def _with_zero(parts: Sequence[Int32]) -> Int32:
    return np.concatenate([np.zeros(1, dtype=np.int32), *parts])


def _freeze(arrays: LayoutArrays) -> None:
    for array in arrays:
        if array is not None:
            array.setflags(write=False)
