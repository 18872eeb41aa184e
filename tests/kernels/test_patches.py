"""position_interpolation_add and patch_merge."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.kernels.patch_merge import patch_merge
from ostinato.kernels.position_interpolation_add import position_interpolation_add
from tests.kernels.agreement import assert_agrees


@settings(max_examples=10, deadline=None)
@given(
    rows=st.integers(1, 15),
    width=st.integers(1, 150),
    index=st.sampled_from([torch.int32, torch.int64]),
    pad=st.integers(0, 5),
)
def test_interpolation_is_bit_exact(rows: int, width: int, index: torch.dtype, pad: int) -> None:
    x, table = torch.randn(rows, width + pad)[:, :width], torch.randn(9, width)
    indices = torch.randint(9, (rows, 4), dtype=index)
    assert_agrees("position_interpolation_add", x, table, indices, torch.rand(rows, 4))


def test_interpolation_is_torchs_bilinear_resize() -> None:
    side, height, width, channels = 5, 8, 6, 7
    table = torch.randn(side * side, channels)
    rows, columns = torch.linspace(0, side - 1, height), torch.linspace(0, side - 1, width)
    indices, weights = [], []
    for y in rows:
        for x in columns:
            top, left = min(int(y), side - 2), min(int(x), side - 2)
            dy, dx = y - top, x - left
            corners = [top * side + left + o for o in (0, 1, side, side + 1)]
            indices.append(corners)
            weights.append([(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx])
    x = torch.randn(height * width, channels)
    got = position_interpolation_add(x, table, torch.tensor(indices), torch.tensor(weights))
    grid = table.T.view(1, channels, side, side)
    resized = torch.nn.functional.interpolate(
        grid, size=(height, width), mode="bilinear", align_corners=True
    )
    torch.testing.assert_close(got - x, resized[0].flatten(1).T, rtol=1e-5, atol=1e-5)


def test_bf16_interpolation_rounds_once_with_fp32_weights() -> None:
    x, table = torch.randn(8, 16).bfloat16(), torch.randn(9, 16).bfloat16()
    indices, weights = torch.randint(9, (8, 4)), torch.rand(8, 4)
    total = torch.zeros(8, 16)
    for corner in range(4):
        total = total + table[indices[:, corner]].float() * weights[:, corner, None]
    want = x + total.bfloat16()
    assert torch.equal(position_interpolation_add(x, table, indices, weights), want)


@settings(max_examples=10, deadline=None)
@given(
    frames=st.integers(1, 2),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    channels=st.integers(1, 40),
)
def test_merge_is_bit_exact(frames: int, height: int, width: int, channels: int) -> None:
    x = torch.randn(frames, height + 1, width, channels + 3)[:, :height, :, :channels]
    assert_agrees("patch_merge", x)


def test_merge_order_and_padding_of_odd_edges() -> None:
    x = torch.arange(1, 10.0).view(1, 3, 3, 1)
    want = torch.tensor([[[[1, 2, 4, 5], [3, 0, 6, 0]], [[7, 8, 0, 0], [9, 0, 0, 0]]]]).float()
    assert torch.equal(patch_merge(x), want)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"expected \(3, 4\)"):
        position_interpolation_add(
            torch.ones(3, 8), torch.ones(5, 8), torch.zeros(3, 3).long(), torch.ones(3, 3)
        )
    with pytest.raises(ValueError, match="frames, H, W, C"):
        patch_merge(torch.ones(3, 8))


def test_opcheck() -> None:
    ops, x = torch.ops.ostinato, torch.randn(3, 8)
    args = (x, torch.randn(5, 8), torch.randint(5, (3, 4)), torch.rand(3, 4))
    torch.library.opcheck(ops.position_interpolation_add.default, args)
    torch.library.opcheck(ops.patch_merge.default, (torch.randn(2, 3, 4, 5),))
