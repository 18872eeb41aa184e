"""The tiny encoder repeats itself, sees the whole image, and leaves the random state alone."""

from __future__ import annotations

import numpy as np
import torch

from ostinato.assets.photograph import photograph_bytes
from ostinato.assets.tiny import make_tiny_encoder, pixels_from_image, position_code
from ostinato.serve.images import decode_image

PHOTOGRAPH = decode_image(photograph_bytes(), max_pixels=2**20)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    pixels = pixels_from_image(PHOTOGRAPH[:64, :64])
    first, second = make_tiny_encoder()(pixels), make_tiny_encoder()(pixels)
    assert torch.equal(first, second)
    assert not torch.equal(first, make_tiny_encoder(seed=1)(pixels))
    assert torch.isfinite(first).all()


def test_the_random_state_of_the_process_is_not_consumed() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    make_tiny_encoder()
    assert torch.equal(torch.rand(3), expected)


def test_every_patch_sees_every_other() -> None:
    encoder = make_tiny_encoder()
    pixels = pixels_from_image(PHOTOGRAPH[:64, :64])
    changed = pixels.clone()
    changed[:, 63, 63] = 1.0 - changed[:, 63, 63]
    difference = (encoder(changed) - encoder(pixels)).abs().amax(-1)
    assert (difference > 0).all()


def test_pixels_are_cut_to_patches_and_scaled() -> None:
    image = np.arange(20 * 35 * 3).reshape(20, 35, 3).astype(np.uint8)
    pixels = pixels_from_image(image)
    assert pixels.shape == (3, 16, 32)
    assert pixels[2, 3, 4].item() == np.float32(image[3, 4, 2]) / np.float32(127.5) - 1


def test_positions_differ_between_all_patches() -> None:
    code = position_code(3, 5, torch.device("cpu"))
    distance = torch.cdist(code, code) + torch.eye(15) * 9
    assert distance.min() > 0.1


def test_the_photograph_is_one_with_an_attribution() -> None:
    assert PHOTOGRAPH.shape == (375, 320, 3)
    assert PHOTOGRAPH.std() > 30
