"""An image as it came (array, nested list, JPEG or PNG bytes) to an array (H, W, 3) as declared.

Importable without torch. Nothing is guessed: what the declared size leaves open is an error.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from ostinato.errors import InputError
from ostinato.serve.openpi.describe import describe

Array = np.ndarray[Any, Any]

_MAGIC = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG"}
MAX_PIXELS = 2**25
"""Of one image that is resized; 8192 x 4096."""


def read_image(value: Any, name: str, hw: tuple[int, int], *, is_resized: bool) -> Array:
    """uint8 (H, W, 3), or the float array in [0, 1] that was sent; ``hw`` is the declared size.

    Arrays may be (H, W, 3) or (3, H, W). ``is_resized``: other sizes are brought to ``hw``, with
    zeros around what has another aspect, and floats become bytes where that happens. Raises
    ``InputError`` naming what came and what was expected.
    """
    image = _decoded(value, name) if isinstance(value, bytes) else _as_array(value, name)
    image = _rows_first(image, name, hw, is_resized)
    image = _in_range(image, name)
    if image.shape[:2] == hw:
        return image
    if not is_resized:
        raise InputError(
            f"[image-size] {name} is {_size(image.shape)} pixels; expected {_size(hw)} "
            "(height x width; the server resizes with --resize-cameras)"
        )
    return resize_with_pad(image, hw)


def is_file(value: bytes | str) -> bool:
    """Whether these bytes begin like a file that is decoded."""
    return isinstance(value, bytes) and value.startswith(tuple(_MAGIC))


def resize_with_pad(image: Array, hw: tuple[int, int]) -> Array:
    """Bilinear to fit into ``hw``, centred on zeros, as openpi does; uint8 comes out."""
    if image.dtype != np.uint8:
        image = np.rint(image * 255).astype(np.uint8)
    height, width = hw
    ratio = max(image.shape[1] / width, image.shape[0] / height)
    fit = max(1, int(image.shape[0] / ratio)), max(1, int(image.shape[1] / ratio))
    resized = Image.fromarray(image).resize((fit[1], fit[0]), Image.Resampling.BILINEAR)
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - fit[0]) // 2, (width - fit[1]) // 2
    canvas[top : top + fit[0], left : left + fit[1]] = np.asarray(resized)
    return canvas


def _decoded(data: bytes, name: str) -> Array:
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    if kind is None:
        raise InputError(
            f"[image-bytes] {name} is {len(data)} bytes that begin {data[:8].hex(' ')}; "
            "expected JPEG (ff d8 ff) or PNG (89 50 4e 47), or an array"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=[kind]) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise InputError(
                        f"[image-size] {name} has {image.width} x {image.height} pixels; "
                        f"expected at most {MAX_PIXELS}"
                    )
                return np.asarray(image.convert("RGB"))
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"[image-size] {name}: {error}") from None
    except UnidentifiedImageError:
        raise InputError(f"[image-bytes] {name} begins like {kind} and is none") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise InputError(f"[image-bytes] {name} is a broken {kind}: {error}") from None


def _as_array(value: Any, name: str) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, list):
        raise InputError(
            f"[image-type] {name} is {describe(value)}; expected an array (H, W, 3), JPEG or PNG"
        )
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"[image-type] {name} is an uneven {describe(value)}") from None


def _rows_first(image: Array, name: str, hw: tuple[int, int], is_resized: bool) -> Array:
    """(H, W, 3), whichever of the two arrangements came."""
    if image.ndim == 3 and image.size:
        is_hwc, is_chw = image.shape[2] == 3, image.shape[0] == 3
        if is_hwc and is_chw:  # three pixels high and three wide: the declared size decides
            if image.shape[:2] == hw:
                return image
        elif is_hwc:
            return image
        elif is_chw:
            return np.ascontiguousarray(image.transpose(1, 2, 0))
    size = "any size" if is_resized else f"{_size(hw)} pixels"
    raise InputError(
        f"[image-shape] {name} is {describe(image)}; expected (H, W, 3) or (3, H, W) of {size}"
    )


def _in_range(image: Array, name: str) -> Array:
    """uint8, or floats in [0, 1]."""
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind not in "iuf":
        raise InputError(
            f"[image-dtype] {name} is {describe(image)}; expected uint8, other integers in 0..255 "
            "or floats in 0..1"
        )
    low, high = image.min(), image.max()
    top = 1 if image.dtype.kind == "f" else 255
    if not (low >= 0 and high <= top):  # not a number is outside as well
        raise InputError(
            f"[image-range] {name} is {describe(image)} with values {low} to {high}; "
            f"expected 0 to {top}"
        )
    return image if image.dtype.kind == "f" else image.astype(np.uint8)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]}"
