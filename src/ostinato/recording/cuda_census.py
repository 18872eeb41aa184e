"""Counting: nodes of a graph, kernels of a direct call, bytes of an executable.

Kernels of a direct call are counted by CUPTI's callback interface, for the calling thread alone.
Where another profiler holds CUPTI the count is ``None`` and the gate's comparison of results
stands alone.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

FALLBACK_BYTES_PER_NODE = 2048
_MEASURED_NODES = 2000


class GraphCensus(NamedTuple):
    num_nodes: int
    num_kernels: int
    forbidden: str
    """Names of node kinds that must not be replayed; empty when there are none."""


def of_graph(raw_graph: int) -> GraphCensus:
    """Walk the nodes of a ``cudaGraph_t``."""
    runtime = importlib.import_module("cuda.bindings.runtime")  # comes with torch's CUDA builds

    kinds = runtime.cudaGraphNodeType
    forbidden = {
        kinds.cudaGraphNodeTypeHost: "a host callback",
        kinds.cudaGraphNodeTypeMemAlloc: "a driver allocation",
        kinds.cudaGraphNodeTypeMemFree: "a driver free",
    }
    num_nodes = checked(runtime.cudaGraphGetNodes(raw_graph, 0))[-1]
    if num_nodes == 0:
        return GraphCensus(0, 0, "")
    nodes = checked(runtime.cudaGraphGetNodes(raw_graph, num_nodes))[0]
    found = [checked(runtime.cudaGraphNodeGetType(node))[0] for node in nodes]
    bad = sorted({forbidden[kind] for kind in found if kind in forbidden})
    return GraphCensus(num_nodes, found.count(kinds.cudaGraphNodeTypeKernel), ", ".join(bad))


def checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """The answer of a call of ``cuda.bindings`` without its error code, which must be zero."""
    if int(answer[0]) != 0:
        raise RuntimeError(f"CUDA answered {answer[0]}")
    return answer[1:]


@cache
def bytes_per_node(device: torch.device) -> int:
    """Driver memory of one node of an executable graph, measured once on this device."""
    value = torch.zeros(8, device=device)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    value.add_(1)
    torch.cuda.current_stream(device).synchronize()
    graph.capture_begin(capture_error_mode="thread_local")
    for _ in range(_MEASURED_NODES):
        value.add_(1)
    graph.capture_end()
    before = torch.cuda.mem_get_info(device)[0]
    graph.instantiate()
    graph.replay()
    torch.cuda.current_stream(device).synchronize()
    used = before - torch.cuda.mem_get_info(device)[0]
    graph.reset()
    measured = used // _MEASURED_NODES
    return measured if 256 <= measured <= 32768 else FALLBACK_BYTES_PER_NODE


_DRIVER_API = 1  # CUPTI_CB_DOMAIN_DRIVER_API
_LAUNCHES = (307, 442, 652, 653)  # cuLaunchKernel, _ptsz, cuLaunchKernelEx, _ptsz
_ENTER, _EXIT = 0, 1
_Callback = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int)
)


@cache
def _cupti() -> ctypes.CDLL | None:
    for name in ("libcupti.so.13", "libcupti.so.12", "libcupti.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


_SUBSCRIBE_ATTEMPTS = 4
_PROBES = 20
_subscribing = threading.Lock()


class KernelCount:
    """Kernels that one thread launched. As a splitter it leaves out direct calls between pieces."""

    def __init__(self) -> None:
        self.number = 0
        self._thread = threading.get_ident()
        self._is_paused = False

    def is_of_this_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def add(self) -> None:
        if not self._is_paused and self.is_of_this_thread():
            self.number += 1

    def split(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._is_paused = True
        try:
            return fn(*args)
        finally:
            self._is_paused = False


class _Subscription:
    """The one subscription of this process: whose launches count, and whether it is to end.

    Every thread's launches come here, on their own thread, so what the driver calls is never freed.
    """

    def __init__(self) -> None:
        self.count: KernelCount | None = None
        self.leave: Callable[[], Any] | None = None
        self.callback = _Callback(self._on_launch)

    def _on_launch(self, _user: Any, _domain: int, _which: int, data: Any) -> None:
        count, leave = self.count, self.leave
        if count is None:
            return
        if data[0] == _ENTER:
            count.add()
        elif data[0] == _EXIT and leave is not None and count.is_of_this_thread():
            self.leave = None
            leave()


_subscription = _Subscription()


def count_kernels(call: Callable[[KernelCount], Any]) -> int | None:
    """Run ``call`` and count the kernels that this thread launched in it, on any stream.

    ``None`` where nothing could be counted: no CUPTI, or another profiler holds it.
    """
    library, count = _cupti(), KernelCount()
    if library is None:
        call(count)
        return None
    subscriber = ctypes.c_void_p()
    with _subscribing:
        _subscription.count = count
        if not _subscribe(library, subscriber, _subscription.callback):
            _subscription.count = None
            call(count)
            return None
        try:
            refused = [
                library.cuptiEnableCallback(1, subscriber, _DRIVER_API, which)
                for which in _LAUNCHES
            ]
            is_seen = not any(refused) and _is_seen(count)
            count.number = 0
            call(count)
            number = count.number
        finally:
            _detach(library, subscriber)
            _subscription.count = None
    return number if is_seen else None


def _detach(library: ctypes.CDLL, subscriber: ctypes.c_void_p) -> None:
    """Detach CUPTI from the process: while it is attached every graph launch takes ten times as
    long (measured: 25 us became 350 us for 700 nodes).

    CUPTI asks for this to be done at the end of a driver call, where it knows what other threads do
    in it; anywhere else a thread that is inside the driver may return into what is gone.
    """
    _subscription.leave = library.cuptiFinalize
    try:
        torch.zeros(8, device="cuda").add_(1)
    finally:
        if _subscription.leave is not None:  # no callback came
            _subscription.leave = None
            library.cuptiUnsubscribe(subscriber)
            library.cuptiFinalize()


def _is_seen(count: KernelCount) -> bool:
    """Launch until a launch is counted: callbacks of a new subscription may begin a little late."""
    probe = torch.zeros(8, device="cuda")
    for attempt in range(_PROBES):
        probe.add_(1)
        if count.number:
            return True
        time.sleep(0.0002 * attempt)
    return False


def _subscribe(library: ctypes.CDLL, subscriber: ctypes.c_void_p, callback: Any) -> bool:
    """Attach; a detachment of a moment ago may still be under way."""
    for attempt in range(_SUBSCRIBE_ATTEMPTS):
        if library.cuptiSubscribe(ctypes.byref(subscriber), callback, None) == 0:
            return True
        time.sleep(0.001 * (attempt + 1))
    return False
