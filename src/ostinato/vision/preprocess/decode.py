"""One image in any form -> a decoded RGB ``PIL.Image``. Sizes are checked before pixels exist.

Encoded images (bytes, path, data URL) are turned upright by their EXIF orientation. A
``PIL.Image`` is taken as it stands, like the published processors take it. Other modes (grey,
palette, alpha, 16-bit) become RGB by PIL's own ``convert``; alpha is dropped, not blended.
Nothing here reads from a network.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import io
import os
import stat
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from PIL import Image, ImageFile, ImageOps

from .arrays import Channels, to_numpy, to_rgb
from .refuse import refuse
from .resize import check_ratio, check_size

# Formats that are read, in the order they are tried. Not a list of what PIL can do: parsers that
# start other programs, accept any prefix, or hide the true size behind a header stay out.
_PLUGINS = {
    "JPEG": "JpegImagePlugin",
    "PNG": "PngImagePlugin",
    "WEBP": "WebPImagePlugin",
    "GIF": "GifImagePlugin",
    "BMP": "BmpImagePlugin",
    "TIFF": "TiffImagePlugin",
    "PPM": "PpmImagePlugin",
    "AVIF": "AvifImagePlugin",
    "JPEG2000": "Jpeg2KImagePlugin",
}


@dataclass(frozen=True)
class Limits:
    """What one item may cost before any of it is decoded.

    ``max_decoded_pixels``: height x width of an image or a video frame (default: 256 MiB of RGB).
    ``max_encoded_bytes``: size of a file or a byte string.
    ``max_frames``: frames that a video may claim, or have.
    ``max_patch_bytes``: float32 patches of one item (default: above the largest video that the
    published bounds allow); a call's own ``min_pixels`` could ask for any number.
    """

    max_decoded_pixels: int = 89_478_485
    max_encoded_bytes: int = 1 << 28
    max_frames: int = 200_000
    max_patch_bytes: int = 6 << 30


DEFAULT_LIMITS = Limits()


def decode_image(
    source: Any, *, limits: Limits = DEFAULT_LIMITS, channels: Channels | None = None
) -> Image.Image:
    """A decoded RGB image. Raises ``InputError`` with the broken rule for anything else.

    ``source``: ``PIL.Image``, encoded bytes, data URL (``str`` or bytes), path, or an array or
    tensor as :mod:`arrays` reads it (``channels`` settles an ambiguous shape).
    """
    if isinstance(source, Image.Image):
        check_size(source.height, source.width, max_decoded_pixels=limits.max_decoded_pixels)
        return _load(source, upright=False)
    if isinstance(source, (bytes, bytearray, memoryview, str, os.PathLike)):
        image = _identify(read_bytes(source, limits))
        check_size(image.height, image.width, max_decoded_pixels=limits.max_decoded_pixels)
        return _load(image, upright=True)
    if hasattr(source, "__array__") and hasattr(source, "shape"):
        array = to_rgb(to_numpy(source), channels)
        check_ratio(*array.shape[:2])
        return Image.fromarray(array)
    raise refuse(
        "image-type",
        "an image is a PIL.Image, bytes, a path, a data URL, an array or a tensor; "
        f"got {type(source).__name__}",
    )


def read_bytes(source: Any, limits: Limits) -> bytes:
    """The encoded bytes behind a byte string, a data URL or a path."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        check_num_bytes(len(data), limits)
        return from_data_url(data) if is_data_url(data) else data
    text = os.fsdecode(source)
    if is_data_url(text):
        check_num_bytes(len(text), limits)
        return from_data_url(text.encode("utf-8", "surrogateescape"))
    try:
        with open(check_file(text, limits), "rb") as file:
            return file.read()
    except OSError as error:
        raise refuse("unreadable-file", f"{text!r}: {error.strerror}") from error


def is_data_url(text: str | bytes) -> bool:
    """Whether ``text`` begins with ``data:``, in any case."""
    return text[:5].lower() in ("data:", b"data:")


def check_file(path: str, limits: Limits) -> str:
    """``path`` if it names a regular file within the byte limit, and no address."""
    if path[:8].lower().startswith(("http://", "https://")):
        raise refuse("no-network", f"addresses are not fetched here, got {path[:80]!r}")
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise refuse("unreadable-file", f"{path[:200]!r}: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise refuse("unreadable-file", f"{path!r} is not a regular file")
    check_num_bytes(status.st_size, limits)
    return path


def check_num_bytes(num_bytes: int, limits: Limits) -> None:
    """Refuse nothing at all, and too much."""
    if num_bytes == 0:
        raise refuse("empty", "0 bytes hold no image or video")
    if num_bytes > limits.max_encoded_bytes:
        raise refuse(
            "max-encoded-bytes", f"{num_bytes} bytes, the limit is {limits.max_encoded_bytes}"
        )


def from_data_url(url: bytes) -> bytes:
    """The payload of ``data:[type][;base64],...``."""
    header, comma, payload = url.partition(b",")
    if not comma:
        raise refuse("data-url", f"no comma in {header[:60]!r}")
    if not header.lower().endswith(b";base64"):
        data = unquote_to_bytes(payload)
    else:
        try:
            data = base64.b64decode(b"".join(payload.split()), validate=True)
        except binascii.Error as error:
            raise refuse("data-url", f"base64 payload: {error}") from error
    if not data:
        raise refuse("empty", "0 bytes hold no image or video")
    return data


def _identify(data: bytes) -> ImageFile.ImageFile:
    """Parse the header only. Not ``Image.open``: its own size check warns or raises by a process
    wide setting, and a caller's limit must be the only one."""
    stream = io.BytesIO(data)
    for name, module in _PLUGINS.items():
        try:
            importlib.import_module(f"PIL.{module}")
        except ImportError:
            continue
        factory, accept = Image.OPEN[name]
        try:
            if accept is None or accept(data[:16]) is not True:
                continue
            stream.seek(0)
            return factory(stream, "")
        except Exception as error:  # a parser may fail with anything on hostile bytes
            raise refuse("broken-image", f"{name} header: {_reason(error)}") from error
    raise refuse(
        "not-an-image",
        f"no known image format in {len(data)} bytes that begin {data[:12]!r}; "
        f"known: {', '.join(_PLUGINS)}",
    )


def _load(image: Image.Image, *, upright: bool) -> Image.Image:
    """Decode all pixels, turn, convert."""
    form = image.format or image.mode
    try:
        image.load()
        if upright:
            image = ImageOps.exif_transpose(image)
        return image if image.mode == "RGB" else image.convert("RGB")
    except Exception as error:  # as above: truncated, corrupt or unconvertible data
        raise refuse("broken-image", f"{form} data: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
