"""The CUDA backend: the only place, with its ``cuda_*`` neighbours, that names graphs, pools and
streams.

Captures are begun and ended by hand: ``torch.cuda.graph`` synchronises the device and flushes the
allocator's cache each time. Warm-ups allocate from the pool that the capture will use, so a
recording reserves its temporaries once. Replays run on the caller's own stream; what orders two
of them is ``join`` (docs/decisions/0002).
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ostinato import state
from ostinato.errors import CaptureFailed, RecordingRefused
from ostinato.recording import cuda_census, cuda_heal, cuda_sync
from ostinato.recording.backend import Body
from ostinato.recording.collecting import collection_held_off

MAX_FAILED_CAPTURES = 16
"""After so many in one process no more are tried: each leaves its graph and its pool behind."""


class CudaRecorded:
    """Graphs, and the direct calls between them, in order."""

    def __init__(
        self,
        graphs: list[torch.cuda.CUDAGraph],
        steps: list[Callable[[], None]],
        num_nodes: int,
        bytes_per_node: int,
    ) -> None:
        self._graphs = graphs
        self.num_nodes = num_nodes
        self.num_pieces = len(graphs)
        self.bytes_held = num_nodes * bytes_per_node
        self._steps = steps
        self.replay = steps[0] if len(steps) == 1 else self._replay_all

    def _replay_all(self) -> None:
        for step in self._steps:
            step()

    def free(self) -> None:
        self.replay = _freed
        for graph in self._graphs:
            graph.reset()
        self._graphs, self._steps = [], []


def _freed() -> None:
    raise RuntimeError("replay of a recording that was freed")


class CudaPool:
    """One private memory pool; its recordings never run at the same time, so they share
    temporaries.
    """

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._pool: Any = torch.cuda.MemPool()

    def warm_up(self, body: Body) -> Any:
        return self._run(body)

    def _run(self, body: Body, splitter: state.Splitter | None = None) -> Any:
        activity = state.Activity(state.Phase.WARM_UP, splitter)
        with torch.cuda.use_mem_pool(self._pool), state.entering(activity):
            return body()

    def record(
        self, body: Body, *, generators: Sequence[torch.Generator] = (), is_counted: bool = True
    ) -> CudaRecorded:
        if len(cuda_heal.broken_graphs) >= MAX_FAILED_CAPTURES:
            raise CaptureFailed(
                f"{MAX_FAILED_CAPTURES} captures failed in this process; no more are tried",
                rule="capture-failed",
                fix="find out why with ostinato doctor",
            )
        direct_kernels = self._count(body) if is_counted else None
        capture = _Capture(self._pool.id, generators)
        with collection_held_off(), cuda_sync.gate.capturing():
            activity = state.Activity(state.Phase.RECORDING, capture)
            error = capture.run(body, activity)
        if error is not None:
            raise error
        recorded = capture.finish(self._backend.bytes_per_node)
        if direct_kernels is not None and direct_kernels < capture.num_kernels:
            direct_kernels = self._count(body)  # some launches were missed
        if direct_kernels is not None and capture.num_kernels < direct_kernels:
            recorded.free()
            raise RecordingRefused(
                f"a direct call launches {direct_kernels} kernels and the recording holds "
                f"{capture.num_kernels}: work went to another stream and would not be replayed",
                rule="stream-escape",
                fix="stay on the current stream, or join side streams to it",
            )
        return recorded

    def _count(self, body: Body) -> int | None:
        """Kernels of a direct call, wherever they run; the call is a warm-up too."""
        return cuda_census.count_kernels(lambda count: self._run(body, count))

    def bytes_held(self) -> int:
        segments = torch.cuda.memory_snapshot(mempool_id=self._pool.id)
        return sum(int(segment["total_size"]) for segment in segments)

    def close(self) -> None:
        self._pool = None


class _Capture:
    """Captures a body as one graph, or as several with direct calls between them."""

    def __init__(self, pool_id: Any, generators: Sequence[torch.Generator]) -> None:
        self._pool_id = pool_id
        self._generators = generators
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._steps: list[Callable[[], None]] = []
        self.num_kernels = 0
        self._num_nodes = 0

    def run(self, body: Body, activity: state.Activity) -> RecordingRefused | None:
        """Capture the body. An error is returned, not raised: its traceback would pin the
        buffers.
        """
        try:
            with state.entering(activity):
                self._begin()
                body()
                self._end()
        except BaseException as error:
            failure = cuda_heal.explain(error)
            error.__traceback__ = None
            self._abandon()
            if not isinstance(error, Exception):
                raise
            return failure
        return None

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        for generator in self._generators:
            self._graph.register_generator_state(generator)
        self._graph.capture_begin(pool=self._pool_id, capture_error_mode="thread_local")

    def _end(self) -> None:
        graph, self._graph = self._graph, None
        assert graph is not None
        try:
            with warnings.catch_warnings():  # torch warns of an empty graph; we count its nodes
                warnings.simplefilter("ignore")
                graph.capture_end()
        except BaseException:
            self._graph = graph
            raise
        census = cuda_census.of_graph(graph.raw_cuda_graph())
        if census.num_nodes == 0:
            graph.reset()
            return
        self._graphs.append(graph)
        if census.forbidden:
            raise RecordingRefused(
                f"the recording holds {census.forbidden}, which would run again at every replay",
                rule="graph-node",
                fix="keep host callbacks and allocations by the driver out of the region",
            )
        graph.instantiate()
        self.num_kernels += census.num_kernels
        self._num_nodes += census.num_nodes
        self._steps.append(graph.replay)

    def split(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """End this piece, replay it so that ``args`` hold values, call ``fn``, begin the next."""
        num_graphs = len(self._graphs)
        self._end()
        for graph in self._graphs[num_graphs:]:
            graph.replay()
        with state.entering(None):
            result = fn(*args)
        self._steps.append(_between(fn, args, result))
        self._begin()
        return result

    def _abandon(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            cuda_heal.heal(graph, self._pool_id, self._generators)
        for done in self._graphs:
            done.reset()
        self._graphs, self._steps = [], []

    def finish(self, bytes_per_node: int) -> CudaRecorded:
        if self.num_kernels == 0:
            for graph in self._graphs:
                graph.reset()
            raise RecordingRefused(
                "the recording is empty: no kernel was launched on the recording stream",
                rule="empty",
                fix="launch the work on the current stream, or call the function directly",
            )
        return CudaRecorded(self._graphs, self._steps, self._num_nodes, bytes_per_node)


def _between(fn: Callable[..., Any], args: tuple[Any, ...], result: Any) -> Callable[[], None]:
    """A step that calls ``fn`` directly and puts what it returns where the next piece reads it."""
    fixed = result if isinstance(result, (tuple, list)) else (result,)
    if not all(isinstance(t, torch.Tensor) or t is None for t in fixed):
        raise RecordingRefused(
            f"a direct call inside a recording returned {type(result).__qualname__}",
            rule="piece-result",
            fix="return None, a tensor, or a tuple of tensors",
        )

    def step() -> None:
        new = fn(*args)
        for old, value in zip(
            fixed, new if isinstance(new, (tuple, list)) else (new,), strict=True
        ):
            if old is not None and old is not value:
                old.copy_(value)

    return step


_spare_streams: dict[int, list[torch.cuda.Stream]] = {}
_last_random: dict[int, torch.cuda.Stream] = {}


class CudaBackend:
    """One recording stream of one device, and where its last replay ran."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        spare = _spare_streams.setdefault(index, [])
        self.stream = spare.pop() if spare else _own_stream(self.device)
        self.bytes_per_node = 0
        self._last_raw = self.stream.cuda_stream
        self._last = self.stream
        self._current_raw = torch._C._cuda_getCurrentRawStream
        self._index = index
        self._is_closed = False

    def attach(self) -> None:
        cuda_sync.install()
        torch.cuda.set_device(self.device)
        torch.cuda.set_stream(self.stream)
        with cuda_sync.gate.capturing():  # both make a small graph
            _warm_libraries(self.device)
            self.bytes_per_node = cuda_census.bytes_per_node(self.device)

    def open_pool(self) -> CudaPool:
        return CudaPool(self)

    def join(self) -> None:
        raw = self._current_raw(self._index)
        if raw != self._last_raw:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._last)
            self._last, self._last_raw = current, raw

    def join_random(self) -> None:
        # Up to torch 2.11 all graphs of a generator share one seed and offset in device memory.
        current = torch.cuda.current_stream(self.device)
        last = _last_random.get(self._index)
        if last is not None and last != current:
            current.wait_stream(last)
        _last_random[self._index] = current

    def fence(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, fence: Any) -> None:
        torch.cuda.current_stream(self.device).wait_event(fence)

    def synchronize(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()

    def close(self) -> None:
        """Leave the stream to the next lane: its library workspaces stay for the process's life."""
        if not self._is_closed:
            self._is_closed = True
            self.stream.wait_stream(self._last)
            _spare_streams[self._index].append(self.stream)


def _own_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream that no ``torch.cuda.Stream()`` is handed: torch deals out 32 of them in turns, and
    what another thread puts on the one under recording would become a part of the recording.
    """
    runtime = importlib.import_module("cuda.bindings.runtime")  # comes with torch's CUDA builds
    with torch.cuda.device(device):
        made = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
    (raw,) = cuda_census.checked(made)
    return torch.cuda.ExternalStream(int(raw), device=device)


def _warm_libraries(device: torch.device) -> None:
    """Create what a first use inside a pool or a capture would put there: handles, workspaces,
    seeds.
    """
    with torch.inference_mode(False), torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            square = torch.zeros(64, 64, dtype=dtype, device=device)
            torch.addmm(square[0], square, square)
            torch.bmm(square[None], square[None])
        # The first graph of a process makes the generator's seed tensors; under inference mode they
        # would be inference tensors, and every later capture outside of it would fail.
        out = torch.zeros(8, device=device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream(device).synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        out.copy_(torch.rand(8, device=device))
        graph.capture_end()
        graph.reset()
