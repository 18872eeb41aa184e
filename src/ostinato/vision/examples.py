"""Batches to record a rung with and to check it on: layouts at both extremes of what fits.

One has the longest segments that the rung allows, the other as many segments as it holds and much
padding; a recording of the first that answers right for the second has baked neither boundaries nor
lengths.
"""

from __future__ import annotations

import math

from ostinato.vision.contract import Grid, Layout, Rung
from ostinato.vision.layout import Layouts
from ostinato.vision.padding import fits


def example_layouts(layouts: Layouts, rung: Rung) -> tuple[Layout, ...]:
    """One or two different batches, padded up to ``rung``; empty only if it cannot hold any."""
    unit = layouts.config.merge_unit
    units = rung.num_patches // unit
    longest = min(units, rung.max_segment // unit)
    shortest = min(longest, -(-units // rung.num_segments))
    found: dict[tuple[Grid, ...], Layout] = {}
    for units_per_segment in (longest, max(1, shortest // 2), shortest):
        layout = _largest_batch(layouts, rung, units_per_segment)
        if layout is not None and len(found) < 2:
            found.setdefault(layout.grids, layout)
    return tuple(layouts.padded(layout, rung) for layout in found.values())


def _largest_batch(layouts: Layouts, rung: Rung, units_per_segment: int) -> Layout | None:
    """As many equal images as fit: near-squares of at most ``units_per_segment``, else one row."""
    if units_per_segment < 1:
        return None
    merge = layouts.config.merge_size
    rows = math.isqrt(units_per_segment)
    for shape in ((rows, units_per_segment // rows), (1, units_per_segment)):
        grid = (1, shape[0] * merge, shape[1] * merge)
        count = min(rung.num_segments, rung.num_patches // (grid[1] * grid[2]))
        while count:
            layout = layouts.exact([grid] * count)
            if fits(layout, rung):
                return layout
            count -= max(1, count // 8)
    return None
