"""A capture under way: one graph, or several with direct calls between them, and what it becomes.

Begun and ended by hand: ``torch.cuda.graph`` synchronises the device and flushes the allocator's
cache each time.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ostinato import state
from ostinato.errors import RecordingRefused
from ostinato.recording import cuda_census, cuda_fills, cuda_heal
from ostinato.recording.backend import Body


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


class Capture:
    """Captures a body as one graph, or as several with direct calls between them."""

    turn: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    """What must be held meanwhile."""

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
        if self._is_counted(graph):
            self._steps.append(graph.replay)

    def _is_counted(self, graph: torch.cuda.CUDAGraph) -> bool:
        """Look at what was captured and make it executable; False for a graph of nothing."""
        census = cuda_census.of_graph(graph.raw_cuda_graph())
        if census.num_nodes == 0:
            graph.reset()
            return False
        self._graphs.append(graph)
        if census.forbidden:
            raise RecordingRefused(
                f"the recording holds {census.forbidden}, which would run again at every replay",
                rule="graph-node",
                fix="keep host callbacks and allocations by the driver out of the region",
            )
        cuda_fills.replace(graph.raw_cuda_graph())
        graph.instantiate()
        self.num_kernels += census.num_kernels
        self._num_nodes += census.num_nodes
        return True

    def split(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """End this piece, replay it so that ``args`` hold values, call ``fn``, begin the next."""
        num_graphs = len(self._graphs)
        self._end()
        for graph in self._graphs[num_graphs:]:
            graph.replay()
        with state.entering(None):
            result = fn(*args)
        self._steps.append(_between(fn, unowned(args, self._pool_id), result))
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
            if old is not None and old.data_ptr() != value.data_ptr():
                old.copy_(value)

    return step


def unowned(args: tuple[Any, ...], pool_id: tuple[int, int]) -> tuple[Any, ...]:
    """The same arguments, with aliases that own nothing for tensors in the pool's memory.

    The pool lives as long as the recording, so an address in it stays valid; a reference to each
    argument of each direct call would keep all of them apart that could share memory.
    """
    segments = torch.cuda.memory_snapshot(mempool_id=pool_id)
    spans = [(int(one["address"]), int(one["total_size"])) for one in segments]

    def alias(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_cuda:
            return value
        storage = value.untyped_storage()
        address = storage.data_ptr()
        if not any(start <= address < start + size for start, size in spans):
            return value
        memory = torch._C._construct_storage_from_data_pointer(
            address, value.device, storage.nbytes()
        )
        form = {
            "data_ptr": address,
            "nbytes": storage.nbytes(),
            "device": value.device,
            "size": list(value.shape),
            "stride": list(value.stride()),
            "storage_offset": value.storage_offset(),
            "dtype": value.dtype,
        }
        return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(form, memory)

    aliased: tuple[Any, ...] = pytree.tree_map(alias, args)
    return aliased
