"""The tensor path: Pillow's arithmetic repeated, here on the CPU device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ostinato.vision.preprocess import Patches, Preprocessor, default_config
from ostinato.vision.preprocess.on_device import resize, resized_rows

from .pictures import picture
from .test_videos import make_video


@settings(max_examples=60, deadline=None)
@given(
    old=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    new=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    noise=st.booleans(),
)
def test_resizing_is_bit_exact(old: tuple[int, int], new: tuple[int, int], noise: bool) -> None:
    image = picture(*old)
    if noise:
        random = np.random.default_rng(old[0] * 301 + new[1])
        image = Image.fromarray(random.choice([0, 255], (*old, 3)).astype(np.uint8))
    theirs = np.asarray(image.resize(new[::-1], Image.Resampling.BICUBIC))
    ours = resize(torch.from_numpy(np.array(image))[None], new)[0]
    assert ours.dtype == torch.uint8
    assert (ours.permute(1, 2, 0).numpy() == theirs).all()


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_images_and_videos_are_bit_exact(family: str) -> None:
    config, device = default_config(family), torch.device("cpu")
    with Preprocessor(config) as host, Preprocessor(config, device=device) as other:
        for image in (picture(90, 200), picture(13, 300), picture(601, 450)):
            expected, result = host.image(image), other.image(image)
            assert isinstance(result.values, torch.Tensor)
            assert result.tensor is result.values
            assert_same(expected, result)
        for video in (make_video(50), [picture(60, 70, seed=i) for i in range(7)]):
            assert_same(host.video(video), other.video(video))


def assert_same(expected: Patches, result: Patches) -> None:
    assert result.grid_thw == expected.grid_thw
    assert result.timestamps == expected.timestamps
    assert result.pixel_values.tobytes() == expected.pixel_values.tobytes()


def test_many_frames_in_parts() -> None:
    config = default_config("qwen2_vl").video
    frames = torch.from_numpy(np.stack([np.asarray(picture(56, 84, seed=i)) for i in range(21)]))
    rows = resized_rows(frames, (56, 84), config)
    parts = [resized_rows(frames[i : i + 2], (56, 84), config) for i in range(0, 21, 2)]
    assert torch.equal(rows, torch.cat(parts))
