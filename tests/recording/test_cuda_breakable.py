"""What the capture by ``breakable-cuda-graphs`` asks of that package, with graphs that only note.

Whether CUDA captures and replays the same is shown in ``tests/gpu/test_prefill_backends.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ostinato import state
from ostinato.errors import RecordingRefused
from ostinato.recording import cuda_breakable, cuda_heal
from ostinato.recording.cuda_breakable import BreakableCapture
from ostinato.recording.cuda_census import GraphCensus
from ostinato.recording.pieces import direct

pytest.importorskip(
    cuda_breakable.PACKAGE, reason="the package breakable-cuda-graphs is not installed"
)
Log = list[str]


class NotedGraph:
    """A capture takes what is noted while it is open; a replay notes it again."""

    def __init__(self, keep_graph: bool) -> None:
        assert keep_graph
        self.work: Log = []
        self.log: Log = []
        self.is_open = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert (pool, capture_error_mode) == ((0, 1), "thread_local")
        self.is_open = True
        open_graphs.append(self)

    def capture_end(self) -> None:
        assert self.is_open, "capture_end without a capture"
        open_graphs.remove(self)
        self.is_open = False

    def raw_cuda_graph(self) -> int:
        return len(self.work)

    def instantiate(self) -> None: ...

    def replay(self) -> None:
        self.log += self.work

    def reset(self) -> None:
        self.work = []


open_graphs: list[NotedGraph] = []


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    noted: Log = []
    made = NotedGraph

    def segment(keep_graph: bool) -> NotedGraph:
        graph = made(keep_graph)
        graph.log = noted
        return graph

    @contextlib.contextmanager
    def graph_of(
        graph: NotedGraph, pool: Any, stream: Any, capture_error_mode: str
    ) -> Iterator[None]:
        assert stream == "the lane's stream"
        graph.capture_begin(pool=pool, capture_error_mode=capture_error_mode)
        try:
            yield
        finally:
            graph.capture_end()

    def census(number: int) -> GraphCensus:
        return GraphCensus(number, number, "")

    open_graphs.clear()
    monkeypatch.setattr(cuda_breakable, "Segment", segment)
    monkeypatch.setattr(torch.cuda, "graph", graph_of)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the lane's stream")
    monkeypatch.setattr("ostinato.recording.cuda_census.of_graph", census)
    monkeypatch.setattr("ostinato.recording.cuda_fills.replace", lambda raw_graph: 0)
    return noted


def launch(name: str, log: Log) -> None:
    """Goes into the capture under way, or runs at once."""
    (open_graphs[-1].work if open_graphs else log).append(name)


def captured(body: Callable[[], None]) -> tuple[BreakableCapture, RecordingRefused | None]:
    capture = BreakableCapture((0, 1), ())
    return capture, capture.run(body, state.Activity(state.Phase.RECORDING, capture))


def test_segments_and_the_calls_between_them_are_replayed_in_order(log: Log) -> None:
    phases: list[Any] = []

    def between(name: str) -> None:
        phases.append(state.current())
        launch(name, log)

    def body() -> None:
        launch("a", log)
        direct(between, "1")
        direct(between, "2")  # nothing is launched before it: no segment is kept
        launch("b", log)
        launch("c", log)
        direct(between, "3")
        launch("d", log)

    capture, error = captured(body)
    assert error is None
    assert log == ["a", "1", "2", "b", "c", "3"], "each call finds what the segment before it does"
    assert phases == [None] * 3
    recorded = capture.finish(10)
    assert (recorded.num_pieces, recorded.num_nodes, recorded.bytes_held) == (3, 4, 40)
    log.clear()
    recorded.replay()
    assert log == ["a", "1", "2", "b", "c", "3", "d"]
    recorded.free()
    with pytest.raises(RuntimeError, match="freed"):
        recorded.replay()


@pytest.mark.parametrize("is_between", [False, True])
def test_a_failure_leaves_no_capture_open_and_the_next_one_is_made(
    log: Log, is_between: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    healed: list[Any] = []
    monkeypatch.setattr(cuda_heal, "heal", lambda graph, *rest: healed.append(graph))

    def fail() -> None:
        raise ValueError("broken on purpose")

    def body() -> None:
        launch("a", log)
        direct(launch, "1", log)
        direct(fail) if is_between else fail()

    _, error = captured(body)
    assert error is not None
    assert "broken on purpose" in str(error)
    assert open_graphs == [] and healed == []
    _, error = captured(lambda: launch("a", log))
    assert error is None
