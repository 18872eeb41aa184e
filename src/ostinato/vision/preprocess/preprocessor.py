"""The door of this package: images and videos of every kind in, patches or a refusal out.

Work runs on a bounded pool of threads (PIL, PyAV and numpy give up the interpreter lock). An item
that cannot be served never takes others of its batch with it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch
from PIL import Image

from ostinato.errors import ConfigError, InputError

from .config import PatchConfig, PreprocessConfig
from .decode import DEFAULT_LIMITS, Limits, decode_image
from .items import ImageItem, ImageOptions, VideoItem, VideoOptions
from .on_device import resized_rows
from .patches import GridTHW, Patches, Values, as_rows, check_patch_bytes, grid_of, new_rows
from .resize import image_size, pixel_bounds, video_size
from .sampling import ASSUMED_FPS, frame_times, seconds_per_grid
from .transform import write_resized
from .video import Clip, ShortVideo, open_clip

_In = TypeVar("_In")
_Out = TypeVar("_Out")
Size = tuple[int, int]  # height, width


class Preprocessor:
    """Turns images and videos into patches. Safe to call from any number of threads.

    ``workers``: items that are worked on at any one time, over all callers. Items that run alone
    have their resizing shared out over as many threads.
    ``device``: resize and normalise there instead of on the CPU (off by default). The values then
    stay there; a caller that uses them on another stream than the device's default one tells the
    allocator so (``record_stream``).
    """

    def __init__(
        self,
        config: PreprocessConfig,
        *,
        limits: Limits = DEFAULT_LIMITS,
        workers: int = 2,
        device: torch.device | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self.config = config
        self.limits = limits
        self.device = device
        self._workers = workers
        self._items = ThreadPoolExecutor(workers, thread_name_prefix="ostinato-preprocess")
        self._bands = ThreadPoolExecutor(workers, thread_name_prefix="ostinato-preprocess-band")
        self._lock = threading.Lock()
        self._num_active = 0

    def image(self, source: Any, options: ImageOptions | None = None) -> Patches:
        """The patches of one image; raises ``InputError``."""
        return _raise_or_return(self.batch([ImageItem(source, options or ImageOptions())])[0])

    def video(self, source: Any, options: VideoOptions | None = None) -> Patches:
        """The patches of one video; raises ``InputError``."""
        return _raise_or_return(self.batch([VideoItem(source, options or VideoOptions())])[0])

    def batch(self, items: Sequence[ImageItem | VideoItem]) -> list[Patches | InputError]:
        """Per item its patches, or the error that says why it cannot be served; in order."""
        _load_repeated(items)
        return list(self._items.map(self._serve, items))

    def close(self) -> None:
        """Finish what is running and stop the threads."""
        self._items.shutdown()
        self._bands.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, item: ImageItem | VideoItem) -> Patches | InputError:
        with self._active():
            try:
                return self._image(item) if isinstance(item, ImageItem) else self._video(item)
            except InputError as error:
                return error

    @contextmanager
    def _active(self) -> Iterator[None]:
        with self._lock:
            self._num_active += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_active -= 1

    def _num_bands(self) -> int:
        return max(1, self._workers // max(1, self._num_active))

    def _share(self, fn: Callable[[_In], _Out], items: Iterable[_In]) -> Iterable[_Out]:
        return self._bands.map(fn, items)

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
        check_patch_bytes(grid, config, self.limits.max_patch_bytes)
        if self.device is None:
            values = self._image_on_host(image, size, grid)
        else:
            values = self._on_device([image], size, config)
        return Patches(
            values,
            grid,
            "image",
            decode_ms=(decoded - begin) * 1e3,
            transform_ms=(time.perf_counter() - decoded) * 1e3,
        )

    def _video(self, item: VideoItem) -> Patches:
        clip = self._clip(item, None)
        try:
            return self._clip_patches(clip, item.options)
        except ShortVideo as error:
            if not error.is_plausible:
                raise
            return self._clip_patches(self._clip(item, error.num_frames), item.options)

    def _clip(self, item: VideoItem, total_frames: int | None) -> Clip:
        return open_clip(
            item.source,
            self.config.video,
            item.options.sampling,
            source_fps=item.options.source_fps,
            total_frames=total_frames,
            limits=self.limits,
            channels=item.options.channels,
        )

    def _clip_patches(self, clip: Clip, options: VideoOptions) -> Patches:
        config, temporal = self.config.video, self.config.video.temporal_patch_size
        begin = time.perf_counter()
        low, high = pixel_bounds(config, options.min_pixels, options.max_pixels)
        count = len(clip.indices)
        size = video_size(config, count, clip.height, clip.width, min_pixels=low, max_pixels=high)
        grid = grid_of(count, *size, config)
        check_patch_bytes(grid, config, self.limits.max_patch_bytes)
        if self.device is None:
            values, transform_s = self._clip_on_host(clip, size, grid)
        else:
            values, transform_s = self._clip_on_device(clip, size)
        rate = clip.source_fps or ASSUMED_FPS
        return Patches(
            values,
            grid,
            "video",
            timestamps=frame_times(clip.indices, rate, temporal),
            seconds_per_grid=seconds_per_grid(count, clip.total_frames, rate, temporal),
            decode_ms=(time.perf_counter() - begin - transform_s) * 1e3,
            transform_ms=transform_s * 1e3,
        )

    def _image_on_host(self, image: Image.Image, size: Size, grid: GridTHW) -> Values:
        config = self.config.image
        rows = new_rows(grid, config)
        write_resized(
            image,
            size,
            rows[0],
            slice(None),
            config,
            num_bands=self._num_bands(),
            share=self._share,
        )
        return as_rows(rows, config)

    def _clip_on_host(self, clip: Clip, size: Size, grid: GridTHW) -> tuple[Values, float]:
        config, temporal = self.config.video, self.config.video.temporal_patch_size
        rows = new_rows(grid, config)
        last_place = len(clip.indices) - 1

        def write(numbered: tuple[int, Image.Image]) -> None:
            place, frame = numbered
            time_index, first = divmod(place, temporal)
            end = temporal if place == last_place else first + 1
            write_resized(frame, size, rows[time_index], slice(first, end), config)

        return as_rows(rows, config), self._write_frames(write, clip.frames)

    def _write_frames(
        self, write: Callable[[tuple[int, Image.Image]], None], frames: Iterator[Image.Image]
    ) -> float:
        """Write all frames, few at a time so that few are held; seconds spent on writing."""
        spent_s = 0.0
        numbered = enumerate(frames)
        while chunk := list(islice(numbered, self._num_bands())):
            begin = time.perf_counter()
            list(self._share(write, chunk) if len(chunk) > 1 else map(write, chunk))
            spent_s += time.perf_counter() - begin
        return spent_s

    def _clip_on_device(self, clip: Clip, size: Size) -> tuple[torch.Tensor, float]:
        config, spent_s, parts = self.config.video, 0.0, []
        while chunk := list(islice(clip.frames, 4 * config.temporal_patch_size)):
            begin = time.perf_counter()
            parts.append(self._on_device(chunk, size, config))
            spent_s += time.perf_counter() - begin
        return torch.cat(parts), spent_s

    def _on_device(
        self, frames: Sequence[Image.Image], size: Size, config: PatchConfig
    ) -> torch.Tensor:
        held = torch.from_numpy(np.stack([np.asarray(frame) for frame in frames]))
        rows = resized_rows(held.to(self.device), size, config)
        if rows.is_cuda:  # the caller may be on any stream: hand over finished values
            torch.cuda.current_stream(rows.device).synchronize()
        return rows


def _load_repeated(items: Sequence[ImageItem | VideoItem]) -> None:
    """Decode images that stand in a batch twice: a lazy image must not be loaded by two threads."""
    counts = Counter(id(item.source) for item in items)
    for item in items:
        if counts[id(item.source)] > 1 and isinstance(item.source, Image.Image):
            with suppress(Exception):  # reported where the item is served
                item.source.load()


def _raise_or_return(result: Patches | InputError) -> Patches:
    if isinstance(result, InputError):
        raise result
    return result
