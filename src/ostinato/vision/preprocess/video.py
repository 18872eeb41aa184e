"""A video in any form -> the frames to look at, one by one, decoded and RGB.

Files and bytes are decoded by PyAV, frame after frame, so that only resized frames are kept.
Frames that the caller already holds (an array, a tensor, a list) are all used, unless
``source_fps`` says how fast they were taken: then they are sampled like a file.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from PIL import Image

from ostinato.errors import InputError

from .arrays import Channels, to_numpy, to_rgb_frames
from .config import VideoConfig
from .decode import DEFAULT_LIMITS, Limits, check_file, decode_image, is_data_url, read_bytes
from .refuse import refuse
from .resize import check_size
from .sampling import ASSUMED_FPS, Sampling, sample_frames

# Containers that hold their pictures themselves. Play lists name other files or addresses.
_CONTAINERS = "mov,matroska,webm,avi,mpegts,mpeg,flv,ogg,gif,asf,h264,hevc,ivf,mjpeg"
_MOST_MISSING = 0.05  # headers may promise a few frames more than there are


class ShortVideo(InputError):
    """A container ended before the last frame that was asked for; ``num_frames`` were there.

    Headers of good files promise a frame or two too many: :attr:`is_plausible` says whether it is
    worth opening the clip again with ``total_frames=num_frames``.
    """

    def __init__(self, num_frames: int, promised: int) -> None:
        self.num_frames = num_frames
        missing = promised - num_frames
        self.is_plausible = num_frames > 0 and missing <= max(2, promised * _MOST_MISSING)
        super().__init__(f"[truncated-video] {num_frames} of {promised} frames can be decoded")


@dataclass(frozen=True)
class Clip:
    """The sampled frames of one video. ``frames`` yields ``len(indices)`` images once."""

    height: int
    width: int
    indices: tuple[int, ...]
    total_frames: int
    source_fps: float | None
    frames: Iterator[Image.Image]


def open_clip(
    source: Any,
    config: VideoConfig,
    sampling: Sampling,
    *,
    source_fps: float | None = None,
    total_frames: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    channels: Channels | None = None,
) -> Clip:
    """Look at the header of ``source`` and choose frames; raises ``InputError``.

    ``source``: bytes, data URL, path, an array or tensor ``(frames, height, width, 3)`` (or
    channels second), or a list of images of one size. ``total_frames`` overrules what a container
    claims to hold (see :class:`ShortVideo`).
    """
    if isinstance(source, (list, tuple)):
        return _from_list(source, config, sampling, source_fps, limits, channels)
    if isinstance(source, (bytes, bytearray, memoryview, str, os.PathLike)):
        return _from_container(_readable(source, limits), config, sampling, total_frames, limits)
    if hasattr(source, "__array__") and hasattr(source, "shape"):
        array = to_rgb_frames(to_numpy(source), channels)
        indices = _choose(config, len(array), sampling, source_fps)
        frames = (Image.fromarray(array[i]) for i in indices)
        height, width = array.shape[1:3]
        return Clip(height, width, indices, len(array), source_fps, frames)
    raise refuse(
        "video-type",
        "a video is bytes, a path, a data URL, an array, a tensor or a list of frames; "
        f"got {type(source).__name__}",
    )


def _choose(
    config: VideoConfig, total: int, sampling: Sampling, source_fps: float | None
) -> tuple[int, ...]:
    """Held frames: all of them, unless their rate or a number to take was given."""
    if source_fps is not None or sampling.num_frames is not None:
        rate = ASSUMED_FPS if source_fps is None else source_fps
        return tuple(sample_frames(config, total, rate, sampling))
    if sampling.fps is not None:
        raise refuse(
            "frame-rate", f"fps={sampling.fps} of decoded frames needs source_fps, their own rate"
        )
    return tuple(range(total))


def _from_list(
    source: Sequence[Any],
    config: VideoConfig,
    sampling: Sampling,
    source_fps: float | None,
    limits: Limits,
    channels: Channels | None,
) -> Clip:
    if not 1 <= len(source) <= limits.max_frames:
        raise refuse(
            "num-frames", f"a video has 1 to {limits.max_frames} frames, got {len(source)}"
        )
    indices = _choose(config, len(source), sampling, source_fps)
    first = decode_image(source[indices[0]], limits=limits, channels=channels)
    size = first.size

    def frames() -> Iterator[Image.Image]:
        yield first
        for index in indices[1:]:
            frame = decode_image(source[index], limits=limits, channels=channels)
            if frame.size != size:
                raise refuse(
                    "frame-size", f"frame {index} is {frame.size}, frame {indices[0]} is {size}"
                )
            yield frame

    return Clip(first.height, first.width, indices, len(source), source_fps, frames())


def _readable(source: Any, limits: Limits) -> Any:
    """What PyAV opens: a path, or the bytes of a data URL or of the caller."""
    if isinstance(source, (bytes, bytearray, memoryview)) or is_data_url(os.fsdecode(source)):
        return io.BytesIO(read_bytes(source, limits))
    return "file:" + os.path.abspath(check_file(os.fsdecode(source), limits))


def _from_container(
    file: Any, config: VideoConfig, sampling: Sampling, total: int | None, limits: Limits
) -> Clip:
    with _open(file, limits) as container:
        stream = container.streams.video[0]
        height, width = stream.codec_context.height, stream.codec_context.width
        if not (height and width):  # the decoder itself hides sizes above its `max_pixels`
            raise refuse(
                "max-decoded-pixels",
                f"no frame size is stated within the limit of {limits.max_decoded_pixels} pixels",
            )
        check_size(height, width, max_decoded_pixels=limits.max_decoded_pixels)
        rate = float(stream.average_rate or stream.guessed_rate or ASSUMED_FPS)
        total = total or stream.frames or _count_packets(container, limits)
    if total > limits.max_frames:
        raise refuse("max-frames", f"{total} frames, the limit is {limits.max_frames}")
    indices = tuple(sample_frames(config, total, rate, sampling))
    frames = _decode(file, indices, (height, width), total, limits)
    return Clip(height, width, indices, total, rate, frames)


@contextmanager
def _open(file: Any, limits: Limits) -> Iterator[Any]:
    """A container with a video stream; whatever fails inside becomes an ``InputError``."""
    import av

    if hasattr(file, "seek"):
        file.seek(0)
    options = {"format_whitelist": _CONTAINERS, "max_pixels": str(limits.max_decoded_pixels)}
    try:
        with av.open(file, options=options) as container:
            if not container.streams.video:
                raise refuse("not-a-video", f"no video stream in {container.format.name}")
            yield container
    except InputError:
        raise
    except Exception as error:  # a demuxer or decoder may fail with anything on hostile bytes
        raise refuse("broken-video", f"{type(error).__name__}: {error}"[:300]) from error


def _count_packets(container: Any, limits: Limits) -> int:
    """Frames of a container that does not say how many it has (Matroska, streams)."""
    count = 0
    for packet in container.demux(container.streams.video[0]):
        count += packet.size > 0
        if count > limits.max_frames:
            break
    return count


def _decode(
    file: Any, indices: tuple[int, ...], size: tuple[int, int], total: int, limits: Limits
) -> Iterator[Image.Image]:
    wanted = Counter(indices)
    num_decoded = num_taken = 0
    with _open(file, limits) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for index, frame in enumerate(container.decode(stream)):
            num_decoded = index + 1
            if index not in wanted:
                continue
            pixels = frame.to_ndarray(format="rgb24")
            if pixels.shape[:2] != size:
                raise refuse("frame-size", f"frame {index} is {pixels.shape[:2]}, header: {size}")
            for _ in range(wanted[index]):
                num_taken += 1
                yield Image.fromarray(pixels)
            if num_taken == len(indices):
                return
    raise ShortVideo(num_decoded, total)
