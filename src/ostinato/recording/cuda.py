"""The CUDA backend: the only place, with its ``cuda_*`` neighbours, that names graphs, pools and
streams.

Warm-ups allocate from the pool that the capture will use, so a recording reserves its temporaries
once. Replays run on the caller's own stream; what orders two of them is ``join``
(docs/decisions/0002).
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ostinato import state
from ostinato.errors import CaptureFailed, RecordingRefused
from ostinato.recording import cuda_census, cuda_heal, cuda_pools, cuda_sync
from ostinato.recording.backend import Body
from ostinato.recording.collecting import collection_held_off
from ostinato.recording.cuda_branches import Branches, Wish
from ostinato.recording.cuda_breakable import BreakableCapture, is_installed
from ostinato.recording.cuda_capture import Capture, CudaRecorded

MAX_FAILED_CAPTURES = 16
"""After so many in one process no more are tried: each leaves its graph and its pool behind."""


class CudaPool:
    """One private memory pool; its recordings never run at the same time, so they share
    temporaries.
    """

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._pool: Any = torch.cuda.MemPool()
        self._leave = weakref.finalize(self, cuda_pools.leave, self._pool)

    def warm_up(self, body: Body) -> Any:
        return self._run(body)

    def _run(self, body: Body, splitter: state.Splitter | None = None) -> Any:
        activity = state.Activity(state.Phase.WARM_UP, splitter, self._backend.wish)
        with cuda_pools.allocating_from(self._pool), state.entering(activity):
            return body()

    def record(
        self,
        body: Body,
        *,
        generators: Sequence[torch.Generator] = (),
        is_counted: bool = True,
        is_breakable: bool = False,
    ) -> CudaRecorded:
        if len(cuda_heal.broken_graphs) >= MAX_FAILED_CAPTURES:
            raise CaptureFailed(
                f"{MAX_FAILED_CAPTURES} captures failed in this process; no more are tried",
                rule="capture-failed",
                fix="find out why with ostinato doctor",
            )
        direct_kernels = self._count(body) if is_counted else None
        make = BreakableCapture if is_breakable and is_installed() else Capture
        capture = make(self._pool.id, generators)
        branches = self._backend.branches()
        with capture.turn, collection_held_off(), cuda_sync.gate.capturing():
            activity = state.Activity(state.Phase.RECORDING, capture, branches)
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
        self._leave()
        cuda_pools.give_back()


_spare_streams: dict[int, list[torch.cuda.Stream]] = {}
_last_random: dict[int, torch.cuda.Stream] = {}


class CudaBackend:
    """One recording stream of one device, and where its last replay ran."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        self.stream = _stream_of(self.device)
        self.wish = Wish()
        self._side: torch.cuda.Stream | None = None
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

    def branches(self) -> Branches | None:
        """Where a recording runs what it may run beside the rest; None before a warm-up asked."""
        if not self.wish.is_made:
            return None
        if self._side is None:
            self._side = _stream_of(self.device)
            with torch.cuda.stream(self._side):
                _warm_products(self.device)
        return Branches(self._side)

    def open_pool(self) -> CudaPool:
        cuda_pools.give_back()
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
            used = [self.stream] if self._side is None else [self.stream, self._side]
            _spare_streams.setdefault(self._index, []).extend(used)


def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """One that a closed lane left, or a new one."""
    spare = _spare_streams.get(device.index)
    return spare.pop() if spare else _own_stream(device)


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
    _warm_products(device)
    with torch.inference_mode(False), torch.no_grad():
        # The first graph of a process makes the generator's seed tensors; under inference mode they
        # would be inference tensors, and every later capture outside of it would fail.
        out = torch.zeros(8, device=device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream(device).synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        out.copy_(torch.rand(8, device=device))
        graph.capture_end()
        graph.reset()


def _warm_products(device: torch.device) -> None:
    """Create the libraries' handles of this thread, and their workspaces for its current stream."""
    with torch.inference_mode(False), torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            square = torch.zeros(64, 64, dtype=dtype, device=device)
            torch.addmm(square[0], square, square)
            torch.bmm(square[None], square[None])
