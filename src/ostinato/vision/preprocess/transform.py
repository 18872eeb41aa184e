"""A decoded RGB image -> patches, on the CPU, with the bytes of the published processors.

PIL resizes in two passes, each line on its own: across (row by row), then down (column by
column). With a pool to help, the first pass is cut into bands of rows and the rest into bands of
columns; the bytes do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .config import PatchConfig
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
    height, width = size
    if num_bands < 2 or image.height * image.width < _MIN_PIXELS_TO_SHARE:
        write_frame(_planes(image.resize((width, height), _BICUBIC)), rows, slots, config)
        return
    across = _resize_across(image, width, num_bands, share)

    def finish(columns: tuple[int, int]) -> None:
        first, last = columns[0] * config.factor, columns[1] * config.factor
        band = across.crop((first, 0, last, across.height))
        band = band.resize((last - first, height), _BICUBIC)
        write_frame(_planes(band), rows[:, columns[0] : columns[1]], slots, config)

    list(share(finish, _cut(width // config.factor, num_bands)))


def _resize_across(image: Image.Image, width: int, num_bands: int, share: Mapper) -> Image.Image:
    if width == image.width:
        return image
    result = Image.new("RGB", (width, image.height))

    def band(lines: tuple[int, int]) -> tuple[int, Image.Image]:
        top, bottom = lines
        part = image.crop((0, top, image.width, bottom))
        return top, part.resize((width, bottom - top), _BICUBIC)

    for top, part in share(band, _cut(image.height, num_bands)):
        result.paste(part, (0, top))
    return result


def _cut(length: int, num_parts: int) -> list[tuple[int, int]]:
    """``[0, length)`` in at most ``num_parts`` parts of nearly equal size, none empty."""
    edges = [length * part // num_parts for part in range(num_parts + 1)]
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if a < b]


def _planes(image: Image.Image) -> tuple[NDArray[np.uint8], ...]:
    return tuple(np.asarray(band) for band in image.split())
