"""A decoded RGB image -> patches, on the CPU, with the bytes of the published processors.

PIL resizes in two passes in which every line stands on its own. With a pool to help, the first
pass is cut into bands of lines, and the second one, with everything that follows, into bands of
lines the other way. The bytes do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .config import PatchConfig
from .pass_order import down_first_rule
from .patches import write_frame

_BICUBIC = Image.Resampling.BICUBIC
_MIN_PIXELS_TO_SHARE = 1 << 18  # below this, handing work over costs more than it saves


class Mapper(Protocol):
    """``map`` of an executor, or the built-in."""

    def __call__(self, fn: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]: ...


def write_resized(
    image: Image.Image,
    size: tuple[int, int],
    rows: NDArray[np.float32],
    slots: slice,
    config: PatchConfig,
    *,
    num_bands: int = 1,
    share: Mapper = map,
) -> None:
    """Resize ``image`` to ``size`` (height, width) and write it into ``rows[t]``.

    See :func:`patches.write_frame` for ``rows`` and ``slots``. ``share`` runs the bands.
    """
    is_small = image.height * image.width < _MIN_PIXELS_TO_SHARE
    down_first = down_first_rule() if num_bands > 1 and not is_small else None
    if down_first is None:
        write_frame(_planes(_resize(image, size)), rows, slots, config)
    elif down_first((image.height, image.width), size):
        half = _resize_lines(image, size[0], num_bands, share, is_down=True)

        def finish_rows(part: tuple[int, int]) -> None:
            top, bottom = part[0] * config.factor, part[1] * config.factor
            band = _resize(half.crop((0, top, half.width, bottom)), (bottom - top, size[1]))
            write_frame(_planes(band), rows[part[0] : part[1]], slots, config)

        list(share(finish_rows, _cut(rows.shape[0], num_bands)))
    else:
        half = _resize_lines(image, size[1], num_bands, share, is_down=False)

        def finish_columns(part: tuple[int, int]) -> None:
            left, right = part[0] * config.factor, part[1] * config.factor
            band = _resize(half.crop((left, 0, right, half.height)), (size[0], right - left))
            write_frame(_planes(band), rows[:, part[0] : part[1]], slots, config)

        list(share(finish_columns, _cut(rows.shape[1], num_bands)))


def _resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image.resize(size[::-1], _BICUBIC)


def _resize_lines(
    image: Image.Image, length: int, num_bands: int, share: Mapper, *, is_down: bool
) -> Image.Image:
    """The first pass: columns to ``length`` rows (``is_down``), or rows to ``length`` columns."""
    width, height = image.size
    if length == (height if is_down else width):
        return image
    result = Image.new("RGB", (width, length) if is_down else (length, height))

    def band(part: tuple[int, int]) -> tuple[tuple[int, int], Image.Image]:
        first, last = part
        if is_down:
            lines = image.crop((first, 0, last, height))
            return (first, 0), _resize(lines, (length, last - first))
        lines = image.crop((0, first, width, last))
        return (0, first), _resize(lines, (last - first, length))

    for place, part in share(band, _cut(width if is_down else height, num_bands)):
        result.paste(part, place)
    return result


def _cut(length: int, num_parts: int) -> list[tuple[int, int]]:
    """``[0, length)`` in at most ``num_parts`` parts of nearly equal size, none empty."""
    edges = [length * part // num_parts for part in range(num_parts + 1)]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def _planes(image: Image.Image) -> tuple[NDArray[np.uint8], ...]:
    return tuple(np.asarray(band) for band in image.split())
