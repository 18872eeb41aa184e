"""Which sizes of a tower are recorded."""

from __future__ import annotations

from math import ceil

from ostinato.errors import ConfigError
from ostinato.recording.ladder import Ladder
from ostinato.vision.contract import Rung, VisionConfig

SEGMENT_CAPACITIES = (8, 64)
"""Unused segments cost time with some attention kernels, so each size is recorded for few and for
many of them."""

WINDOW_SLACK = 1.5
"""Windows of a rung, over the least number that its patches make: odd grids have
partial windows.
"""

BOTTOM_PATCHES = 64
TOP_PATCHES = 16_384


def tower_rungs(
    config: VisionConfig,
    *,
    top: int = TOP_PATCHES,
    ratio: float = 1.25,
    bottom: int = BOTTOM_PATCHES,
) -> list[Rung]:
    """The rungs of a tower, largest first: a geometric ladder of patches, few and many segments.

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
    return [
        rung_of(config, size, segments)
        for size in sorted(set(sizes), reverse=True)
        for segments in sorted({min(s, size // unit) for s in SEGMENT_CAPACITIES}, reverse=True)
    ]


def rung_of(config: VisionConfig, num_patches: int, num_segments: int) -> Rung:
    """A rung whose bounds follow from its size: any segment may fill it, windows have slack."""
    window = config.max_window_patches
    num_windows = 0
    if window:
        num_windows = ceil(num_patches / window * WINDOW_SLACK) + num_segments
    return Rung(num_patches, num_segments, num_patches, num_windows, window)
