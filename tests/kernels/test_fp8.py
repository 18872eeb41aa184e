from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.kernels import activations, fp8
from tests.kernels.agreement import assert_agrees
from tests.kernels.spelled import SPELLED


@pytest.fixture
def spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fn in SPELLED.items():
        monkeypatch.setitem(activations.FUNCTIONS, name, fn)


@pytest.mark.parametrize("width", [1, 100])
def test_adversarial_rows(width: int, spelled: None) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(18, width + 4)[:, :width], torch.randn(18, width)
    weight, bias = torch.randn(width), torch.randn(width)
    segments, tables = torch.randint(2, (18,)), torch.randn(2, width)
    assert_agrees("fp8_quantize", x)
    assert_agrees("fp8_norm", x, weight, bias, 1e-6, "layer")
    assert_agrees("fp8_norm", x, weight, None, 1e-6, "rms")
    assert_agrees("fp8_add_norm", x, residual, None, None, 1e-6, "layer")
    assert_agrees("fp8_modulate", x, tables, tables + 1, segments, 1e-6)
    assert_agrees("fp8_gelu", x, bias, "gelu_tanh")
    assert_agrees("fp8_swiglu", torch.randn(18, 2 * width), None, "silu")


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 40), width=st.integers(1, 200), pad=st.integers(0, 5))
def test_any_shape(rows: int, width: int, pad: int) -> None:
    assert_agrees("fp8_quantize", torch.randn(rows, width + pad)[:, :width])


def test_every_e4m3_number_its_neighbours_and_every_tie() -> None:
    from ostinato.kernels.fp8 import triton

    numbers = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (numbers[:-1] + numbers[1:]) / 2
    exact = torch.cat((numbers, ties))
    around = torch.cat([exact, exact.nextafter(exact + 1), exact.nextafter(exact - 1)])
    around = torch.cat((around, -around, around.new_tensor([-0.0, 1e-40, 2**-10])))
    around = around.clamp(-448, 448)
    # A leading 448 makes the scale of the row exactly one.
    row = torch.cat((torch.tensor([448.0]), around))[None]
    values, scales = triton.fp8_quantize(row)
    assert scales[0].item() == 1.0
    assert torch.equal(
        values[0].view(torch.uint8), row[0].to(torch.float8_e4m3fn).view(torch.uint8)
    )


def test_rows_are_padded_to_sixteen_and_scales_are_the_stated_ones() -> None:
    x = torch.randn(17, 8)
    values, scales = fp8.quantize(x.view(17, 1, 8))
    assert values.shape == (32, 8) and scales.shape == (32, 1)
    assert not values[17:].float().any()
    assert torch.equal(scales[17:], torch.full((15, 1), 1e-12))
    assert torch.equal(scales[:17], x.abs().amax(1, keepdim=True) * torch.tensor(1 / 448))
    error = (values[:17].float() * scales[:17] - x).abs()
    assert (error <= x.abs() * 2**-4 + scales[:17] * 2**-10).all()


def test_swiglu_quantises_what_swiglu_returns() -> None:
    from ostinato.kernels.swiglu import swiglu

    packed = torch.randn(5, 64).bfloat16()
    for got, want in zip(fp8.swiglu_quantize(packed), fp8.quantize(swiglu(packed)), strict=True):
        assert torch.equal(got.float(), want.float())


def test_refuses_an_rms_norm_with_bias() -> None:
    with pytest.raises(ValueError, match="'rms' without a bias"):
        fp8.norm_quantize(torch.ones(2, 4), None, torch.ones(4), 1e-6, kind="rms")


def test_opcheck() -> None:
    ops, x = torch.ops.ostinato, torch.randn(5, 8)
    torch.library.opcheck(
        ops.fp8_add_norm.default, (x, x + 1, None, None, 1e-6, "rms"), test_utils="test_faketensor"
    )
    torch.library.opcheck(ops.fp8_swiglu.default, (x, None, "silu"), test_utils="test_faketensor")


@pytest.mark.parametrize("width", [*range(1, 200), 704, 1152, 1280, 3072, 3456, 4304, 9216, 16384])
def test_two_tiles_cover_a_row_and_few_lanes_idle(width: int) -> None:
    from ostinato.kernels.fp8.tiles import row_tiles

    main, rest, num_warps = row_tiles(width)
    assert main + rest >= width and (rest == 0 or main < width)
    assert all(n & (n - 1) == 0 for n in (main, rest, num_warps))
    assert width < 64 or main + rest <= 2 * width
    assert (main + rest) * 2 <= width * 3 or width <= 96


def test_cards_that_convert_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.kernels import card
    from ostinato.kernels.fp8 import triton

    asked = []
    monkeypatch.setattr(triton, "IS_INTERPRETED", False)
    monkeypatch.setattr(triton, "quantize_kernel", _Asked(asked))
    for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0)):
        with card.assuming(capability):
            triton.fp8_quantize(torch.ones(2, 64))
    assert [constants["is_converted"] for constants in asked] == [False, False, True, True, True]


class _Asked:
    """Stands for the kernel and keeps what it was launched with."""

    def __init__(self, asked: list[dict[str, object]]) -> None:
        self._asked = asked

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **constants: self._asked.append(constants)
