"""paged_cache_write and paged_attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.kernels.paged_attention import paged_attention
from ostinato.kernels.paged_cache_write import paged_cache_write
from tests.kernels.agreement import assert_agrees, interprets_loops


def _attention_args(
    heads: int, kv_heads: int, head_dim: int, page_size: int, queries: int, split_length: int
) -> tuple[object, ...]:
    cache = torch.zeros(4, page_size, kv_heads, head_dim)
    integers = torch.zeros(3, dtype=torch.int32)
    table = torch.zeros(2, -(-max(200, 18 * min(split_length, 16)) // page_size), dtype=torch.int32)
    q = torch.zeros(4, heads, head_dim)
    scale = head_dim**-0.5
    return (q, cache, cache, table, integers, integers[:2], queries, scale, split_length)


@interprets_loops
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size", "queries", "split_length"),
    [
        (4, 1, 16, 16, 1, 16),
        (7, 1, 24, 5, 9, 0),
        (4, 2, 16, 64, 20, 128),
        (2, 2, 16, 1, 1, 0),
    ],
)
def test_attention_stays_within_its_bound(
    heads: int, kv_heads: int, head_dim: int, page_size: int, queries: int, split_length: int
) -> None:
    args = _attention_args(heads, kv_heads, head_dim, page_size, queries, split_length)
    assert_agrees("paged_attention", *args)


def test_reference_is_torchs_causal_attention_per_sequence() -> None:
    torch.manual_seed(0)
    heads, kv_heads, head_dim, page_size = 4, 2, 8, 4
    counts, lengths = [3, 1, 5], [7, 9, 5]
    key_cache = torch.full((12, page_size, kv_heads, head_dim), torch.nan)
    value_cache = key_cache.clone()
    table = torch.randperm(12)[:9].view(3, 3).int()
    q = torch.randn(sum(counts) + 2, heads, head_dim)
    wanted, row = [], 0
    for b, (n, length) in enumerate(zip(counts, lengths, strict=True)):
        k, v = torch.randn(length, kv_heads, head_dim), torch.randn(length, kv_heads, head_dim)
        position = torch.arange(length)
        slots = table[b, position // page_size] * page_size + position % page_size
        paged_cache_write(k, v, key_cache, value_cache, slots)
        mask = torch.ones(n, length, dtype=torch.bool).tril(length - n)
        out = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1) for x in (q[row : row + n], k, v)),
            attn_mask=mask,
            scale=0.3,
            enable_gqa=True,
        )
        wanted.append(out.transpose(0, 1))
        row += n
    wanted.append(torch.zeros(2, heads, head_dim))
    offsets = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    got = paged_attention(
        *(q, key_cache, value_cache, table, offsets, torch.tensor(lengths, dtype=torch.int32)),
        max_query_length=6,
        scale=0.3,
    )
    torch.testing.assert_close(got, torch.cat(wanted), rtol=1e-5, atol=1e-6)


@interprets_loops
def test_splits_do_not_depend_on_capacity_or_on_the_rest_of_the_batch() -> None:
    from ostinato.kernels.paged_attention import triton

    torch.manual_seed(1)
    cache_k, cache_v = torch.randn(2, 20, 8, 1, 16)
    q = torch.randn(2, 2, 16)
    table = torch.randperm(20).view(2, 10).int()
    offsets, lengths = torch.tensor([0, 1, 2]).int(), torch.tensor([33, 70]).int()
    both = triton.paged_attention(q, cache_k, cache_v, table, offsets, lengths, 1, 0.25, 16)
    alone = triton.paged_attention(
        q[:1], cache_k, cache_v, table[:1, :5], offsets[:2], lengths[:1], 1, 0.25, 16
    )
    assert torch.equal(both[0], alone[0])


@interprets_loops
def test_what_a_program_sees_of_a_long_sequence_is_decided_by_places_alone() -> None:
    """More blocks than programs: keys are dealt out in turn, and a longer table changes no bit."""
    from ostinato.kernels.paged_attention import triton

    torch.manual_seed(2)
    cache_k, cache_v = torch.randn(2, 60, 8, 1, 16)
    q = torch.randn(2, 2, 16)
    table = torch.randperm(60)[None].repeat(2, 1).int()
    offsets, lengths = torch.tensor([0, 1, 2]).int(), torch.tensor([2, 300]).int()
    both = triton.paged_attention(q, cache_k, cache_v, table, offsets, lengths, 1, 0.25, 8)
    alone = triton.paged_attention(
        q[1:], cache_k, cache_v, table[1:, :38], offsets[:2], lengths[1:], 1, 0.25, 8
    )
    assert torch.equal(both[1], alone[0])
    shorter = triton.paged_attention(
        q[1:], cache_k, cache_v, table[1:], offsets[:2], lengths[1:] - 8, 1, 0.25, 8
    )
    assert not torch.equal(both[1], shorter[0])


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 12),
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 20),
    page_size=st.integers(1, 7),
    pad=st.integers(0, 3),
    index=st.sampled_from([torch.int32, torch.int64]),
)
def test_writes_are_bit_exact(
    rows: int, heads: int, head_dim: int, page_size: int, pad: int, index: torch.dtype
) -> None:
    packed = torch.randn(rows, 2 * heads * head_dim + pad)
    key = packed[:, : heads * head_dim].unflatten(1, (heads, head_dim))
    cache = torch.zeros(2, page_size, heads, head_dim)
    slots = torch.zeros(rows, dtype=index)
    assert_agrees("paged_cache_write", key, key + 1, cache, cache, slots)


def test_writes_land_in_their_slots_and_padding_nowhere() -> None:
    key, value = torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    for slots in ([7, -1, 0, 3, -1], [-1] * 5, [0, 1, 2, 3, 4]):
        caches = torch.zeros(2, 2, 4, 2, 3)
        want = caches.clone()
        for row, slot in enumerate(slots):
            if slot >= 0:
                want[0].view(8, 2, 3)[slot], want[1].view(8, 2, 3)[slot] = key[row], value[row]
        paged_cache_write(key, value, caches[0], caches[1], torch.tensor(slots))
        assert torch.equal(caches, want)


def test_refusals() -> None:
    cache = torch.zeros(2, 4, 2, 8)
    with pytest.raises(ValueError, match=r"key is \(1, 2, 4\)"):
        paged_cache_write(torch.ones(1, 2, 4), torch.ones(1, 2, 4), cache, cache, torch.zeros(1))
    integers = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="q is"):
        paged_attention(
            *(torch.ones(1, 3, 8), cache, cache, integers[None, :1], integers, integers[:1]),
            max_query_length=1,
            scale=1.0,
        )


def test_opcheck() -> None:
    ops = torch.ops.ostinato
    cache, one = torch.randn(3, 4, 1, 8), torch.tensor([0, 2], dtype=torch.int32)
    table, length = torch.tensor([[1, 2]], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
    q = torch.randn(2, 2, 8)
    args = (q, cache, cache.clone(), table, one, length, 2, 0.3, 0)
    torch.library.opcheck(ops.paged_attention.default, args)
    write = (q[:, :1], q[:, 1:], cache.clone(), cache.clone(), torch.tensor([3, -1]))
    torch.library.opcheck(ops.paged_cache_write.default, write)
