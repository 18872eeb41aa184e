"""The CUDA backends against the formula in float64, and replays with other boundaries."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ostinato import state
from ostinato.kernels.gate import first_wrong_answer, using_numerics
from ostinato.kernels.segment_attention import availability, segment_attention
from ostinato.kernels.segment_attention.availability import as_operator
from ostinato.kernels.segment_attention.backends import BACKENDS
from ostinato.kernels.segment_attention.call import Backend, Call
from ostinato.kernels.segment_attention.choice import CHOOSER, candidates

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


# -- every backend --------------------------------------------------------------------------------

SEGMENTATIONS = {
    "one": [700],
    "mixed": [196, 0, 64, 1, 333, 0],
    "ones": [1] * 50,
    "windows": [64] * 20 + [32, 16, 0, 0],
    "pieces up to 128": [128, 127, 65, 1, 0],
    "unused capacity": [500, 268] + [0] * 254,
    "many": [3] * 1500,
}


def need(name: str, call: Call) -> Backend:
    """The backend, or a skip that says why it cannot serve the call here."""
    backend = BACKENDS[name]
    reason = backend.misfit(call) or availability.absence(backend, call.q.device)
    if reason:
        pytest.skip(f"{name} {reason}")
    return backend


@pytest.mark.parametrize("lengths", SEGMENTATIONS.values(), ids=SEGMENTATIONS)
@pytest.mark.parametrize("head_dim", [64, 72, 80, 128])
@pytest.mark.parametrize("name", ["cudnn", "fa3", "cudnn_ragged", "triton"])
def test_a_backend_is_as_close_to_float32_as_torchs_own(
    name: str, head_dim: int, lengths: list[int]
) -> None:
    (q, k, v), offsets = inputs(lengths, head_dim, torch.bfloat16)
    exact = formula(q, k, v, offsets, 0.2)
    for bound in {max(lengths), sum(lengths)}:
        call = Call(q, k, v, offsets, bound, 0.2)
        backend = need(name, call)
        out = torch.full(q.shape, torch.nan, dtype=q.dtype, device="cuda")
        result = backend.attend(call, out)
        yardstick = distance(BACKENDS["varlen"].attend(call, None), exact)
        assert distance(result, exact) <= 1.2 * yardstick + 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [20, 72, 96, 160, 256])
def test_the_own_kernel_takes_other_dtypes_and_heads(dtype: torch.dtype, head_dim: int) -> None:
    for lengths in ([700], [196, 0, 64, 1, 333, 0], [64] * 5):
        (q, k, v), offsets = inputs(lengths, head_dim, dtype)
        result = segment_attention(q, k, v, offsets, 700, scale=0.2, backend="triton")
        limit = 1e-5 if dtype is torch.float32 else 1e-3
        assert distance(result, formula(q, k, v, offsets, 0.2)) <= limit


@pytest.mark.parametrize("head_dim", [64, 72, 80, 128])
@pytest.mark.parametrize("name", ["cudnn", "fa3", "cudnn_ragged", "triton"])
def test_a_backend_passes_its_probe(name: str, head_dim: int) -> None:
    """NaN in one segment stays there; every row is written."""
    lengths = [50] if name == "cudnn" else [20, 30]
    (q, k, v), offsets = inputs(lengths, head_dim, torch.bfloat16)
    call = Call(q, k, v, offsets, 50, 0.1)
    assert not first_wrong_answer(as_operator(need(name, call)), tuple(call))


@pytest.mark.parametrize("what", ["boundary", "scale", "unwritten row"])
def test_the_probe_catches_a_broken_variant(what: str) -> None:
    (q, k, v), offsets = inputs([20, 30], 72, torch.bfloat16)
    call = Call(q, k, v, offsets, 50, 0.1)
    own = need("triton", call)

    def broken(call: Call, out: Tensor | None) -> Tensor:
        if what == "boundary":
            moved = call.offsets.clone()
            moved[1:-1] = (moved[1:-1] + 1).clamp(max=call.q.shape[0])
            call = call._replace(offsets=moved)
        elif what == "scale":
            call = call._replace(scale=1.05 * call.scale)
        result = own.attend(call, out)
        if what == "unwritten row":
            result[-1] = torch.nan
        return result

    assert first_wrong_answer(as_operator(Backend("broken", broken)), tuple(call))


@pytest.mark.parametrize("name", ["fa3", "cudnn_ragged", "triton"])
def test_a_backends_replay_follows_new_boundaries(name: str) -> None:
    (q, k, v), offsets = inputs([100, 200, 84, 0], 72, torch.bfloat16)
    call = Call(q, k, v, offsets, 384, 0.1)
    backend = need(name, call)
    out = torch.empty(384, 4, 72, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        backend.attend(call, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        backend.attend(call, out)
    for boundaries in ([0, 384, 384, 384, 384], [0, 4, 8, 8, 384], [0, 96, 192, 288, 384]):
        offsets.copy_(torch.tensor(boundaries, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        assert distance(out, formula(q, k, v, offsets, 0.1)) <= 5e-3
        direct = backend.attend(call, None)
        assert torch.equal(out, direct)


# -- the choice -----------------------------------------------------------------------------------


def test_a_direct_call_and_its_recording_choose_alike() -> None:
    (q, k, v), offsets = inputs([300, 340], 80, torch.bfloat16)
    direct = segment_attention(q, k, v, offsets, 640, scale=0.1)
    num_before = state.verdicts.number
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        segment_attention(q, k, v, offsets, 640, scale=0.1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        recorded = segment_attention(q, k, v, offsets, 640, scale=0.1)
    graph.replay()
    assert torch.equal(direct, recorded)
    assert state.verdicts.number == num_before


def test_an_unknown_class_under_capture_gets_torchs_own_and_times_nothing() -> None:
    (q, k, v), offsets = inputs([111, 222, 5], 40, torch.bfloat16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), using_numerics("reference"):
        plain = segment_attention(q, k, v, offsets, 338, scale=0.1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = segment_attention(q, k, v, offsets, 338, scale=0.1)
    graph.replay()
    assert torch.equal(recorded, plain)


def test_without_fa3_and_cudnn_others_serve() -> None:
    (q, k, v), offsets = inputs([300, 340], 72, torch.bfloat16)
    call = Call(q, k, v, offsets, 640, 0.1)
    with availability.hiding("fa3", "cudnn", "cudnn_ragged"):
        assert {b.name for b in candidates(call)} <= {"varlen", "triton", "masked"}
        assert CHOOSER.choose(call).name in {"varlen", "triton", "masked"}
        result = segment_attention(q, k, v, offsets, 640, scale=0.1)
    assert distance(result, formula(q, k, v, offsets, 0.1)) <= 5e-3
