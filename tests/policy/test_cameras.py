"""Arrangements, image values and names, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ostinato.errors import ConfigError
from ostinato.policy.cameras import Arrangement, plain_name, read_images, to_frame

DROID = Arrangement("droid", ("wrist", "left", "right"), (544, 736))


def picture(hw: tuple[int, int], seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (*hw, 3), dtype=np.uint8)


def droid_images() -> dict[str, Any]:
    names = ("wrist", "left", "right")
    return {name: picture((360, 640), i) for i, name in enumerate(names)}


def test_droid_stacks_halves_below_the_wrist_and_reflects_the_edges() -> None:
    images = droid_images()
    canvas = DROID.canvas(images)
    assert canvas.shape == (1, 3, 544, 736) and DROID.content_hw == (540, 640)
    wrist = torch.from_numpy(images["wrist"]).permute(2, 0, 1).float() / 255 * 2 - 1
    assert torch.equal(canvas[0, :, :360, :640], wrist)
    # exact halves without antialias average 2x2 pixels
    left = torch.from_numpy(images["left"]).float().permute(2, 0, 1) / 255 * 2 - 1
    mean = (
        left[:, 0::2, 0::2] + left[:, 1::2, 0::2] + left[:, 0::2, 1::2] + left[:, 1::2, 1::2]
    ) / 4
    torch.testing.assert_close(canvas[0, :, 360:540, :320], mean)
    assert torch.equal(canvas[..., 640], canvas[..., 638])
    assert torch.equal(canvas[..., 735], canvas[..., 543])
    assert torch.equal(canvas[..., 540, :], canvas[..., 538, :])
    assert torch.equal(canvas[..., 543, :], canvas[..., 535, :])


def test_a_composite_equals_three_cameras_and_overrides_them() -> None:
    images = droid_images()
    canvas = DROID.canvas(images)
    composite = (canvas[0, :, :540, :640] + 1) / 2
    again = DROID.canvas({"composite": composite.clamp(0, 1), "wrist": 0})
    torch.testing.assert_close(again, canvas, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="layout droid"):
        Arrangement("single", ("a",), (8, 8)).canvas({"composite": composite.clamp(0, 1)})
    with pytest.raises(ValueError, match="expected \\(540, 640\\)"):
        DROID.canvas({"composite": picture((360, 640), 0)})


def test_droid_takes_one_size_only() -> None:
    images = droid_images() | {"left": picture((180, 320), 0)}
    with pytest.raises(ValueError, match="left is \\(180, 320\\)"):
        DROID.canvas(images)


def test_missing_cameras_are_named_with_those_received() -> None:
    with pytest.raises(KeyError, match=r"missing cameras \['left', 'right'\]; received \['wrist'"):
        DROID.canvas({"wrist_image_left": picture((360, 640), 0)})


def test_single_is_resized_with_antialias() -> None:
    frame = torch.zeros(3, 4, 8)
    frame[:, :, ::2] = 1.0
    canvas = Arrangement("single", ("a",), (2, 2)).canvas({"a": frame})
    assert canvas.abs().max() < 0.2  # without antialias: stripes survive as -1 or 1 pairs
    assert canvas.shape == (1, 3, 2, 2)


def test_side_by_side_stands_left_to_right() -> None:
    arrangement = Arrangement("side_by_side", ("a", "b"), (4, 8))
    canvas = arrangement.canvas({"b": torch.ones(3, 2, 2), "a": torch.zeros(3, 6, 6)})
    assert (canvas[..., :4] == -1).all() and (canvas[..., 4:] == 1).all()
    with pytest.raises(ConfigError, match="even width"):
        Arrangement("side_by_side", ("a", "b"), (4, 7))


def test_grid_fills_cells_in_reading_order_on_black() -> None:
    arrangement = Arrangement("grid", ("a", "b", "c"), (5, 7))
    values = {"a": 0.25, "b": 0.5, "c": 1.0}
    canvas = arrangement.canvas({n: torch.full((3, 6, 6), v) for n, v in values.items()})[0, 0]
    assert canvas[0, 0] == -0.5 and canvas[1, 3] == 0.0 and canvas[2, 0] == 1.0
    assert (canvas[2:, 3:] == -1).all() and (canvas[4] == -1).all() and (canvas[:, 6] == -1).all()
    five = Arrangement("grid", tuple("abcde"), (4, 6))
    assert five.canvas({n: torch.ones(3, 2, 2) for n in "abcde"})[0, 0, 2:, 2:4].eq(1).all()
    assert five.canvas({n: torch.ones(3, 2, 2) for n in "abcde"})[0, 0, 2:, 4:].eq(-1).all()


def test_cameras_of_mixed_sizes_take_the_largest_size_first() -> None:
    small, large = torch.rand(3, 4, 4), torch.rand(3, 16, 16)
    canvas = Arrangement("grid", ("a", "b"), (8, 16)).canvas({"a": small, "b": large})
    once = torch.nn.functional.interpolate(small[None], (16, 16), mode="bilinear", antialias=True)
    twice = torch.nn.functional.interpolate(once, (8, 8), mode="bilinear", antialias=True)
    torch.testing.assert_close(canvas[..., :8], twice * 2 - 1)


def test_counts_of_cameras_belong_to_layouts() -> None:
    with pytest.raises(ConfigError, match="holds 2 cameras"):
        Arrangement("single", ("a", "b"), (4, 4))
    with pytest.raises(ConfigError, match="holds 0 cameras"):
        Arrangement("grid", (), (4, 4))
    with pytest.raises(ConfigError, match="content takes \\(540, 640\\)"):
        Arrangement("droid", (), (104, 136))
    assert Arrangement("droid", (), (544, 736)).cameras == ("wrist", "left", "right")


def test_every_kind_of_image_gives_the_same_frame() -> None:
    from PIL import Image

    pixels = picture((2, 3), 0)
    expected = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    floats = pixels.astype(np.float64) / 255
    for image in (
        pixels,
        pixels.tolist(),  # decoded JSON: int64
        torch.from_numpy(pixels),
        Image.fromarray(pixels),
        floats,
        torch.from_numpy(floats).permute(2, 0, 1),
    ):
        torch.testing.assert_close(to_frame(image, "a"), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.full((2, 2, 3), 1.5), "1.5; expected 0 to 1"),
        (np.full((2, 2, 3), np.nan), "expected 0 to 1"),
        (np.full((2, 2, 3), 256), "outside 0 to 255"),
        (np.full((2, 2, 3), -1), "outside 0 to 255"),
        (np.zeros((2, 2)), r"\(2, 2\); expected \(H, W, 3\)"),
        (torch.zeros(2, 2, 3), r"expected \(3, H, W\)"),
        ("left.jpg", "a is str; expected pixels"),
        (b"jpeg", "a is bytes; expected pixels"),
        (None, "a is NoneType; expected pixels"),
        ([["a"]], "cannot be read"),
        (np.zeros((0, 2, 3)), "expected"),
    ],
)
def test_images_that_cannot_be(image: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_frame(image, "a")


def test_names_lose_their_prefix_and_alias() -> None:
    assert plain_name("observation.images.wrist_image_left") == "wrist"
    assert plain_name("images.exterior_image_1_left") == "left"
    assert plain_name("exterior_image_2_left") == "right"
    assert plain_name("scene") == "scene"
    found = read_images({"images": {"a": 1}, "observation.images.b": 2, "state": 3})
    assert found == {"a": 1, "observation.images.b": 2}
    with pytest.raises(ValueError, match="list; expected a map"):
        read_images({"images": [1]})


def test_a_warm_up_canvas_is_grey() -> None:
    assert DROID.grey().unique().item() == pytest.approx(128 / 255 * 2 - 1)
