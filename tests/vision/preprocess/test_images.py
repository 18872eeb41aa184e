"""Bytes of the published processors for images of every kind."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.image_utils import load_image

from ostinato.errors import InputError
from ostinato.vision.preprocess import (
    ImageItem,
    ImageOptions,
    Patches,
    PreprocessConfig,
    Preprocessor,
    default_config,
)

from .pictures import encode, picture
from .samples import assert_equal_bytes, reference

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Iterator[Preprocessor]:
    with Preprocessor(default_config(request.param)) as preprocessor:
        yield preprocessor


@pytest.fixture(scope="module")
def qwen3() -> Iterator[Preprocessor]:
    with Preprocessor(default_config("qwen3_vl")) as preprocessor:
        yield preprocessor


@pytest.mark.parametrize(
    "size", [(480, 640), (37, 1), (1, 1), (150, 1), (13, 700), (1080, 1920), (3000, 40)]
)
def test_sizes(family: Preprocessor, size: tuple[int, int]) -> None:
    image = picture(*size)
    assert_equal_bytes(family.image(image), reference(family.config.image), image)


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 400),
    width=st.integers(1, 400),
    patch=st.sampled_from([3, 8, 14, 16]),
    merge=st.sampled_from([1, 2, 3]),
    temporal=st.sampled_from([1, 2, 3]),
    bounds=st.tuples(st.integers(1, 90_000), st.integers(1, 90_000)).map(sorted),
)
def test_any_configuration(
    height: int, width: int, patch: int, merge: int, temporal: int, bounds: list[int]
) -> None:
    base = default_config("qwen2_vl")
    image_config = replace(
        base.image,
        patch_size=patch,
        merge_size=merge,
        temporal_patch_size=temporal,
        min_pixels=bounds[0],
        max_pixels=bounds[1],
    )
    image = picture(height, width)
    with Preprocessor(PreprocessConfig(image_config, base.video), workers=1) as preprocessor:
        if max(height, width) / min(height, width) > 200:
            with pytest.raises(InputError, match=r"\[aspect-ratio\]"):
                preprocessor.image(image)
            return
        assert_equal_bytes(preprocessor.image(image), reference(image_config), image)


@pytest.mark.parametrize("values", [(1 / 127.5, True), (1.0, True), (1 / 255, False)])
def test_other_normalisation(values: tuple[float, bool]) -> None:
    base, (factor, do_normalize) = default_config("qwen2_vl"), values
    config = replace(base.image, rescale_factor=factor)
    if not do_normalize:
        config = replace(config, image_mean=(0.0, 0.0, 0.0), image_std=(1.0, 1.0, 1.0))
    image = picture(100, 120)
    with Preprocessor(PreprocessConfig(config, base.video)) as preprocessor:
        theirs = reference(config, do_normalize=do_normalize)
        assert_equal_bytes(preprocessor.image(image), theirs, image)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_sharing_one_image_over_threads_changes_no_byte(workers: int) -> None:
    config = default_config("qwen2_vl")
    with Preprocessor(config, workers=workers) as preprocessor:
        for size in ((700, 901), (3000, 90), (90, 3000), (1036, 1316)):
            image = picture(*size)
            assert_equal_bytes(preprocessor.image(image), reference(config.image), image)


MODES = ("1", "L", "LA", "La", "P", "PA", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")


@pytest.mark.parametrize("mode", [*MODES, "I", "F", "I;16"])
def test_modes(qwen3: Preprocessor, mode: str) -> None:
    if mode in ("La", "RGBa"):
        image = picture(60, 70).convert("LA" if mode == "La" else "RGBA")
        image = image.convert(mode)
    elif mode == "I;16":
        image = Image.fromarray(np.arange(60 * 70, dtype=np.uint16).reshape(60, 70) * 15)
    elif mode == "PA":
        image = picture(60, 70).convert("P").convert("PA")
    else:
        image = picture(60, 70).convert(mode)
    assert image.mode == mode
    theirs = reference(qwen3.config.image)
    try:
        theirs(image, return_tensors="np")
    except ValueError:
        with pytest.raises(InputError, match=r"\[broken-image\].*conversion"):
            qwen3.image(image)
        return
    assert_equal_bytes(qwen3.image(image), theirs, image)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_files(qwen3: Preprocessor, tmp_path: Path, form: str, mode: str) -> None:
    try:
        data = encode(picture(61, 83).convert(mode), form)
    except (OSError, KeyError):
        pytest.skip(f"PIL writes no {form} of mode {mode}")
    path = tmp_path / "picture"
    path.write_bytes(data)
    url = b"data:image/any;base64," + base64.b64encode(data)
    expected = load_image(url.decode())
    theirs = reference(qwen3.config.image)
    for source in (data, bytearray(data), memoryview(data), path, str(path), url, url.decode()):
        assert_equal_bytes(qwen3.image(source), theirs, expected)


def test_sixteen_bit_and_transparent_palette_files(qwen3: Preprocessor, tmp_path: Path) -> None:
    deep = Image.fromarray(np.arange(60 * 70, dtype=np.uint16).reshape(60, 70) * 15)
    palette = picture(60, 70).convert("P")
    theirs = reference(qwen3.config.image)
    for image, options in ((deep, {}), (palette, {"transparency": 3})):
        path = tmp_path / "picture.png"
        path.write_bytes(encode(image, "PNG", **options))
        assert_equal_bytes(qwen3.image(path), theirs, load_image(str(path)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(qwen3: Preprocessor, tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "turned.jpg"
    path.write_bytes(encode(picture(90, 230), "JPEG", exif=exif))
    upright = load_image(str(path))
    assert (upright.height > upright.width) == (orientation > 4)
    assert_equal_bytes(qwen3.image(path), reference(qwen3.config.image), upright)


def test_a_pil_image_is_taken_as_it_stands(qwen3: Preprocessor, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "turned.jpg"
    path.write_bytes(encode(picture(90, 230), "JPEG", exif=exif))
    image = Image.open(path)
    assert_equal_bytes(qwen3.image(image), reference(qwen3.config.image), image)


def test_arrays_and_tensors(qwen3: Preprocessor) -> None:
    array = np.asarray(picture(50, 60))
    expected = qwen3.image(Image.fromarray(array)).pixel_values.tobytes()
    first = np.moveaxis(array, -1, 0)
    for source in (
        array,
        first,
        array.astype(np.int64),
        array.astype(">u2"),
        array.astype(np.float32) / 255,
        array / 255,
        torch.from_numpy(array.copy()),
        torch.from_numpy(first.copy()),
        torch.from_numpy(first.copy()).div(255).requires_grad_(),
        array[::-1][::-1],
    ):
        assert qwen3.image(source).pixel_values.tobytes() == expected
    theirs = reference(qwen3.config.image)
    assert_equal_bytes(qwen3.image(array), theirs, array)
    assert_equal_bytes(qwen3.image(first), theirs, first)
    assert_equal_bytes(qwen3.image(torch.from_numpy(array.copy())), theirs, array)


def test_floats_like_the_published_processor_without_its_second_rescale(
    qwen3: Preprocessor,
) -> None:
    array = np.random.default_rng(0).random((40, 50, 3), dtype=np.float32)
    theirs = reference(qwen3.config.image, do_rescale=False)
    assert_equal_bytes(qwen3.image(array), theirs, array)


def test_every_float_k_over_255_is_k() -> None:
    from ostinato.vision.preprocess.arrays import to_rgb

    whole = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for kind in (np.float32, np.float64):
        assert (to_rgb(whole.astype(kind) / kind(255))[..., 0] == whole).all()


def test_grey_arrays(qwen3: Preprocessor) -> None:
    grey = np.asarray(picture(50, 60).convert("L"))
    expected = qwen3.image(Image.fromarray(grey)).pixel_values.tobytes()
    for source in (grey, grey[None], grey[..., None], torch.from_numpy(grey.copy())):
        assert qwen3.image(source).pixel_values.tobytes() == expected


def test_ambiguous_arrays_are_read_as_told(qwen3: Preprocessor) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 40, 3), dtype=np.uint8)
    with pytest.raises(InputError, match=r"\[array-channels\] shape \(3, 40, 3\) can be read two"):
        qwen3.image(array)
    last = qwen3.image(array, ImageOptions(channels="last"))
    first = qwen3.image(array, ImageOptions(channels="first"))
    theirs = reference(qwen3.config.image)
    assert_equal_bytes(last, theirs, Image.fromarray(array))
    assert_equal_bytes(first, theirs, Image.fromarray(np.moveaxis(array, 0, -1).copy()))


def test_each_bound_may_be_given_alone(family: Preprocessor) -> None:
    image, config = picture(300, 400), family.config.image
    for one in ({"min_pixels": 300_000}, {"max_pixels": 70_000}, {"max_pixels": 2_000}):
        low = min(one.get("min_pixels", config.min_pixels), one.get("max_pixels", 1 << 60))
        high = one.get("max_pixels", config.max_pixels)
        theirs = reference(config, size={"shortest_edge": low, "longest_edge": high})
        assert_equal_bytes(family.image(image, ImageOptions(**one)), theirs, image)
    both = family.image(image, ImageOptions(min_pixels=5_000, max_pixels=9_000))
    theirs = reference(config, size={"shortest_edge": 5_000, "longest_edge": 9_000})
    assert_equal_bytes(both, theirs, image)


def test_a_batch_keeps_its_order_and_options(qwen3: Preprocessor) -> None:
    images = [picture(20 * i + 30, 90, seed=i) for i in range(9)]
    items = [ImageItem(im, ImageOptions(max_pixels=80_000 + i)) for i, im in enumerate(images)]
    for i, result in enumerate(qwen3.batch(items)):
        assert isinstance(result, Patches)
        size = {"shortest_edge": 65_536, "longest_edge": 80_000 + i}
        assert_equal_bytes(result, reference(qwen3.config.image, size=size), images[i])


def test_one_lazy_image_many_times(qwen3: Preprocessor, tmp_path: Path) -> None:
    path = tmp_path / "lazy.png"
    path.write_bytes(encode(picture(200, 300), "PNG"))
    expected = qwen3.image(path).pixel_values.tobytes()
    for _ in range(5):
        results = qwen3.batch([ImageItem(Image.open(path))] * 4)
        for result in results:
            assert isinstance(result, Patches)
            assert result.pixel_values.tobytes() == expected
