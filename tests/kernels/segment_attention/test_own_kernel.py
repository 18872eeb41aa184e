"""The own kernel under the interpreter, in float32, against the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ostinato.kernels import card
from ostinato.kernels.gate import first_wrong_answer
from ostinato.kernels.segment_attention.availability import as_operator
from ostinato.kernels.segment_attention.backends import BACKENDS
from ostinato.kernels.segment_attention.call import Backend, Call
from ostinato.kernels.segment_attention.tiles import Tiles, head_parts, tiles_for
from tests.kernels.agreement import interprets_loops
from tests.kernels.segment_attention.test_segment_attention import (
    formula,
    offsets_of,
    random_qkv,
)

pytestmark = [
    interprets_loops,
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    # The interpreter's maximum says so when a row has nothing else; a GPU's does not.
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]

SINGLE = Tiles(16, 32, 4, 1, is_single=True)


def attend(
    lengths: list[int],
    head_dim: int,
    *,
    max_length: int | None = None,
    scale: float = 0.3,
    tiles: Tiles | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """What the kernel wrote into NaN, and the formula's answer."""
    from ostinato.kernels.segment_attention.triton import segment_attention

    q, k, v = random_qkv(sum(lengths), 2, head_dim, seed)
    offsets = offsets_of(lengths)
    out = torch.full((sum(lengths), 2, head_dim), torch.nan)
    bound = max(lengths) if max_length is None else max_length
    with np.errstate(all="ignore"):
        segment_attention(q, k, v, offsets, bound, scale, out=out, tiles=tiles)
    return out, formula(q, k, v, offsets, scale)


def assert_near(pair: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(pair[0].double(), pair[1], rtol=1e-5, atol=1e-5)


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 70)), min_size=1, max_size=7),
    head_dim=st.sampled_from([4, 20, 64, 72, 80, 128]),
    slack=st.integers(0, 100),
    seed=st.integers(0, 1000),
)
def test_close_to_the_formula(lengths: list[int], head_dim: int, slack: int, seed: int) -> None:
    assert_near(attend(lengths, head_dim, max_length=max(lengths) + slack, seed=seed))


@pytest.mark.parametrize(
    "lengths",
    [
        [1],
        [150],
        [1] * 20,
        [0, 0, 33, 0, 31, 0, 0],
        [32, 32, 32],
        [31, 1, 64, 95, 1],
        [40, 40] + [0] * 70,  # more segments than one look at the boundaries takes in
        [1] * 65 + [0] * 5,
    ],
)
@pytest.mark.parametrize("bound", ["tight", "loose"])
def test_awkward_segmentations_are_close(lengths: list[int], bound: str) -> None:
    assert_near(attend(lengths, 72, max_length=max(lengths) if bound == "tight" else sum(lengths)))


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(0, 32), min_size=1, max_size=8))
def test_segments_of_one_tile_are_close(lengths: list[int]) -> None:
    assert_near(attend(lengths, 80, tiles=SINGLE))


@pytest.mark.parametrize("scale", [0.0, -0.4, 5.0])
def test_any_scale_is_close(scale: float) -> None:
    assert_near(attend([20, 37], 16, scale=scale))


def test_nan_in_one_segment_stays_there() -> None:
    from ostinato.kernels.segment_attention.triton import segment_attention

    q, k, v = random_qkv(90, 2, 72)
    offsets = offsets_of([33, 20, 37])
    with np.errstate(all="ignore"):
        clean = segment_attention(q, k, v, offsets, 37, 0.2)
        for x in (q, k, v):
            x[33:53] = torch.nan
        dirty = segment_attention(q, k, v, offsets, 37, 0.2)
    assert torch.equal(dirty[:33], clean[:33])
    assert torch.equal(dirty[53:], clean[53:])
    assert dirty[33:53].isnan().all()


def test_a_row_does_not_depend_on_unused_capacity_or_loose_bounds() -> None:
    tight, _ = attend([50, 20], 64, max_length=50)
    loose, _ = attend([50, 20] + [0] * 80, 64, max_length=70)
    assert torch.equal(tight, loose)


def test_out_of_other_strides_is_written() -> None:
    from ostinato.kernels.segment_attention.triton import segment_attention

    q, k, v = random_qkv(40, 2, 20)
    offsets = offsets_of([13, 27])
    out = torch.full((40, 3, 2, 20), torch.nan)
    with np.errstate(all="ignore"):
        segment_attention(q, k, v, offsets, 27, 0.2, out=out[:, 1])
        plain = segment_attention(q, k, v, offsets, 27, 0.2)
    assert torch.equal(out[:, 1], plain)
    assert out[:, 0].isnan().all()


# -- the probe ------------------------------------------------------------------------------------


def example() -> Call:
    q, k, v = random_qkv(8, 2, 24)
    return Call(q, k, v, offsets_of([8, 0]), 8, 0.2)


def broken(name: str) -> Backend:
    """The own kernel with one thing wrong."""
    own = BACKENDS["triton"].attend

    def attend(call: Call, out: Tensor | None) -> Tensor:
        if name == "boundaries are shifted":
            moved = call.offsets.clone()
            moved[1:-1] = (moved[1:-1] + 1).clamp(max=int(moved[-1]))
            call = call._replace(offsets=moved)
        elif name == "the last row is not written":
            result = own(call, out)
            result[-1] = torch.nan
            return result
        elif name == "the scale is off by a hundredth":
            call = call._replace(scale=call.scale * 1.01)
        elif name == "what is not finite is hidden":
            call = Call(*(torch.nan_to_num(x) for x in call[:3]), *call[3:])  # type: ignore[call-arg,arg-type]
        return own(call, out)

    return Backend("broken", attend)


@pytest.mark.parametrize(
    "name",
    [
        "boundaries are shifted",
        "the last row is not written",
        "the scale is off by a hundredth",
        "what is not finite is hidden",
    ],
)
def test_the_probe_catches_a_broken_variant(name: str) -> None:
    with np.errstate(all="ignore"):
        assert first_wrong_answer(as_operator(broken(name)), tuple(example()))


def test_the_probe_lets_the_kernel_pass() -> None:
    with np.errstate(all="ignore"):
        assert not first_wrong_answer(as_operator(broken("nothing")), tuple(example()))


# -- tiles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head_dim", "parts"),
    [
        (4, (16, 0)),
        (20, (32, 0)),
        (64, (64, 0)),
        (72, (64, 16)),
        (80, (64, 16)),
        (96, (64, 32)),
        (112, (128, 0)),
        (128, (128, 0)),
        (160, (128, 32)),
        (256, (256, 0)),
    ],
)
def test_head_parts(head_dim: int, parts: tuple[int, int]) -> None:
    assert head_parts(head_dim) == parts


@settings(max_examples=200, deadline=None)
@given(
    capability=st.sampled_from([(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (99, 9)]),
    head_dim=st.integers(1, 256),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    max_length=st.integers(1, 20_000),
    work=st.integers(1, 1 << 20),
)
def test_a_single_tile_holds_the_longest_segment(
    capability: tuple[int, int], head_dim: int, dtype: torch.dtype, max_length: int, work: int
) -> None:
    chosen = tiles_for(capability, head_dim=head_dim, dtype=dtype, max_length=max_length, work=work)
    assert not chosen.is_single or max_length <= chosen.keys
    main, rest = head_parts(head_dim)
    assert main + rest >= head_dim


def test_another_card_can_be_assumed() -> None:
    cpu = torch.device("cpu")
    with card.assuming((9, 0)):
        assert card.capability_of(cpu) == (9, 0)
    assert card.capability_of(cpu) == (8, 6)
