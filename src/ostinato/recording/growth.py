"""How long each result is for a call of given sizes: found by calling twice, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import torch

from ostinato.errors import RecordingRefused
from ostinato.recording.ladder import Axis


class Length(NamedTuple):
    """``size(axis) * times + plus`` elements."""

    axis: Axis
    times: Fraction
    plus: Fraction

    def of(self, sizes: Mapping[Axis, int]) -> int:
        length = sizes[self.axis] * self.times + self.plus
        if length.denominator != 1:
            raise RecordingRefused(
                f"{sizes[self.axis]} of axis {self.axis.name!r} give {length} elements",
                rule="result-growth",
                fix=f"give the axis a multiple of {self.times.denominator}",
            )
        if length < 0:
            raise RecordingRefused(
                f"{sizes[self.axis]} of axis {self.axis.name!r} give {length} elements",
                rule="result-growth",
            )
        return int(length)


ResultGrowth = list[dict[int, Length]]
"""For each result: dimension -> its length."""


def infer(
    shapes_at: Callable[[Mapping[Axis, int]], Sequence[torch.Size]], rung: Mapping[Axis, int]
) -> ResultGrowth:
    """Result lengths as linear functions of the axes.

    ``shapes_at(sizes)`` makes a direct call padded to ``sizes``. Each axis is enlarged by one step
    alone. Raises ``RecordingRefused`` for a dimension that follows two axes.
    """
    base = shapes_at(rung)
    growth: ResultGrowth = [{} for _ in base]
    for axis, size in rung.items():
        step = axis.multiple
        larger = shapes_at({**rung, axis: size + step})
        for i, (a, b) in enumerate(zip(base, larger, strict=True)):
            for dim, (m, n) in enumerate(zip(a, b, strict=True)):
                if m == n:
                    continue
                if dim in growth[i]:
                    raise RecordingRefused(
                        f"dimension {dim} of result {i} follows both {growth[i][dim].axis.name!r} "
                        f"and {axis.name!r}",
                        rule="result-growth",
                    )
                times = Fraction(n - m, step)
                growth[i][dim] = Length(axis, times, m - times * size)
    return growth


def lengths(growth: ResultGrowth, sizes: Mapping[Axis, int]) -> list[dict[int, int]]:
    """The lengths of every result for a call of ``sizes``."""
    return [{dim: length.of(sizes) for dim, length in dims.items()} for dims in growth]
