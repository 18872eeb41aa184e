from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.kernels.neighbourhood_attention import neighbourhood_attention
from tests.kernels.agreement import assert_agrees, interprets_loops


@interprets_loops
@settings(max_examples=6, deadline=None)
@given(
    height=st.integers(1, 17),
    width=st.integers(1, 17),
    heads=st.integers(1, 2),
    head_dim=st.sampled_from([8, 20]),
    window=st.sampled_from([1, 3, 5, 7]),
)
def test_stays_within_its_bound(
    height: int, width: int, heads: int, head_dim: int, window: int
) -> None:
    packed = torch.randn(1, height, width, 3, heads, head_dim)
    q, k, v = packed.unbind(3)
    assert_agrees("neighbourhood_attention", q, k, v, window, head_dim**-0.5)


@pytest.mark.parametrize(("height", "width", "window"), [(7, 9, 5), (3, 8, 5), (6, 6, 3)])
def test_equals_dense_attention_under_the_stated_mask(height: int, width: int, window: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, height, width, 2, 8)

    def near(length: int) -> torch.Tensor:
        own = min(window, length)
        query, key = torch.arange(length)[:, None], torch.arange(length)
        start = (query - own // 2).clamp(0, length - own)
        return (key >= start) & (key < start + own)

    mask = near(height)[:, None, :, None] & near(width)[None, :, None, :]
    dense = torch.nn.functional.scaled_dot_product_attention(
        *(x.flatten(1, 2).transpose(1, 2) for x in (q, k, v)),
        attn_mask=mask.reshape(height * width, -1),
        scale=0.4,
    )
    want = dense.transpose(1, 2).unflatten(1, (height, width))
    got = neighbourhood_attention(q, k, v, window=window, scale=0.4)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_refusals() -> None:
    x = torch.ones(1, 4, 4, 1, 8)
    with pytest.raises(ValueError, match="window is 4"):
        neighbourhood_attention(x, x, x, window=4, scale=1.0)
    with pytest.raises(ValueError, match="three equal"):
        neighbourhood_attention(x, x[:, :3], x, scale=1.0)


def test_opcheck() -> None:
    x = torch.randn(1, 5, 6, 1, 8)
    args = (x, x + 1, x - 1, 5, 0.3)
    torch.library.opcheck(torch.ops.ostinato.neighbourhood_attention.default, args)
