"""What users have elsewhere: one CUDA graph per exact layout, recorded at first sight, unbounded.

Plain ``torch.cuda.graph``; all graphs share one pool. On the CPU (trial runs) calls are not
recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ostinato.vision.contract import EncoderOutput, Grid, LayoutTensors
from ostinato.vision.layout import Layouts, to_tensors


class ExactOnly:
    """Calls a tower through a graph of the very layout that is asked for."""

    def __init__(self, tower: Any, device: torch.device) -> None:
        self._tower = tower
        self._device = device
        self._layouts = Layouts(tower.config)
        self._graphs: dict[tuple[Grid, ...], _Graph] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @property
    def num_recordings(self) -> int:
        return len(self._graphs)

    def __call__(self, patches: Tensor, grids: Sequence[Grid]) -> list[Tensor]:
        """Embeddings, then DeepStack levels; the caller's own."""
        key = tuple(grids)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._record(patches, key)
        return graph(patches)

    def _record(self, patches: Tensor, key: tuple[Grid, ...]) -> _Graph:
        layout = self._layouts.exact(key)
        tensors = to_tensors(layout.arrays, self._device)
        bounds = {"max_segment": layout.size.max_segment, "max_window": layout.size.max_window}
        return _Graph(self._tower, patches.clone(), tensors, bounds, self._stream, self._pool)


class _Graph:
    def __init__(
        self,
        tower: Any,
        patches: Tensor,
        tensors: LayoutTensors,
        bounds: dict[str, int],
        stream: torch.cuda.Stream | None,
        pool: Any,
    ) -> None:
        self._patches, self._tensors = patches, tensors
        self._call = lambda: tower(patches, tensors, **bounds)
        self._graph: torch.cuda.CUDAGraph | None = None
        if stream is None:
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._call()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream):
            # in ordinary memory a result would survive other graphs of the pool; here it is
            # copied out before the next replay
            self._static: EncoderOutput = self._call()

    def __call__(self, patches: Tensor) -> list[Tensor]:
        self._patches.copy_(patches)
        if self._graph is None:
            static = self._call()
        else:
            self._graph.replay()
            static = self._static
        return [t.clone() for t in (static.embeddings, *static.deepstack)]
