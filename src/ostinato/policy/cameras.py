"""Camera frames to one canvas: names, values, arrangements.

Values are checked on the host; arithmetic runs on the device that is asked for. A canvas is
(1, 3, H, W) float32 in [-1, 1]. Frames are float32 CHW in [0, 1] in between; they are not rounded
to bytes after a resize.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.errors import ConfigError, InputError

Layout = Literal["droid", "single", "side_by_side", "grid"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
ALIASES = {
    "wrist_image_left": "wrist",
    "exterior_image_1_left": "left",
    "exterior_image_2_left": "right",
}
COMPOSITE = "composite"
DROID_CAMERAS = ("wrist", "left", "right")
DROID_HW = (360, 640)
CAMERA_PREFIX = "observation.images."
_PREFIXES = (CAMERA_PREFIX, "images.")
_GREY = 128 / 255 * 2 - 1


@dataclass(frozen=True)
class Arrangement:
    """Which cameras stand where. ``camera_hw`` is declared for clients; ``droid`` insists on it."""

    layout: Layout
    cameras: tuple[str, ...]
    canvas_hw: tuple[int, int]
    camera_hw: tuple[int, int] = DROID_HW

    def __post_init__(self) -> None:
        num, (height, width) = len(self.cameras), self.canvas_hw
        wanted = {"droid": 3, "single": 1, "side_by_side": 2}.get(self.layout)
        if self.layout == "droid" and num == 0:
            object.__setattr__(self, "cameras", DROID_CAMERAS)
        elif (wanted is not None and num != wanted) or num == 0:
            raise ConfigError(
                f"camera_keys holds {num} cameras {self.cameras}; layout {self.layout!r} takes "
                f"{wanted or 'at least one'}"
            )
        if self.layout == "side_by_side" and width % 2:
            raise ConfigError(f"canvas_hw is {self.canvas_hw}; side_by_side needs an even width")
        content = self.content_hw
        if height < content[0] or width < content[1]:
            raise ConfigError(f"canvas_hw is {self.canvas_hw}; the content takes {content}")

    @property
    def content_hw(self) -> tuple[int, int]:
        """Pixels of the canvas that are no padding."""
        height, width = DROID_HW
        return (height * 3 // 2, width) if self.layout == "droid" else self.canvas_hw

    def canvas(self, images: Mapping[str, Any], device: torch.device | None = None) -> Tensor:
        """The canvas of one observation's images, by any of their names, on ``device``.

        Raises ``KeyError`` naming the cameras that are missing (and those received), and
        ``InputError`` (a ``ValueError``) for values, shapes and names that do not fit.
        """
        named = {plain_name(name): image for name, image in images.items()}
        if COMPOSITE in named:
            return self._from_composite(to_frame(named[COMPOSITE], COMPOSITE, device))
        missing = [name for name in self.cameras if name not in named]
        if missing:
            raise KeyError(f"missing cameras {missing}; received {sorted(named)}")
        frames = [to_frame(named[name], name, device) for name in self.cameras]
        arrange = {
            "droid": self._droid,
            "single": self._single,
            "side_by_side": self._side_by_side,
            "grid": self._grid,
        }[self.layout]
        return arrange(frames)[None] * 2 - 1

    def grey(self) -> Tensor:
        """The canvas of a warm-up: every value 128 / 255, as in an image of medium grey."""
        return torch.full((1, 3, *self.canvas_hw), _GREY)

    def _from_composite(self, frame: Tensor) -> Tensor:
        if self.layout != "droid":
            raise InputError(f"an image named composite belongs to layout droid, not {self.layout}")
        if frame.shape[1:] != self.content_hw:
            raise InputError(
                f"composite is {tuple(frame.shape[1:])}; expected {self.content_hw} pixels"
            )
        return self._padded(frame)[None] * 2 - 1

    def _droid(self, frames: Sequence[Tensor]) -> Tensor:
        for name, frame in zip(self.cameras, frames, strict=True):
            if frame.shape[1:] != DROID_HW:
                raise InputError(f"{name} is {tuple(frame.shape[1:])}; expected {DROID_HW} pixels")
        wrist, left, right = frames
        half = (DROID_HW[0] // 2, DROID_HW[1] // 2)
        below = torch.cat([resize(x, half, antialias=False) for x in (left, right)], dim=2)
        return self._padded(torch.cat((wrist, below), dim=1))

    def _padded(self, frame: Tensor) -> Tensor:
        """Reflected to the right and at the bottom, without repeating the edge."""
        bottom = self.canvas_hw[0] - frame.shape[1]
        right = self.canvas_hw[1] - frame.shape[2]
        padded: Tensor = F.pad(frame[None], (0, right, 0, bottom), mode="reflect")[0]
        return padded

    def _single(self, frames: Sequence[Tensor]) -> Tensor:
        return resize(frames[0], self.canvas_hw)

    def _side_by_side(self, frames: Sequence[Tensor]) -> Tensor:
        half = (self.canvas_hw[0], self.canvas_hw[1] // 2)
        return torch.cat([resize(frame, half) for frame in frames], dim=2)

    def _grid(self, frames: Sequence[Tensor]) -> Tensor:
        """Cells in reading order on black; frames take the largest height and width first."""
        columns = isqrt(len(frames) - 1) + 1
        rows = ceil(len(frames) / columns)
        cell = (self.canvas_hw[0] // rows, self.canvas_hw[1] // columns)
        largest = (max(f.shape[1] for f in frames), max(f.shape[2] for f in frames))
        canvas = frames[0].new_zeros(3, *self.canvas_hw)
        for i, frame in enumerate(frames):
            y, x = i // columns * cell[0], i % columns * cell[1]
            canvas[:, y : y + cell[0], x : x + cell[1]] = resize(resize(frame, largest), cell)
        return canvas


def plain_name(name: str) -> str:
    """A camera's name without ``observation.images.`` or ``images.``, aliases resolved."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    return ALIASES.get(name, name)


