"""Hostile and absurd inputs: the rule and the value are named, alone and amid a good batch."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ostinato.errors import ConfigError, InputError
from ostinato.vision.preprocess import (
    ImageItem,
    ImageOptions,
    Limits,
    Patches,
    Preprocessor,
    VideoItem,
    VideoOptions,
    default_config,
    load_config,
)

from .pictures import encode, picture


@pytest.fixture(scope="module")
def preprocessor() -> Iterator[Preprocessor]:
    with Preprocessor(default_config("qwen3_vl")) as made:
        yield made


def png_header(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims any size."""
    content = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    body = chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", content) + body


JPEG = encode(picture(80, 90), "JPEG")
WRONG: dict[str, tuple[Any, str]] = {
    "empty": (b"", r"\[empty\] 0 bytes"),
    "words": (b"no picture at all", r"\[not-an-image\].*no picture"),
    "truncated": (JPEG[: len(JPEG) // 2], r"\[broken-image\] JPEG data: .*truncated"),
    "three bytes of jpeg": (b"\xff\xd8\xff", r"\[broken-image\] JPEG header"),
    "png without pixels": (png_header(50, 50), r"\[broken-image\] PNG data"),
    "bomb": (png_header(30_000, 30_000), r"\[max-decoded-pixels\] 30000 x 30000 is 900000000"),
    "long bomb": (png_header(2_000_000_000, 1), r"\[max-decoded-pixels\] 1 x 2000000000"),
    "no width": (png_header(0, 10), r"\[(zero-size|broken-image)\]"),
    "ratio": (Image.new("RGB", (402, 2)), r"\[aspect-ratio\].*2 x 402"),
    "ratio in a header": (png_header(1, 5_000), r"\[aspect-ratio\].*5000 x 1"),
    "ratio of an array": (np.zeros((402, 2, 3), np.uint8), r"\[aspect-ratio\].*402 x 2"),
    "empty image": (Image.new("RGB", (0, 5)), r"\[zero-size\].*5 x 0"),
    "empty array": (np.zeros((0, 5, 3), np.uint8), r"\[zero-size\].*\(0, 5, 3\)"),
    "nan": (np.full((9, 9, 3), np.nan, np.float32), r"\[array-range\].*nan"),
    "one nan": (
        np.where(np.arange(243).reshape(9, 9, 3) == 77, np.nan, 0.5),
        r"\[array-range\].*nan",
    ),
    "infinite": (np.full((9, 9, 3), np.inf), r"\[array-range\].*inf"),
    "above one": (np.full((9, 9, 3), 1.001), r"\[array-range\].*1\.001"),
    "below zero": (torch.full((3, 9, 9), -0.5), r"\[array-range\].*-0\.5"),
    "sixteen bits": (np.full((9, 9), 256, np.uint16), r"\[array-range\] uint16.*0\.\.255.*256"),
    "negative": (np.full((9, 9, 3), -1), r"\[array-range\].*-1"),
    "four channels": (np.zeros((9, 9, 4), np.uint8), r"\[array-channels\].*\(9, 9, 4\)"),
    "two ways": (np.zeros((3, 9, 3), np.uint8), r"\[array-channels\].*\(3, 9, 3\) can be read two"),
    "one dimension": (np.zeros(9, np.uint8), r"\[array-shape\].*\(9,\)"),
    "five dimensions": (np.zeros((1, 1, 9, 9, 3), np.uint8), r"\[array-shape\]"),
    "truth values": (np.zeros((9, 9, 3), bool), r"\[array-dtype\].*bool"),
    "complex": (np.zeros((9, 9, 3), complex), r"\[array-dtype\].*complex128"),
    "objects": (np.full((9, 9, 3), None), r"\[array-dtype\].*object"),
    "sparse": (torch.zeros(3, 9, 9).to_sparse(), r"\[array-dtype\].*sparse"),
    "no file": ("/nowhere/at/all.png", r"\[unreadable-file\].*/nowhere/at/all\.png"),
    "a folder": (Path("/"), r"\[unreadable-file\].*not a regular file"),
    "a device": (Path("/dev/zero"), r"\[unreadable-file\].*not a regular file"),
    "a name with zero": ("a\0b", r"\[unreadable-file\]"),
    "an address": ("https://example.org/a.png", r"\[no-network\].*example\.org"),
    "data without comma": ("data:image/png;base64", r"\[data-url\] no comma"),
    "data without base64": (b"data:image/png;base64,@@@", r"\[data-url\] base64"),
    "data of nothing": ("data:image/png;base64,", r"\[empty\]"),
    "nothing": (None, r"\[image-type\].*NoneType"),
    "a number": (7, r"\[image-type\].*int"),
    "a list": ([[1, 2], [3, 4]], r"\[image-type\].*list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_alone_and_amid_good_ones(preprocessor: Preprocessor, name: str) -> None:
    source, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        preprocessor.image(source)
    good = picture(70, 80)
    expected = preprocessor.image(good).pixel_values.tobytes()
    results = preprocessor.batch([ImageItem(x) for x in (good, source, good)])
    assert isinstance(results[1], InputError)
    for result in results[::2]:
        assert isinstance(result, Patches)
        assert result.pixel_values.tobytes() == expected


OPTIONS = [
    (ImageOptions(min_pixels=0), r"\[pixel-bounds\] min_pixels.*got 0"),
    (ImageOptions(max_pixels=-5), r"\[pixel-bounds\] max_pixels.*got -5"),
    (ImageOptions(max_pixels=True), r"\[pixel-bounds\].*True"),
    (ImageOptions(max_pixels=1e6), r"\[pixel-bounds\].*1000000\.0"),  # type: ignore[arg-type]
    (ImageOptions(min_pixels=9, max_pixels=8), r"\[pixel-bounds\] min_pixels 9 .* max_pixels 8"),
    (ImageOptions(min_pixels=10**15), r"\[max-patch-bytes\] grid"),
    (ImageOptions(channels="middle"), r"\[array-channels\].*middle"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_options(preprocessor: Preprocessor, options: ImageOptions, message: str) -> None:
    with pytest.raises(InputError, match=message):
        preprocessor.image(np.zeros((40, 40, 3), np.uint8), options)


def test_the_limit_is_the_callers_and_nobody_is_warned() -> None:
    data = encode(Image.new("RGB", (10_000, 9_000)), "PNG")  # above PIL's own limit
    config = default_config("qwen2_vl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with (
            Preprocessor(config) as strict,
            pytest.raises(InputError, match="the limit is 89478485"),
        ):
            strict.image(data)
        limits = Limits(max_decoded_pixels=100_000_000)
        with Preprocessor(config, limits=limits) as generous:
            assert generous.image(data).grid_thw == (1, 66, 74)


def test_nothing_is_decoded_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_run(*_: object) -> None:
        raise AssertionError("decoded before the size was checked")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", must_not_run)
    limits = Limits(max_decoded_pixels=80 * 90 - 1)
    with (
        Preprocessor(default_config("qwen2_vl"), limits=limits) as strict,
        pytest.raises(InputError, match=r"80 x 90 is 7200 pixels, the limit is 7199"),
    ):
        strict.image(JPEG)


def test_encoded_bytes_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEG)
    limits = Limits(max_encoded_bytes=len(JPEG) - 1)
    with Preprocessor(default_config("qwen2_vl"), limits=limits) as strict:
        for source in (JPEG, path):
            with pytest.raises(InputError, match=rf"\[max-encoded-bytes\] {len(JPEG)} bytes"):
                strict.image(source)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_files_are_served_or_refused(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]))
    content = bytearray(encode(picture(24, 30), form))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with warnings.catch_warnings(), Preprocessor(default_config("qwen2_vl")) as preprocessor:
        warnings.simplefilter("ignore")
        for item in (bytes(content), bytes(content[:cut])):
            result = preprocessor.batch([ImageItem(item)])[0]
            if isinstance(result, Patches):
                assert np.isfinite(result.pixel_values).all()
            else:
                assert str(result).startswith("[")


VIDEOS: dict[str, tuple[Any, VideoOptions, str]] = {
    "empty": (b"", VideoOptions(), r"\[empty\]"),
    "words": (b"no video at all" * 99, VideoOptions(), r"\[broken-video\]"),
    "no file": ("/nowhere.mp4", VideoOptions(), r"\[unreadable-file\]"),
    "no frames": ([], VideoOptions(), r"\[num-frames\].*got 0"),
    "one frame": ([picture(60, 60)], VideoOptions(), r"\[min-frames\].*at least 2 frames, got 1"),
    "two sizes": ([picture(60, 60), picture(60, 61)], VideoOptions(), r"\[frame-size\] frame 1"),
    "one bad frame": ([picture(60, 60), b"x"], VideoOptions(), r"\[not-an-image\]"),
    "a ratio": (np.zeros((4, 3_300, 16, 3), np.uint8), VideoOptions(), r"\[aspect-ratio\]"),
    "three dimensions": (np.zeros((60, 60, 3), np.uint8), VideoOptions(), r"\[array-shape\]"),
    "nan": (np.full((2, 60, 60, 3), np.nan), VideoOptions(), r"\[array-range\]"),
    "nothing": (None, VideoOptions(), r"\[video-type\].*NoneType"),
    "fps of zero": (
        np.zeros((4, 60, 60, 3), np.uint8),
        VideoOptions(fps=0, source_fps=2),
        "fps.*0",
    ),
    "fps of nan": (
        np.zeros((4, 60, 60, 3), np.uint8),
        VideoOptions(fps=float("nan"), source_fps=2),
        r"\[frame-rate\].*nan",
    ),
    "a rate that is not known": (
        np.zeros((4, 60, 60, 3), np.uint8),
        VideoOptions(fps=1),
        r"\[frame-rate\] fps=1 .*source_fps",
    ),
    "a rate of nothing": (
        np.zeros((4, 60, 60, 3), np.uint8),
        VideoOptions(source_fps=-1),
        r"\[frame-rate\].*-1",
    ),
    "two ways to choose": (
        np.zeros((4, 60, 60, 3), np.uint8),
        VideoOptions(fps=1, num_frames=2),
        r"\[frame-rate\].*exclude",
    ),
    "too many": (
        np.zeros((4, 60, 60, 3), np.uint8),
        VideoOptions(num_frames=5),
        r"\[num-frames\] num_frames 5 .* 4 frames",
    ),
}


@pytest.mark.parametrize("name", VIDEOS)
@pytest.mark.skipif(find_spec("av") is None, reason="PyAV is not installed")
def test_videos_alone_and_amid_good_ones(preprocessor: Preprocessor, name: str) -> None:
    source, options, message = VIDEOS[name]
    with pytest.raises(InputError, match=message):
        preprocessor.video(source, options)
    results = preprocessor.batch([ImageItem(JPEG), VideoItem(source, options), ImageItem(JPEG)])
    assert [isinstance(result, Patches) for result in results] == [True, False, True]


def test_configurations(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown vision family 'clip'"):
        default_config("clip")
    path = tmp_path / "preprocessor_config.json"
    for content, message in (
        ("[1]", "must hold a JSON object"),
        ("{", "is not JSON"),
        ('{"resample": 2}', "resample must be 3"),
        ('{"do_resize": false}', "do_resize"),
        ('{"image_mean": [1, 2]}', "image_mean must be"),
        ('{"patch_size": 0}', "patch_size must be at least 1"),
        ('{"min_pixels": 9, "max_pixels": 8}', "min_pixels <= max_pixels"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match=message):
            load_config(tmp_path, "qwen2_vl")
    with pytest.raises(ConfigError, match="image_std must not contain 0"):
        replace(default_config("qwen2_vl").image, image_std=(1.0, 0.0, 1.0))
