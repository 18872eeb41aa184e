"""What callers hand over: one image or video, and what they ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .arrays import Channels
from .sampling import Sampling


@dataclass(frozen=True)
class ImageOptions:
    """Per call. ``None``: the checkpoint's value; each bound may be given alone.

    ``channels``: ``"first"`` or ``"last"``, for arrays whose shape can be read two ways.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    channels: Channels | None = None


@dataclass(frozen=True)
class VideoOptions:
    """Per call. ``None``: the checkpoint's value; each may be given alone.

    ``fps``: frames to look at per second; ``num_frames``: how many in all (one of the two).
    ``source_fps``: how fast held frames were taken (arrays and lists; a file says so itself).
    """

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    source_fps: float | None = None
    channels: Channels | None = None

    @property
    def sampling(self) -> Sampling:
        """The part that chooses frames."""
        return Sampling(self.fps, self.num_frames, self.min_frames, self.max_frames)


@dataclass(frozen=True)
class ImageItem:
    """One image (see :func:`decode.decode_image` for what it may be) and its options."""

    source: Any
    options: ImageOptions = ImageOptions()


@dataclass(frozen=True)
class VideoItem:
    """One video (see :func:`video.open_clip` for what it may be) and its options."""

    source: Any
    options: VideoOptions = VideoOptions()
