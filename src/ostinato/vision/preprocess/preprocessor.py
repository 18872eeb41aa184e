"""The door of this package: images and videos of every kind in, patches or a refusal out.

Work runs on a bounded pool of threads (PIL, PyAV and numpy give up the interpreter lock). An item
that cannot be served never takes others of its batch with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ostinato.errors import InputError

from .arrays import Channels
from .config import PreprocessConfig
from .decode import Limits, decode_image
from .patches import Patches, as_rows, grid_of, new_rows
from .resize import image_size, pixel_bounds
from .transform import write_resized


@dataclass(frozen=True)
class ImageOptions:
    """Per call. ``None``: the checkpoint's value; each bound may be given alone."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    channels: Channels | None = None


@dataclass(frozen=True)
class ImageItem:
    """One image (see :func:`decode.decode_image` for what it may be) and its options."""

    source: Any
    options: ImageOptions = ImageOptions()


Item = ImageItem


class Preprocessor:
    """Turns images and videos into patches. Safe to call from any number of threads.

    ``workers``: threads that work at any one time, over all callers.
    """

    def __init__(
        self, config: PreprocessConfig, *, limits: Limits = Limits(), workers: int = 2
    ) -> None:
        self.config = config
        self.limits = limits
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="ostinato-preprocess")

    def image(self, source: Any, options: ImageOptions = ImageOptions()) -> Patches:
        """The patches of one image; raises ``InputError``."""
        return _raise_or_return(self.batch([ImageItem(source, options)])[0])

    def batch(self, items: Sequence[Item]) -> list[Patches | InputError]:
        """Per item its patches, or the error that says why it cannot be served; in order."""
        return list(self._pool.map(self._serve, items))

    def close(self) -> None:
        """Finish what is running and stop the threads."""
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, item: Item) -> Patches | InputError:
        try:
            return self._image(item)
        except InputError as error:
            return error

    def _image(self, item: ImageItem) -> Patches:
        config, options = self.config.image, item.options
        begin = time.perf_counter()
        low, high = pixel_bounds(config, options.min_pixels, options.max_pixels)
        image = decode_image(item.source, limits=self.limits, channels=options.channels)
        decoded = time.perf_counter()
        size = image_size(
            image.height, image.width, factor=config.factor, min_pixels=low, max_pixels=high
        )
        grid = grid_of(1, *size, config)
        rows = new_rows(grid, config)
        write_resized(image, size, rows[0], slice(None), config)
        done = time.perf_counter()
        return Patches(
            as_rows(rows, config),
            grid,
            "image",
            decode_ms=(decoded - begin) * 1e3,
            transform_ms=(done - decoded) * 1e3,
        )


def _raise_or_return(result: Patches | InputError) -> Patches:
    if isinstance(result, InputError):
        raise result
    return result
