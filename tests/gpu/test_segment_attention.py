"""The CUDA backends against the formula in float64, and replays with other boundaries."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ostinato.kernels.segment_attention import segment_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

HEAD_DIMS = [20, 64, 72, 80, 128]


def inputs(lengths: list[int], head_dim: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 4, head_dim, generator=generator, device="cuda").to(dtype)
    offsets = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    return list(qkv.unbind(1)), offsets


def formula(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, scale: float) -> Tensor:
    out = torch.full(q.shape, torch.nan, dtype=torch.float64, device=q.device)
    for start, end in pairwise(offsets.tolist()):
        q_HLD, k_HLD, v_HLD = (x[start:end].transpose(0, 1).double() for x in (q, k, v))
        weights = (scale * q_HLD @ k_HLD.transpose(1, 2)).softmax(-1)
        out[start:end] = (weights @ v_HLD).transpose(0, 1)
    return out


def distance(ours: Tensor, exact: Tensor) -> float:
    return ((ours.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["auto", "varlen", "masked"])
def test_close_to_the_formula(head_dim: int, dtype: torch.dtype, backend: str) -> None:
    lengths = [196, 0, 64, 4, 1000, 0]
    (q, k, v), offsets = inputs(lengths, head_dim, dtype)
    scale = head_dim**-0.5
    result = segment_attention(q, k, v, offsets, 1000, scale=scale, backend=backend)
    assert result.is_contiguous()
    assert distance(result, formula(q, k, v, offsets, scale)) <= 5e-3
    out = torch.full_like(result, torch.nan)
    segment_attention(q, k, v, offsets, 1000, scale=scale, backend=backend, out=out)
    assert torch.equal(out, result)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_one_segment_and_float32(head_dim: int) -> None:
    for dtype, lengths, tolerance in (
        (torch.bfloat16, [700], 5e-3),
        (torch.float32, [700], 1e-5),
        (torch.float32, [300, 400], 1e-5),
    ):
        (q, k, v), offsets = inputs(lengths, head_dim, dtype)
        result = segment_attention(q, k, v, offsets, 700, scale=0.1)
        assert distance(result, formula(q, k, v, offsets, 0.1)) <= tolerance


def test_backends_that_cannot_serve_say_so() -> None:
    (q, k, v), offsets = inputs([8, 8], 64, torch.float32)
    with pytest.raises(ValueError, match="varlen needs float16 or bfloat16"):
        segment_attention(q, k, v, offsets, 8, scale=1.0, backend="varlen")
    with pytest.raises(ValueError, match="sdpa needs one segment"):
        segment_attention(q, k, v, offsets, 8, scale=1.0, backend="sdpa")


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.bfloat16, 72), (torch.float32, 72)])
def test_a_replay_follows_new_boundaries(dtype: torch.dtype, head_dim: int) -> None:
    """Backends read offsets on the device: other segments, same recording."""
    (q, k, v), offsets = inputs([100, 200, 84, 0], head_dim, dtype)
    out = torch.empty(384, 4, head_dim, dtype=dtype, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        segment_attention(q, k, v, offsets, 384, scale=0.1, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        segment_attention(q, k, v, offsets, 384, scale=0.1, out=out)
    for boundaries in ([0, 384, 384, 384, 384], [0, 4, 8, 8, 384], [0, 96, 192, 288, 384]):
        offsets.copy_(torch.tensor(boundaries, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        assert distance(out, formula(q, k, v, offsets, 0.1)) <= 5e-3
