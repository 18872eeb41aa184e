"""Which sizes of a tower are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, log

from ostinato.errors import ConfigError
from ostinato.kernels.segment_attention.classes import layout_class
from ostinato.kernels.segment_attention.tiles import SHORT
from ostinato.recording.ladder import Ladder
from ostinato.vision.contract import Rung, VisionConfig

SEGMENT_CAPACITIES = (8, 64)
"""Unused segments cost time with some attention kernels, so each size is recorded for few and for
many of them."""

WINDOW_SLACK = 1.5
"""Windows of a rung, over the least number that its patches make: odd grids have
partial windows.
"""

FINE_PATCHES = 3000
"""From here on a call's time is the GPU's, so that padding costs: for few segments there are more
rungs."""

FINE_RATIO = 1.05
"""Of neighbours among them. A row of padding takes about half of its share, since it attends to
little, so that a rung takes hardly more than a direct call that the host does not hold up.
"""

_TILE_ROWS = 192
"""Of a head that a program of the attention kernel takes (FA3, heads of 65 to 96 channels)."""

BOTTOM_PATCHES = 64
TOP_PATCHES = 16_384
CPU_TOP_PATCHES = 1024
"""An image of 448 x 448 pixels in all families; a warm-up for more takes long on a CPU."""


def top_patches_of(device_type: str) -> int:
    """The largest recorded size where none is asked for."""
    return CPU_TOP_PATCHES if device_type == "cpu" else TOP_PATCHES


def tower_rungs(
    config: VisionConfig,
    *,
    top: int = TOP_PATCHES,
    ratio: float = 1.25,
    bottom: int = BOTTOM_PATCHES,
    num_processors: int = 0,
) -> list[Rung]:
    """The rungs of a tower, largest first: a geometric ladder of patches, few and many segments;
    above ``FINE_PATCHES`` more between them, for few; among those the sizes at which attention
    fills the GPU's ``num_processors`` (0: unknown) with whole rounds of tiles, since a few rows
    more take a round more.

    ``top`` and ``bottom`` in patches; sizes are multiples of four tokens where the step allows.
    Raises ``ConfigError`` for a top below one token.
    """
    unit = config.merge_unit
    if top < unit:
        raise ConfigError(f"the largest rung is {top} patches; expected at least {unit}")
    ladder = Ladder.geometric(
        bottom=max(1, min(bottom, top) // (4 * unit)),
        top=ceil(top / (4 * unit)),
        ratio=ratio,
    )
    sizes = [min(size * 4 * unit, top // unit * unit) for size in ladder.rungs]
    between = _between(sorted(set(sizes)), _whole_rounds(config, num_processors, top), 4 * unit)
    return [
        rung_of(config, size, segments)
        for size in sorted({*sizes, *between}, reverse=True)
        for segments in _capacities(size // unit, is_for_many=size in sizes)
    ]


def _between(sizes: Sequence[int], marks: Sequence[int], step: int) -> set[int]:
    """Sizes that make steps above ``FINE_PATCHES`` at most ``FINE_RATIO``, ``marks`` among them."""
    added = {mark // step * step for mark in marks if mark >= FINE_PATCHES}
    for small, large in pairwise(sorted({*sizes, *added})):
        if small >= FINE_PATCHES:
            parts = ceil(log(large / small) / log(FINE_RATIO))
            ratio = (large / small) ** (1 / parts)
            added |= {ceil(small * ratio**part / step) * step for part in range(1, parts)}
    return added - set(sizes)


def _whole_rounds(config: VisionConfig, num_processors: int, top: int) -> list[int]:
    """Rows up to which attention over one segment takes a whole number of rounds of tiles."""
    most = ceil(top * config.num_heads / _TILE_ROWS / num_processors) if num_processors else 0
    ends = [n * num_processors // config.num_heads * _TILE_ROWS for n in range(1, most + 1)]
    return [rows for rows in ends if rows < top]


def rungs_between(rungs: Iterable[Rung]) -> frozenset[Rung]:
    """Those that make a ladder finer: their sizes are recorded for few segments only."""
    listed = list(rungs)
    for_many = {r.num_patches for r in listed if r.num_segments > min(SEGMENT_CAPACITIES)}
    return frozenset(
        r for r in listed if r.num_patches >= FINE_PATCHES and r.num_patches not in for_many
    )


def _capacities(most: int, *, is_for_many: bool) -> list[int]:
    """Segments of the recordings of one size, most first; ``most``: what its patches can make."""
    capacities = SEGMENT_CAPACITIES if is_for_many else SEGMENT_CAPACITIES[:1]
    return sorted({min(segments, most) for segments in capacities}, reverse=True)


def rung_of(config: VisionConfig, num_patches: int, num_segments: int) -> Rung:
    """A rung whose bounds follow from its size: any segment may fill it, windows have slack."""
    window = config.max_window_patches
    num_windows = 0
    if window:
        num_windows = ceil(num_patches / window * WINDOW_SLACK) + num_segments
    return Rung(num_patches, num_segments, num_patches, num_windows, window)


def exact_rung(config: VisionConfig, size: Rung) -> Rung:
    """A rung for exactly as many patches as ``size``: for one segment, or for several.

    One segment, and one window, are kept apart, and so are short ones: attention has kernels of
    its own for them, and an exact recording gives the direct call's bytes.
    """
    needed = size.num_segments
    capacity = 1 if needed == 1 else next((c for c in SEGMENT_CAPACITIES if c >= needed), needed)
    units = size.num_patches // config.merge_unit
    rung = rung_of(config, size.num_patches, max(min(capacity, units), needed))
    return replace(
        rung,
        max_segment=next(
            (min(n, rung.max_segment) for n in SHORT if size.max_segment <= n), rung.max_segment
        ),
        num_windows=1 if size.num_windows == 1 else max(rung.num_windows, size.num_windows),
    )


def has_same_kernels(size: Rung, rung: Rung) -> bool:
    """True when a recording of ``rung`` does for a layout of ``size`` what a direct call does."""
    return size.num_patches == rung.num_patches and _classes(size) == _classes(rung)


def _classes(size: Rung) -> tuple[object, object]:
    """What the choice of an attention kernel looks at, for segments and for windows."""
    return (
        layout_class(size.num_segments, size.max_segment),
        layout_class(size.num_windows, size.max_window),
    )
