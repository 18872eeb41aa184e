"""The sizes that are recorded: rungs that always reach their top, and the smallest one
that fits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from ostinato.errors import ConfigError


@dataclass(frozen=True)
class Ladder:
    """Increasing sizes; the last one is the top, and no step is larger than it must be."""

    rungs: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.rungs or self.rungs[0] < 1:
            raise ConfigError(f"a ladder needs rungs of at least 1; got {self.rungs}")
        if any(a >= b for a, b in zip(self.rungs, self.rungs[1:], strict=False)):
            raise ConfigError(f"rungs must increase strictly; got {self.rungs}")

    @classmethod
    def geometric(
        cls, *, bottom: int = 1, top: int, ratio: float = 1.25, multiple: int = 1
    ) -> Ladder:
        """Rungs from ``bottom`` to ``top`` whose neighbours differ by at most ``ratio``.

        Rungs are multiples of ``multiple``, except the top, which is reached exactly. Where a step
        of one ``multiple`` is already more than ``ratio``, the step is one ``multiple``.
        """
        if not 1 <= bottom <= top:
            raise ConfigError(f"a ladder needs 1 <= bottom <= top; got bottom {bottom}, top {top}")
        if ratio <= 1.0:
            raise ConfigError(f"a ladder's ratio must be above 1; got {ratio}")
        if multiple < 1:
            raise ConfigError(f"a ladder's multiple must be at least 1; got {multiple}")
        return cls(tuple(_geometric(bottom, top, ratio, multiple)))

    @property
    def top(self) -> int:
        return self.rungs[-1]

    def fit(self, size: int) -> int | None:
        """The smallest rung of at least ``size``, or ``None`` above the top."""
        at = bisect_left(self.rungs, size)
        return self.rungs[at] if at < len(self.rungs) else None

    def below(self, rung: int) -> int:
        """The largest size that the next smaller rung serves; 0 below the first one."""
        at = bisect_left(self.rungs, rung)
        return self.rungs[at - 1] if at > 0 else 0


def _geometric(bottom: int, top: int, ratio: float, multiple: int) -> Iterator[int]:
    rung = ceil(bottom / multiple) * multiple
    while rung < top:
        yield rung
        rung = max(int(rung * ratio) // multiple * multiple, rung + multiple)
    yield top


@dataclass(frozen=True, eq=False)
class Axis:
    """One thing that grows from call to call: tokens, segments, windows, items.

    ``top`` is the largest size that is recorded (larger calls are direct), ``bottom`` the smallest
    rung, ``multiple`` what every rung but the top divides by. Two axes are equal only when they are
    the same object.
    """

    name: str
    top: int
    bottom: int = 1
    multiple: int = 1
    rungs: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("top", "bottom", "multiple"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(
                    f"Axis {self.name!r}: {name} is {value!r}; expected a whole number of at "
                    "least 1"
                )
        if self.bottom > self.top:
            raise ConfigError(
                f"Axis {self.name!r}: bottom is {self.bottom}; expected at most its top, {self.top}"
            )

    def ladder(self, ratio: float) -> Ladder:
        """The axis's own rungs, or geometric ones of ``ratio``."""
        if self.rungs is not None:
            return Ladder(self.rungs)
        return Ladder.geometric(
            bottom=self.bottom, top=self.top, ratio=ratio, multiple=self.multiple
        )


@dataclass(frozen=True)
class Grows:
    """How one dimension of one input follows an axis.

    The dimension has ``size(axis) * times + plus`` elements. What lies past a call's own elements
    is filled with ``fill``: a number, or an ``Axis`` for that axis's rung. Offsets of segments
    take the rung of the tokens, so that the padding tail is a segment of its own and the segments
    after it are empty; such an input needs one unused segment unless the tokens fill their rung.
    """

    axis: Axis
    times: int = 1
    plus: int = 0
    fill: float | Axis = 0

    def __post_init__(self) -> None:
        if not isinstance(self.axis, Axis):
            raise ConfigError(f"Grows.axis is {self.axis!r}; expected an Axis")
        if type(self.times) is not int or self.times < 1:
            raise ConfigError(
                f"Grows.times is {self.times!r}; expected a whole number of at least 1"
            )
        if type(self.plus) is not int:
            raise ConfigError(f"Grows.plus is {self.plus!r}; expected a whole number")
        if not isinstance(self.fill, (int, float, Axis)):
            raise ConfigError(f"Grows.fill is {self.fill!r}; expected a number or an Axis")

    def fits(self, length: int) -> bool:
        """True when a dimension of ``length`` elements follows the axis."""
        return length >= self.plus and (length - self.plus) % self.times == 0

    def __str__(self) -> str:
        times = f"{self.times} * " if self.times != 1 else ""
        plus = f" + {self.plus}" if self.plus else ""
        return f"{times}{self.axis.name}{plus}"

    def axis_size(self, length: int) -> int:
        """How much of the axis a dimension of ``length`` elements means."""
        size, rest = divmod(length - self.plus, self.times)
        if rest or size < 0:
            raise ConfigError(
                f"a dimension of {length} elements does not follow axis {self.axis.name!r} as "
                f"{self.times} * size + {self.plus}"
            )
        return size

    def length(self, size: int) -> int:
        return size * self.times + self.plus
