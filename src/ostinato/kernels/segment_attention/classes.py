"""Classes of row counts and layouts; host integers only, so that a packer can ask as well."""

from __future__ import annotations

from typing import NamedTuple

from ostinato.kernels.segment_attention.tiles import SHORT

_CAPACITIES = (1, 8, 64)
MOST_ROWS = 16_384
FINE_ROWS = 4096
"""Above, the fastest changes within half an octave, and by more than the rest of a call gains: for
up to 8 segments our kernel was chosen at 4,256 rows, where 4,796 of one segment take it 323 us and
FA3 276 (H200).
"""


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
    """Rounded up to a power of two or one and a half times one, and above ``FINE_ROWS`` to quarters
    between two powers; ``MOST_ROWS`` for more: what is fastest does not change there, and no
    request waits while it is found out anew.
    """
    num_rows = max(1, min(num_rows, MOST_ROWS))
    power = 1 << (num_rows - 1).bit_length()
    step = power // 8 if num_rows > FINE_ROWS else power // 4
    return -(-num_rows // step) * step if step else power
