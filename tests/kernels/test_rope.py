from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.kernels.rope import rope
from tests.kernels.agreement import assert_agrees, operator


def _inputs(
    tokens: int, heads: int, kv_heads: int, head_dim: int, pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(tokens)
    width = (heads + 2 * kv_heads) * head_dim
    angle = torch.randn(tokens, head_dim // 2)
    table = torch.cat((angle.cos(), angle.sin()), dim=1)
    return torch.randn(tokens, width + pad)[:, :width], *table.chunk(2, dim=1)


@pytest.mark.parametrize("style", ["half", "adjacent"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(2, 2, 72), (20, 4, 8)])
def test_rotation_is_bit_exact_and_norms_are_close(
    heads: int, kv_heads: int, head_dim: int, style: str
) -> None:
    qkv, cos, sin = _inputs(5, heads, kv_heads, head_dim, pad=8)
    sizes = (heads, kv_heads, head_dim, style)
    assert_agrees("rope", qkv, cos, sin, *sizes, False, False)
    weight = torch.randn(head_dim)
    assert_agrees("norm_rope", qkv, cos, sin, weight, None, 1e-6, *sizes)


@settings(max_examples=8, deadline=None)
@given(
    tokens=st.integers(1, 3),
    groups=st.integers(1, 3),
    kv_heads=st.integers(1, 4),
    pairs=st.integers(1, 20),
    pad=st.integers(0, 5),
    style=st.sampled_from(["half", "adjacent"]),
)
def test_any_head_layout(
    tokens: int, groups: int, kv_heads: int, pairs: int, pad: int, style: str
) -> None:
    inputs = _inputs(tokens, groups * kv_heads, kv_heads, 2 * pairs, pad)
    assert_agrees("rope", *inputs, groups * kv_heads, kv_heads, 2 * pairs, style, False, False)


@pytest.mark.parametrize("style", ["half", "adjacent"])
def test_against_complex_rotation(style: str) -> None:
    tokens, heads, head_dim = 7, 3, 16
    qkv, cos, sin = _inputs(tokens, heads, heads, head_dim)
    q, k, v = rope(qkv, cos, sin, heads=heads, head_dim=head_dim, style=style)  # type: ignore[arg-type]
    packed = qkv.view(tokens, 3, heads, head_dim)
    turn = torch.complex(cos, sin)[:, None]
    for got, x in ((q, packed[:, 0]), (k, packed[:, 1])):
        pairs = x.unflatten(-1, (2, -1)).mT if style == "half" else x.unflatten(-1, (-1, 2))
        turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
        want = turned.mT.flatten(-2) if style == "half" else turned.flatten(-2)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert torch.equal(v, packed[:, 2])


def test_head_norm_is_torchs_rms_norm() -> None:
    qkv, _, _ = _inputs(4, 2, 2, 8)
    cos, sin = torch.ones(4, 4), torch.zeros(4, 4)
    weight = torch.randn(8)
    q, _, _ = rope(qkv, cos, sin, heads=2, head_dim=8, q_weight=weight, eps=1e-5)
    want = torch.nn.functional.rms_norm(qkv[:, :16].unflatten(1, (2, 8)), (8,), weight, 1e-5)
    torch.testing.assert_close(q, want)


def test_bf16_tables_round_every_step_and_fp32_tables_round_once() -> None:
    qkv, cos, sin = _inputs(6, 2, 2, 8)
    qkv = qkv.bfloat16()
    q32, _, _ = rope(qkv, cos, sin, heads=2, head_dim=8)
    wide, _, _ = rope(qkv.float(), cos, sin, heads=2, head_dim=8)
    assert torch.equal(q32, wide.bfloat16())
    q16, _, _ = rope(qkv, cos.bfloat16(), sin.bfloat16(), heads=2, head_dim=8)
    first, second = qkv[:, :16].view(6, 2, 8).chunk(2, -1)
    c, s = cos.bfloat16()[:, None], sin.bfloat16()[:, None]
    assert torch.equal(q16, torch.cat((first * c + -second * s, second * c + first * s), -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_v_comes_without_what_is_not_finite(dtype: torch.dtype) -> None:
    """All values stay as they are but for NaN and infinities; those of q and k stay, too."""
    qkv, cos, sin = _inputs(6, 3, 2, 8)
    qkv = qkv.to(dtype)
    largest = torch.finfo(dtype).max
    bad = torch.tensor([float("nan"), float("inf"), -float("inf"), largest, -largest, -0.0])
    qkv[:, 3] = qkv[:, 30] = qkv[:, 45] = bad.to(dtype)  # in q, k and v
    sizes = (3, 2, 8, "half")
    assert_agrees("rope", qkv, cos, sin, *sizes, True, False)
    q, k, v = rope(qkv, cos, sin, heads=3, kv_heads=2, head_dim=8, is_v_cleaned=True)
    raw_q, raw_k, raw_v = rope(qkv, cos, sin, heads=3, kv_heads=2, head_dim=8)
    assert torch.equal(q.nan_to_num(7), raw_q.nan_to_num(7)) and q[:3].isnan().any()
    assert torch.equal(k.nan_to_num(7), raw_k.nan_to_num(7))
    assert (
        torch.equal(v, torch.where(raw_v.isfinite(), raw_v, 0)) and not raw_v[:3].isfinite().all()
    )
    assert v[3:].abs().max() == largest
    with pytest.raises(ConfigError, match="is_v_cleaned with eps"):
        rope(qkv, cos, sin, heads=3, kv_heads=2, head_dim=8, eps=1e-6, is_v_cleaned=True)


@pytest.mark.parametrize("head_dim", [6, 8, 10])
@pytest.mark.parametrize("is_v_cleaned", [False, True])
def test_heads_stand_apart_when_spaced(head_dim: int, is_v_cleaned: bool) -> None:
    qkv, cos, sin = _inputs(5, 3, 2, head_dim)
    assert_agrees("rope", qkv, cos, sin, 3, 2, head_dim, "half", is_v_cleaned, True)
    options = {"heads": 3, "kv_heads": 2, "head_dim": head_dim, "is_v_cleaned": is_v_cleaned}
    dense = rope(qkv, cos, sin, **options)  # type: ignore[arg-type]
    spaced = rope(qkv, cos, sin, is_spaced=True, **options)  # type: ignore[arg-type]
    for a, b in zip(dense, spaced, strict=True):
        assert torch.equal(a, b)
        assert b.stride(1) == {6: 8, 8: 8, 10: 16}[head_dim]
    torch.library.opcheck(
        torch.ops.ostinato.rope.default,
        (qkv, cos, sin, 3, 2, head_dim, "half", is_v_cleaned, True),
    )
    with pytest.raises(ConfigError, match="is_spaced with eps"):
        rope(qkv, cos, sin, heads=3, kv_heads=2, head_dim=head_dim, eps=1e-6, is_spaced=True)


@pytest.mark.parametrize("style", ["half", "adjacent"])
def test_a_spaced_head_ends_with_zeros_up_to_a_whole_sector(
    style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows them is left as it was."""

    def of_sevens(qkv: torch.Tensor, count: int, head_dim: int, *, is_spaced: bool) -> torch.Tensor:
        return torch.full((qkv.shape[0], count, 128), 7.0)[..., :head_dim]

    monkeypatch.setattr("ostinato.kernels.rope.triton.empty_heads", of_sevens)
    qkv, cos, sin = _inputs(3, 2, 2, 72)
    for part in operator("rope").kernel(qkv, cos, sin, 2, 2, 72, style, False, True):
        whole = part.as_strided((3, 2, 128), (256, 128, 1))
        assert (whole[..., 72:80] == 0).all()
        assert (whole[..., 80:] == 7).all()


def test_refuses_a_full_width_table() -> None:
    qkv, cos, sin = _inputs(4, 2, 2, 8)
    with pytest.raises(ValueError, match=r"cos is \(4, 8\)"):
        rope(qkv, cos.repeat(1, 2), sin.repeat(1, 2), heads=2, head_dim=8)


def test_opcheck() -> None:
    inputs = _inputs(4, 2, 1, 8)
    torch.library.opcheck(torch.ops.ostinato.rope.default, (*inputs, 2, 1, 8, "half", True, False))
    args = (*inputs, None, None, 1e-6, 2, 1, 8, "half")
    torch.library.opcheck(torch.ops.ostinato.norm_rope.default, args)
