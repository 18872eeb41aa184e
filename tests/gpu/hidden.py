"""What compiled extensions do and no Python-level check sees: streams, waits, host functions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.gpu.regions import T

_C: Any = torch._C


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Like ``torch.cuda.stream``, past the probe."""
    before = torch.cuda.current_stream()
    _set_stream(stream)
    try:
        yield
    finally:
        _set_stream(before)


def _set_stream(stream: torch.cuda.Stream) -> None:
    _C._cuda_setStream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def order(first: torch.cuda.Stream, then: torch.cuda.Stream) -> None:
    """``then`` waits for what ``first`` holds now; in a capture this forks or joins a stream."""
    event = torch.cuda.Event()
    _C._CudaEventBase.record(event, first)
    _C._CudaEventBase.wait(event, then)


def settle() -> None:
    """Wait for the device, but not during a capture, where that is not allowed."""
    if not torch.cuda.is_current_stream_capturing():
        _C._cuda_synchronize()


def enqueue_host_function() -> None:
    """A host callback on the current stream: ``free(NULL)`` of the C library, without Python."""
    from cuda.bindings import runtime

    address = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value
    stream = torch.cuda.current_stream().cuda_stream
    answer = runtime.cudaLaunchHostFunc(stream, address, None)
    assert int(answer[0]) == 0, answer


@torch.library.custom_op("gputests::reads_back", mutates_args=())
def reads_back(x: T) -> T:
    """Waits for a value inside an operator: right as a direct call, fatal to a capture."""
    return x * (2.0 if x.sum().item() > -1e30 else 3.0)


tuned: set[tuple[int, ...]] = set()


@torch.library.custom_op("gputests::tunes_once", mutates_args=())
def tunes_once(x: T) -> T:
    """Waits for the device at the first call with a shape, as an autotuner does."""
    if tuple(x.shape) not in tuned:
        x.sum().item()
        tuned.add(tuple(x.shape))
    return x * 2.0
