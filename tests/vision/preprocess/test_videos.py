"""Whole videos: which frames, which bytes, which times."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from ostinato.errors import InputError
from ostinato.vision.preprocess import (
    Limits,
    Patches,
    PreprocessConfig,
    Preprocessor,
    VideoConfig,
    VideoItem,
    VideoOptions,
    default_config,
)
from ostinato.vision.preprocess.sampling import Sampling, sample_frames
from ostinato.vision.preprocess.video import ShortVideo, open_clip

from .pictures import encode, picture

av = pytest.importorskip("av")


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def family(request: pytest.FixtureRequest) -> Iterator[Preprocessor]:
    with Preprocessor(default_config(request.param)) as preprocessor:
        yield preprocessor


def make_video(num_frames: int, *, form: str = "mp4", rate: int = 10, size: int = 96) -> bytes:
    """A file whose frames differ from each other."""
    stream = io.BytesIO()
    codec = {"mp4": "mpeg4", "matroska": "mpeg4", "avi": "mjpeg"}[form]
    with av.open(stream, "w", format=form) as container:
        video = container.add_stream(codec, rate=rate)
        video.width, video.height = size + 32, size
        video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for index in range(num_frames):
            frame = av.VideoFrame.from_image(picture(size, size + 32, seed=index))
            container.mux(video.encode(frame))
        container.mux(video.encode())
    return stream.getvalue()


def all_frames(data: bytes) -> list[Image.Image]:
    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return [Image.fromarray(frame) for frame in frames]


def expected_rows(
    frames: list[Image.Image], config: VideoConfig, grid: tuple[int, int, int]
) -> NDArray[np.float32]:
    """The published arithmetic, written down once more the long way."""
    time, down, across = grid
    patch, merge, temporal = config.patch_size, config.merge_size, config.temporal_patch_size
    size = (across * patch, down * patch)
    pixels = np.stack([np.asarray(f.resize(size, Image.Resampling.BICUBIC)) for f in frames])
    values = (pixels.astype(np.float64) * config.rescale_factor).astype(np.float32)
    values = (values - np.float32(config.image_mean)) / np.float32(config.image_std)
    values = np.moveaxis(values, -1, 1)
    while len(values) < time * temporal:
        values = np.concatenate([values, values[-1:]])
    values = values.reshape(
        time, temporal, 3, down // merge, merge, patch, across // merge, merge, patch
    )
    return values.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(time * down * across, -1)


def assert_shows(result: Patches, frames: list[Image.Image], config: VideoConfig) -> None:
    expected = expected_rows(frames, config, result.grid_thw)
    assert result.pixel_values.shape == expected.shape
    assert result.pixel_values.tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", ["mp4", "matroska", "avi"])
def test_files(family: Preprocessor, tmp_path: Path, form: str) -> None:
    data, config = make_video(47, form=form), family.config.video
    path = tmp_path / "video"
    path.write_bytes(data)
    frames, indices = all_frames(data), sample_frames(config, 47, 10.0)
    assert 4 < len(indices) < 12
    url = "data:video/any;base64," + base64.b64encode(data).decode()
    for source in (data, bytearray(data), path, str(path), url, url.encode()):
        result = family.video(source)
        assert_shows(result, [frames[i] for i in indices], config)
    assert result.kind == "video"
    padded = indices + indices[-1:] * (len(indices) % 2)
    middles = zip(padded[::2], padded[1::2], strict=True)
    assert result.timestamps == pytest.approx([(a + b) / 2 / 10 for a, b in middles])
    assert result.seconds_per_grid == pytest.approx(2 / (len(indices) / 47 * 10))


def test_options_stand_alone(family: Preprocessor) -> None:
    data, config = make_video(40), family.config.video
    frames = all_frames(data)
    for options in (
        VideoOptions(fps=5.0),
        VideoOptions(num_frames=6),
        VideoOptions(max_frames=4),
        VideoOptions(min_frames=20),
        VideoOptions(max_pixels=20_000),
        VideoOptions(min_pixels=200_000),
    ):
        result = family.video(data, options)
        indices = sample_frames(config, 40, 10.0, options.sampling)
        assert_shows(result, [frames[i] for i in indices], config)
    few = family.video(data, VideoOptions(max_pixels=20_000)).num_patches
    assert few < family.video(data).num_patches < family.video(data, options).num_patches


def test_held_frames(family: Preprocessor) -> None:
    images, config = [picture(70, 90, seed=i) for i in range(7)], family.config.video
    array = np.stack([np.asarray(image) for image in images])
    first = torch.from_numpy(np.moveaxis(array, -1, 1).copy())
    pngs = [encode(image, "PNG") for image in images]
    for source in (images, tuple(images), array, first, first.div(255), list(array), pngs):
        result = family.video(source)  # an odd number: the last frame is shown twice
        assert result.grid_thw[0] == 4
        assert_shows(result, images, config)


def test_held_frames_with_a_rate_are_sampled(family: Preprocessor) -> None:
    images, config = [picture(70, 90, seed=i) for i in range(40)], family.config.video
    result = family.video(images, VideoOptions(source_fps=8.0))
    indices = sample_frames(config, 40, 8.0)
    assert len(indices) == 10
    assert_shows(result, [images[i] for i in indices], config)


def test_three_frames_to_a_patch_and_many_workers() -> None:
    base = default_config("qwen2_5_vl")
    config = PreprocessConfig(base.image, replace(base.video, temporal_patch_size=3))
    images = [picture(70, 90, seed=i) for i in range(8)]
    for workers in (1, 4):
        with Preprocessor(config, workers=workers) as preprocessor:
            result = preprocessor.video(images)
            assert result.grid_thw[0] == 3
            assert_shows(result, images, config.video)


def test_truncated_files_are_refused(family: Preprocessor) -> None:
    data = make_video(60, form="matroska")
    with pytest.raises(InputError, match=r"\[(truncated|broken)-video\]"):
        family.video(make_video(60)[:-4_000])
    shorter = family.video(data[: len(data) * 2 // 3])  # Matroska may end anywhere
    assert shorter.num_patches > 0


def test_a_header_that_promises_two_frames_too_many_is_served(
    family: Preprocessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, config = make_video(30), family.config.video
    with pytest.raises(ShortVideo) as caught:
        list(open_clip(data, config, Sampling(num_frames=32), total_frames=32).frames)
    assert caught.value.is_plausible
    with pytest.raises(ShortVideo) as caught:
        list(open_clip(data, config, Sampling(num_frames=60), total_frames=60).frames)
    assert not caught.value.is_plausible

    def promises_more(*args: object, **options: object) -> object:
        options["total_frames"] = options["total_frames"] or 32
        return open_clip(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("ostinato.vision.preprocess.preprocessor.open_clip", promises_more)
    result = family.video(data, VideoOptions(fps=10.0))
    assert_shows(result, all_frames(data), config)


def test_bounds() -> None:
    data, config = make_video(30), default_config("qwen3_vl")
    for limits, message in (
        (Limits(max_frames=29), r"\[max-frames\] 30 frames, the limit is 29"),
        (Limits(max_decoded_pixels=96 * 128 - 1), r"\[max-decoded-pixels\].*limit of 12287"),
        (Limits(max_encoded_bytes=100), r"\[max-encoded-bytes\]"),
        (Limits(max_patch_bytes=1_000), r"\[max-patch-bytes\] grid .* the limit is 1000"),
    ):
        with (
            Preprocessor(config, limits=limits) as strict,
            pytest.raises(InputError, match=message),
        ):
            strict.video(data)
    with (
        Preprocessor(config, limits=Limits(max_frames=29)) as strict,
        pytest.raises(InputError, match=r"\[max-frames\]"),
    ):
        strict.video(make_video(30, form="matroska"))


def test_play_lists_and_sound_are_no_videos(family: Preprocessor, tmp_path: Path) -> None:
    (tmp_path / "real.mp4").write_bytes(make_video(10))
    concat = f"ffconcat version 1.0\nfile '{tmp_path}/real.mp4'\n"
    play_list = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path}/real.mp4\n#EXT-X-ENDLIST"
    for text in (concat, play_list):
        path = tmp_path / "list.m3u8"
        path.write_text(text)
        for source in (text.encode(), path):
            with pytest.raises(InputError, match=r"\[broken-video\]"):
                family.video(source)
    stream = io.BytesIO()
    with av.open(stream, "w", format="matroska") as container:
        sound = container.add_stream("pcm_s16le", rate=8_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.rate = 8_000
        container.mux(sound.encode(frame))
    with pytest.raises(InputError, match=r"\[not-a-video\] no video stream"):
        family.video(stream.getvalue())


def test_images_and_videos_in_one_batch(family: Preprocessor) -> None:
    images = [picture(70, 90, seed=i) for i in range(4)]
    expected = family.video(images).pixel_values.tobytes()
    results = family.batch([VideoItem(images), VideoItem([]), VideoItem(images)])
    assert isinstance(results[1], InputError)
    for result in results[::2]:
        assert isinstance(result, Patches)
        assert result.pixel_values.tobytes() == expected
