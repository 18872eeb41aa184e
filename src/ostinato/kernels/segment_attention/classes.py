"""Classes of row counts and layouts; host integers only, so that a packer can ask as well."""

from __future__ import annotations

from typing import NamedTuple

from ostinato.kernels.segment_attention.tiles import SHORT

_CAPACITIES = (1, 8, 64)
MOST_ROWS = 16_384


class LayoutClass(NamedTuple):
    """``longest``: 64, 128, or 0 for longer; ``capacity``: 1, 8, 64, or 0 for more segments.

    Where segments are short, any number of several is of one class (64).
    """

    longest: int
    capacity: int

    def __str__(self) -> str:
        longest = f"segments up to {self.longest}" if self.longest else "long segments"
        return f"{longest}, {f'at most {self.capacity}' if self.capacity else 'many'}"


def layout_class(num_segments: int, max_length: int) -> LayoutClass:
    """The class of a capacity and a bound; layouts of one class and row count run one kernel."""
    longest = next((n for n in SHORT if max_length <= n), 0)
    capacity = next((n for n in _CAPACITIES if num_segments <= n), 0)
    if longest and num_segments > 1:
        capacity = _CAPACITIES[-1]
    return LayoutClass(longest, capacity)


def row_class(num_rows: int) -> int:
    """Rounded up to a power of two or one and a half times one; ``MOST_ROWS`` for more: what is
    fastest does not change there, and no request waits while it is found out anew.
    """
    num_rows = min(num_rows, MOST_ROWS)
    power = 1 << max(num_rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and num_rows <= power * 3 // 4 else power
