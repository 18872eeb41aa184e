"""The operator against the formula in float64, and the contract that its callers rely on."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.kernels.segment_attention import BACKENDS, segment_attention


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def formula(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, scale: float) -> Tensor:
    """softmax(scale * q k^T) v within each segment, float64."""
    out = torch.full(q.shape, torch.nan, dtype=torch.float64)
    for start, end in pairwise(offsets.tolist()):
        q_HLD, k_HLD, v_HLD = (x[start:end].transpose(0, 1).double() for x in (q, k, v))
        weights = (scale * q_HLD @ k_HLD.transpose(1, 2)).softmax(-1)
        out[start:end] = (weights @ v_HLD).transpose(0, 1)
    return out


def random_qkv(num_rows: int, num_heads: int, head_dim: int, seed: int = 0) -> list[Tensor]:
    """Strided views of one projection's output, as attention layers have them."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(num_rows, 3, num_heads, head_dim, generator=generator)
    return list(qkv.unbind(1))


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    head_dim=st.sampled_from([4, 20, 64, 72, 80, 128]),
    seed=st.integers(0, 1000),
)
def test_close_to_the_formula(lengths: list[int], head_dim: int, seed: int) -> None:
    q, k, v = random_qkv(sum(lengths), 3, head_dim, seed)
    offsets = offsets_of(lengths)
    result = segment_attention(q, k, v, offsets, max(lengths), scale=0.3)
    torch.testing.assert_close(
        result.double(), formula(q, k, v, offsets, 0.3), rtol=1e-5, atol=1e-5
    )
    assert result.is_contiguous()


def test_float32_inside_for_bfloat16() -> None:
    q, k, v = (x.bfloat16() for x in random_qkv(50, 2, 32))
    offsets = offsets_of([20, 30])
    result = segment_attention(q, k, v, offsets, 30, scale=0.2)
    expected = formula(q, k, v, offsets, 0.2).bfloat16()
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=1e-6)  # one rounding step


def test_boundaries_matter_at_equal_lengths() -> None:
    q, k, v = random_qkv(48, 2, 16)
    one = segment_attention(q, k, v, offsets_of([24, 24]), 48, scale=0.25)
    other = segment_attention(q, k, v, offsets_of([8, 40]), 48, scale=0.25)
    assert (one - other).norm() > 1e-2 * one.norm()


def test_what_is_told_of_v_changes_nothing_where_it_is_true() -> None:
    q, k, v = random_qkv(30, 2, 16)
    offsets = offsets_of([10, 20])
    told = segment_attention(q, k, v, offsets, 20, scale=0.25, is_v_finite=True)
    assert torch.equal(told, segment_attention(q, k, v, offsets, 20, scale=0.25))


def test_a_cleaned_copy_is_made_for_several_segments_of_unknown_values_only() -> None:
    from ostinato.kernels.segment_attention.call import Call
    from ostinato.kernels.segment_attention.fa3 import finite

    q, k, v = random_qkv(30, 2, 16)
    v[12] = torch.nan
    unknown = Call(q, k, v, offsets_of([10, 20]), 20, 0.25)
    assert finite(unknown).v.isfinite().all() and torch.equal(finite(unknown).v[:12], v[:12])
    assert finite(unknown._replace(is_v_finite=True)).v is v
    assert finite(unknown._replace(offsets=offsets_of([30]))).v is v


def test_nan_in_one_segment_stays_there() -> None:
    q, k, v = random_qkv(30, 2, 16)
    clean = segment_attention(q, k, v, offsets_of([10, 20]), 20, scale=0.25)
    q, k, v = (x.clone() for x in (q, k, v))
    for x in (q, k, v):
        x[10:] = torch.nan
    dirty = segment_attention(q, k, v, offsets_of([10, 20]), 20, scale=0.25)
    assert torch.equal(dirty[:10], clean[:10])
    assert dirty[10:].isnan().all()


@pytest.mark.parametrize("lengths", [[7, 0, 5, 0], [0, 12], [12]])
def test_out_form_writes_every_row(lengths: list[int]) -> None:
    q, k, v = random_qkv(12, 2, 16)
    offsets = offsets_of(lengths)
    out = torch.full((12, 2, 16), torch.nan)
    returned = segment_attention(q, k, v, offsets, 12, scale=0.25, out=out)
    assert returned is out
    assert torch.equal(out, segment_attention(q, k, v, offsets, 12, scale=0.25))


@pytest.mark.parametrize("backend", BACKENDS)
def test_cpu_computes_the_reference_for_every_backend(backend: str) -> None:
    q, k, v = random_qkv(12, 2, 16)
    offsets = offsets_of([12])
    result = segment_attention(q, k, v, offsets, 12, scale=0.25, backend=backend)
    assert torch.equal(result, segment_attention(q, k, v, offsets, 12, scale=0.25))


@pytest.mark.parametrize(
    ("offsets", "max_length", "message"),
    [
        ([0, 5, 10], 12, "from 0 to 12"),
        ([2, 12], 12, "got 2 to 12"),
        ([0, 8, 6, 12], 12, "8 before 6"),
        ([0, 4, 12], 7, "4:12 has 8 rows, max_length is 7"),
    ],
)
def test_wrong_offsets_are_named_on_the_cpu(
    offsets: list[int], max_length: int, message: str
) -> None:
    q, k, v = random_qkv(12, 2, 16)
    with pytest.raises(ValueError, match=message):
        segment_attention(q, k, v, torch.tensor(offsets, dtype=torch.int32), max_length, scale=0.25)


def test_wrong_arguments_are_named() -> None:
    q, k, v = random_qkv(12, 2, 16)
    offsets = offsets_of([12])
    with pytest.raises(ValueError, match=r"one shape .*\(12, 2, 8\)"):
        segment_attention(q, k[..., :8], v, offsets, 12, scale=1.0)
    with pytest.raises(ValueError, match=r"one floating dtype.*float64"):
        segment_attention(q, k.double(), v, offsets, 12, scale=1.0)
    with pytest.raises(ValueError, match=r"offsets must be int32.*int64"):
        segment_attention(q, k, v, offsets.long(), 12, scale=1.0)
    with pytest.raises(ValueError, match="'flash'"):
        segment_attention(q, k, v, offsets, 12, scale=1.0, backend="flash")
    with pytest.raises(ValueError, match=r"out must be \(12, 2, 16\) torch.float32"):
        segment_attention(q, k, v, offsets, 12, scale=1.0, out=torch.empty(12, 2, 8))


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_one_opaque_call() -> None:
    q, k, v = random_qkv(12, 2, 16)
    offsets = offsets_of([5, 7])
    out = torch.empty(12, 2, 16)
    with _Names() as mode:
        segment_attention(q, k, v, offsets, 7, scale=0.25)
        segment_attention(q, k, v, offsets, 7, scale=0.25, out=out)
    assert mode.names == ["ostinato.segment_attention.default", "ostinato.segment_attention.out"]


def test_schema_and_fake_implementations_hold() -> None:
    q, k, v = random_qkv(12, 2, 16)
    arguments = (q, k, v, offsets_of([5, 7]), 7, 0.25, "auto", True)
    checks = ("test_schema", "test_faketensor")
    operator = torch.ops.ostinato.segment_attention
    torch.library.opcheck(operator.default, arguments, test_utils=checks)
    torch.library.opcheck(
        operator.out, arguments, {"out": torch.zeros(12, 2, 16)}, test_utils=checks
    )
