"""Images: arrangements told apart by the declared size, resizing as openpi does, bounded files."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ostinato.errors import InputError
from ostinato.serve.openpi.images import read_image, resize_with_pad
from tests.serve.openpi.observations import encoded, picture


def reference_resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """openpi_client.image_tools.resize_with_pad for one image, in its own steps."""
    whole = Image.fromarray(image)
    ratio = max(whole.width / width, whole.height / height)
    size = int(whole.height / ratio), int(whole.width / ratio)
    canvas = Image.new(whole.mode, (width, height), 0)
    top, left = max(0, int((height - size[0]) / 2)), max(0, int((width - size[1]) / 2))
    canvas.paste(whole.resize((size[1], size[0]), resample=Image.Resampling.BILINEAR), (left, top))
    return np.asarray(canvas)


@pytest.mark.parametrize("hw", [(24, 40), (30, 20), (12, 50), (7, 9), (12, 20)])
def test_resizing_is_openpis(hw: tuple[int, int]) -> None:
    image = picture(1, hw)
    assert np.array_equal(resize_with_pad(image, (12, 20)), reference_resize(image, 12, 20))


def test_floats_are_rounded_where_they_are_resized() -> None:
    image = picture(1, (24, 40))
    resized = resize_with_pad((image / 255).astype(np.float64), (12, 20))
    assert np.array_equal(resized, resize_with_pad(image, (12, 20)))


def test_three_by_three_is_decided_by_the_declared_size() -> None:
    image = picture(1, (3, 5))
    assert np.array_equal(read_image(image, "a", (3, 5), is_resized=False), image)
    square = picture(2, (3, 3))
    assert np.array_equal(read_image(square, "a", (3, 3), is_resized=False), square)
    with pytest.raises(InputError, match=r"uint8 \(3, 5, 3\); expected"):
        read_image(picture(1, (3, 5)), "a", (12, 20), is_resized=True)


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""
    chunks = [
        b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0),
        b"IDAT" + zlib.compress(b"\0" * 100),
    ]
    framed = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.mark.parametrize("size", [(100_000, 100_000), (10_000, 10_000), (8000, 8000)])
def test_a_header_that_asks_for_much_is_refused_before_any_pixel(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="image-size"):
        read_image(png_header(*size), "a", (12, 20), is_resized=True)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_files_of_other_modes_become_rgb(kind: str, mode: str) -> None:
    image = Image.fromarray(picture(3)).convert(mode)
    target = io.BytesIO()
    image.save(target, kind)
    found = read_image(target.getvalue(), "a", (12, 20), is_resized=False)
    with Image.open(io.BytesIO(target.getvalue())) as again:
        assert np.array_equal(found, np.asarray(again.convert("RGB")))


def test_a_file_of_another_format_is_not_opened_by_its_content() -> None:
    tiff = encoded(picture(0), "TIFF")
    with pytest.raises(InputError, match="expected JPEG"):
        read_image(tiff, "a", (12, 20), is_resized=False)
