"""Captures in segments by the package ``breakable-cuda-graphs``, with our rules around it.

The package opens and closes the segments, and keeps the calls between them; that each segment may
be replayed is ours to find out. It uses ``torch.cuda.graph``, which waits for the device and
flushes the allocator's cache at each segment, and a call between segments may return no tensor.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ostinato import state
from ostinato.recording import cuda_heal
from ostinato.recording.cuda_capture import Capture, CudaRecorded

PACKAGE = "breakable_cuda_graphs"


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


class Segment(torch.cuda.CUDAGraph):
    """A graph that can be looked into, and that knows whether its capture is under way."""

    is_open = False

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        super().capture_begin(*args, **kwargs)
        self.is_open = True

    def capture_end(self) -> None:
        with warnings.catch_warnings():  # torch warns of an empty graph; its nodes are counted
            warnings.simplefilter("ignore")
            super().capture_end()
        self.is_open = False


class BreakableCapture(Capture):
    """See ``Capture``: the same rules, census and failures."""

    turn = threading.RLock()
    """Held for a capture: it waits for the device, which two captures at once would not survive."""

    def __init__(self, pool_id: Any, generators: Sequence[torch.Generator]) -> None:
        super().__init__(pool_id, generators)
        self._package = importlib.import_module(PACKAGE)
        self._segments: list[Segment] = []
        self._sequence = self._package.BreakableCUDAGraph(pool=pool_id)
        self._sequence._append_graph = self._append_segment
        self._context: Any = None

    def _append_segment(self) -> Segment:
        segment = Segment(keep_graph=True)
        for generator in self._generators:
            segment.register_generator_state(generator)
        self._segments.append(segment)
        self._sequence._segments.append(segment)
        return segment

    def _begin(self) -> None:
        self._context = self._package.breakable_graph(
            self._sequence,
            stream=torch.cuda.current_stream(),
            capture_error_mode="thread_local",
            barrier_fn=self._between_segments,
        )
        self._context.__enter__()

    def _end(self) -> None:
        context, self._context = self._context, None
        context.__exit__(None, None, None)
        self._look()

    def split(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """``fn`` between two segments, now and at each replay."""

        def now(*args: Any) -> Any:
            with state.entering(None):
                return fn(*args)

        return self._package.no_graph(fn, capture_stub=now)(*args)

    def _between_segments(self) -> None:
        """A segment has ended: replay it, so that what is called next finds values."""
        if self._look():
            self._graphs[-1].replay()

    def _look(self) -> bool:
        segment = self._segments[-1]
        if self._is_counted(segment):
            return True
        self._segments.remove(segment)
        self._sequence._segments.remove(segment)
        return False

    def finish(self, bytes_per_node: int) -> CudaRecorded:
        self._steps = [self._sequence.replay]
        return super().finish(bytes_per_node)

    def _abandon(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            error = RuntimeError("the capture is abandoned")
            context.__exit__(RuntimeError, error, None)
        for segment in self._segments:
            if segment.is_open:
                cuda_heal.heal(segment, self._pool_id, self._generators)
            else:
                segment.reset()
        self._segments, self._graphs, self._steps = [], [], []