def read_images(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Every image of an observation: the map ``images``, and keys ``observation.images.…``."""
    images = observation.get("images")
    if images is not None and not isinstance(images, Mapping):
        raise InputError(f"images is {type(images).__name__}; expected a map of names to images")
    found = dict(images or {})
    found |= {k: v for k, v in observation.items() if str(k).startswith(CAMERA_PREFIX)}
    return found


def to_frame(image: Any, name: str, device: torch.device | None = None) -> Tensor:
    """(3, H, W) float32 in [0, 1] from an array, nested list, PIL image or tensor.

    Integers (HWC) lie in 0..255; floats in [0, 1] are HWC, or CHW in a tensor.
    """
    is_tensor = isinstance(image, Tensor)
    if image is None or isinstance(image, str | bytes | Mapping):
        kind = type(image).__name__
        raise InputError(f"{name} is {kind}; expected pixels (array, PIL image, tensor or lists)")
    try:
        if is_tensor:
            pixels = image.detach().cpu()
        elif hasattr(image, "convert"):
            pixels = _from_array(image.convert("RGB"))
        else:
            pixels = _from_array(image)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as an image: {error}") from error
    is_chw = is_tensor and pixels.is_floating_point()
    channels = pixels.shape[0 if is_chw else -1] if pixels.dim() == 3 else 0
    if channels != 3 or pixels.numel() == 0:
        order = "(3, H, W)" if is_chw else "(H, W, 3)"
        raise InputError(f"{name} is {tuple(pixels.shape)}; expected {order}")
    chw = pixels if is_chw else pixels.permute(2, 0, 1)
    if chw.is_floating_point():
        low, high = chw.aminmax()
        if not (low >= 0 and high <= 1):
            raise InputError(f"{name} has values {low.item()} to {high.item()}; expected 0 to 1")
    elif chw.dtype != torch.uint8 and not _holds_bytes(chw):
        raise InputError(f"{name} holds {chw.dtype} values outside 0 to 255")
    # bytes travel, arithmetic happens on the device
    values: Tensor = (chw if chw.is_floating_point() else chw.to(torch.uint8)).to(device).float()
    return values.contiguous() if chw.is_floating_point() else (values / 255).contiguous()


def resize(frame: Tensor, hw: tuple[int, int], *, antialias: bool = True) -> Tensor:
    """Bilinear without aligned corners; a frame of the right size is returned as it is."""
    if tuple(frame.shape[1:]) == hw:
        return frame
    resized: Tensor = F.interpolate(
        frame[None], hw, mode="bilinear", align_corners=False, antialias=antialias
    )[0]
    return resized


def _holds_bytes(integers: Tensor) -> bool:
    if integers.dtype == torch.bool:
        return False
    low, high = integers.aminmax()
    return bool(low >= 0 and high <= 255)


def _from_array(image: Any) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.array(image))
