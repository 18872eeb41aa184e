"""The device path on a GPU against the CPU path: the contract's bound, and equal bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ostinato.vision.preprocess import Preprocessor, default_config
from tests.vision.preprocess.pictures import picture

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
@pytest.mark.parametrize("size", [(480, 640), (1080, 1920), (37, 301), (2160, 3840)])
def test_images(family: str, size: tuple[int, int]) -> None:
    config = default_config(family)
    image = picture(*size)
    with (
        Preprocessor(config) as host,
        Preprocessor(config, device=torch.device("cuda")) as device,
    ):
        expected, result = host.image(image), device.image(image)
        assert result.tensor.is_cuda
        assert result.grid_thw == expected.grid_thw
        assert result.pixel_values.tobytes() == expected.pixel_values.tobytes()


def test_videos() -> None:
    config = default_config("qwen3_vl")
    frames = [np.asarray(picture(360, 480, seed=i)) for i in range(21)]
    with (
        Preprocessor(config) as host,
        Preprocessor(config, device=torch.device("cuda")) as device,
    ):
        expected, result = host.video(frames), device.video(frames)
        assert result.pixel_values.tobytes() == expected.pixel_values.tobytes()
