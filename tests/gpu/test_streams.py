"""Work that leaves the recording stream, empty recordings, host callbacks (contract 4, 5, 11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ostinato
from ostinato.recording import cuda_census
from ostinato.recording.cuda import CudaBackend
from tests.gpu.conftest import Make
from tests.gpu.gpu_mutations import assert_fails_under
from tests.gpu.hidden import enqueue_host_function, on_stream, order, settle
from tests.gpu.regions import DEVICE, T, check_exact, exactly, refused, same, tensor, waves

pytestmark = pytest.mark.device

SIZE = 4096


def by_kernel(stream: torch.cuda.Stream) -> Callable[[T], T]:
    """Adds on another stream without joining it; right as a direct call, which may wait."""
    kept = torch.zeros(SIZE, device=DEVICE)

    def escaping(x: T) -> T:
        y = x * 2
        settle()
        with on_stream(stream):
            torch.add(y, 1, out=kept)
        settle()
        return torch.sin(kept)

    return escaping


def by_copy(stream: torch.cuda.Stream) -> Callable[[T], T]:
    """Copies on another stream: no kernel is missing from the recording, only a copy."""
    kept = torch.zeros(SIZE, device=DEVICE)

    def escaping(x: T) -> T:
        y = x * 2
        settle()
        with on_stream(stream):
            kept.copy_(y)
        settle()
        return torch.sin(kept)

    return escaping


def streams() -> list[torch.cuda.Stream]:
    return [torch.cuda.default_stream(), torch.cuda.Stream()]


def test_kernels_are_counted() -> None:
    x = tensor(0, SIZE)
    waves(x)
    assert cuda_census.count_kernels(lambda _: waves(x)) == 72


def test_kernels_on_another_stream_are_found(graph: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        for stream in streams():
            escaping = by_kernel(stream)
            graphed, x = graph(escaping), tensor(0, SIZE)
            with refused("stream-escape"):
                graphed.record(x)
            assert same(graphed(x), escaping(x))

    assert_fails_under("cuda.kernels_are_not_counted", check, monkeypatch)


def test_copies_on_another_stream_do_not_pass_the_gate(
    graph: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        for stream in streams():
            graphed = graph(by_copy(stream))
            with refused("gate"):
                graphed.record(tensor(0, SIZE))

    assert_fails_under("gate.off", check, monkeypatch)


def test_streams_named_in_python_are_refused_with_their_line(graph: Make) -> None:
    side = torch.cuda.Stream()

    def visible(x: T) -> T:
        with torch.cuda.stream(side):
            return torch.sin(x)

    with refused("stream") as caught:
        graph(visible).record(tensor(0, SIZE))
    assert "test_streams.py" in str(caught.value)


def test_a_side_stream_that_is_joined_is_recorded(graph: Make) -> None:
    side, kept = torch.cuda.Stream(), torch.zeros(SIZE, device=DEVICE)

    def forked(x: T) -> T:
        main = torch.cuda.current_stream()
        y = torch.sin(x)
        order(main, side)
        with on_stream(side):
            torch.mul(y, 2, out=kept)
        z = torch.cos(y)
        order(side, main)
        return z + kept

    def want(x: T) -> T:
        y = torch.sin(x)
        return torch.cos(y) + y * 2

    graphed = graph(forked)
    check_exact(graphed, want, [(tensor(seed, SIZE),) for seed in range(20)])


def test_a_recording_without_work_is_refused(graph: Make) -> None:
    def nothing(x: T) -> T:
        return x.view(-1)

    graphed, x = graph(nothing), tensor(0, 8, 8)
    with refused("empty"):
        graphed.record(x)
    assert graphed(x).data_ptr() == x.data_ptr()


def test_host_callbacks_are_refused(graph: Make) -> None:
    pytest.importorskip("cuda.bindings.runtime")

    def calling_back(x: T) -> T:
        y = torch.sin(x)
        enqueue_host_function()
        return y * 2

    with refused("graph-node"):
        graph(calling_back).record(tensor(0, SIZE))


def test_nobody_else_is_handed_the_stream_of_a_lane() -> None:
    lanes = [CudaBackend(DEVICE), CudaBackend(DEVICE)]
    handed = {torch.cuda.Stream().cuda_stream for _ in range(64)}
    handed |= {torch.cuda.Stream(priority=-1).cuda_stream for _ in range(64)}
    own = {lane.stream.cuda_stream for lane in lanes}
    assert len(own) == 2 and not own & handed
    for lane in lanes:
        lane.close()


def test_inside_a_foreign_capture_it_is_the_plain_callable(graph: Make) -> None:
    graphed, x = graph(waves), tensor(0, SIZE)
    exactly(graphed, x)
    foreign, static = torch.cuda.CUDAGraph(), torch.empty(SIZE, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.graph(foreign, stream=torch.cuda.Stream()):
        static.copy_(graphed(x))
    x.copy_(tensor(1, SIZE))
    foreign.replay()
    assert same(static, waves(x))
    with ostinato.route("direct"):
        assert same(graphed(x), waves(x))
    foreign.reset()


def test_inside_another_recording_it_is_the_plain_callable(graph: Make) -> None:
    inner = graph(waves)
    exactly(inner, tensor(0, SIZE))

    def outer(x: T) -> T:
        doubled: T = inner(x) * 2
        return doubled

    check_exact(graph(outer), outer, [(tensor(seed, SIZE),) for seed in range(3)])
    assert inner.stats().num_recorded == 1
