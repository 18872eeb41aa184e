"""Division without branches against torch's, byte for byte, under the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from ostinato.kernels.compare import first_difference
from ostinato.kernels.triton_math import divide_row, divide_sigmoid

COUNT = 1 << 16


@triton.jit
def _by_row(x, y, out, count: tl.constexpr):
    place = tl.program_id(0) * count + tl.arange(0, count)
    tl.store(out + place, divide_row(tl.load(x + place), tl.load(y + tl.program_id(0))))


@triton.jit
def _by_sigmoid(x, y, out, count: tl.constexpr):
    place = tl.arange(0, count)
    tl.store(out + place, divide_sigmoid(tl.load(x + place), tl.load(y + place)))


def row_quotients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    with np.errstate(all="ignore"):
        _by_row[(x.shape[0],)](x, y, out, count=x.shape[1])
    return out


def assert_same(want: torch.Tensor, got: torch.Tensor) -> None:
    assert first_difference([want], [got], None) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_divide_as_torch_does_bit_exact(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for exponent in (-20, 0, 1, 15):
        x = torch.randn(16, COUNT, generator=generator) * 2.0**exponent
        x = x.to(dtype).float()
        y = (x.abs().amax(1) * (1 / 448)).clamp(min=1e-12)
        y[8:] *= torch.rand(8, generator=generator) + 1  # any mantissa, not only amax's
        assert_same(x / y[:, None], row_quotients(x, y))


def test_ties_of_e4m3_and_their_neighbours_bit_exact() -> None:
    codes = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[:-1] + codes[1:]) / 2
    y = torch.rand(64, generator=torch.Generator().manual_seed(1)) + 1
    y[0], y[1] = 2.0 - 2.0**-23, 1.0 + 2.0**-23
    near = ties * y[:, None]
    x = torch.cat((near, near.nextafter(near + 1), near.nextafter(near - 1)), 1)
    x = torch.nn.functional.pad(torch.cat((x, -x), 1), (0, 1024 - 6 * ties.numel()))
    assert_same(x / y[:, None], row_quotients(x, y))


def test_zeros_infinities_and_nan_as_ieee_bit_exact() -> None:
    x = torch.tensor([[0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 1e-40]])
    for y in (1.0, 1e-12, 7e35, torch.inf, torch.nan):
        scale = torch.tensor([y])
        want = x / scale
        finite = x.isfinite() | torch.tensor(not np.isfinite(y))  # infinite x has infinite y
        want, got = want[finite], row_quotients(x, scale)[finite]
        assert_same(want, got)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_silu_and_sigmoid_of_every_number_bit_exact(dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    y = 1.0 + torch.exp(-x)
    for above in (y, y.nextafter(y + y), y.nextafter(y * 0).clamp(min=1.0)):
        for top in (x, torch.ones_like(x)):
            out = torch.empty_like(x)
            with np.errstate(all="ignore"):
                _by_sigmoid[(1,)](top.contiguous(), above, out, count=COUNT)
            want = top / above
            # Small numbers meet y = 2 exactly, with any exp; reciprocals may be denormal.
            occurs = (x.abs() > 2.0**-60) | (above == 2) | x.isnan()
            occurs &= (want.abs() >= 2.0**-126) | (above == 2) | (above == torch.inf)
            assert_same(want[occurs], out[occurs])
