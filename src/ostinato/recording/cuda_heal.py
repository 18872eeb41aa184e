"""After a capture that failed: what torch leaves behind, put right.

torch 2.11 to 2.13 keep routing allocations to the pool, keep the pool's use count, and leave
every CUDA generator in capture state. The order of the steps was measured (``facts`` in
docs/log.md).
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress

import torch

from ostinato.errors import CaptureFailed, RecordingRefused

broken_graphs: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed. They stay alive: destroying one touches a pool that is gone."""


def heal(
    graph: torch.cuda.CUDAGraph, pool_id: tuple[int, int], generators: Sequence[torch.Generator]
) -> None:
    """End the capture of ``graph`` and give back what it holds; the pool takes no new capture
    after it.
    """
    try:
        with warnings.catch_warnings():  # that the graph is empty, where nothing had begun
            warnings.simplefilter("ignore")
            graph.capture_end()
    except RuntimeError:
        broken_graphs.append(graph)
        _leave_pool(pool_id)
    else:
        graph.reset()
    device = torch.cuda.current_device()
    for generator in (torch.cuda.default_generators[device], *generators):
        generator.graphsafe_set_state(generator.clone_state())


def _leave_pool(pool_id: tuple[int, int]) -> None:
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # torch from 2.14 on has already left it
        torch._C._cuda_endAllocateToPool(device, pool_id)
        torch._C._cuda_releasePool(device, pool_id)


def explain(error: BaseException) -> RecordingRefused:
    """What went wrong, with the caller's line; the CUDA message alone does not name the
    operation.
    """
    if isinstance(error, RecordingRefused):
        return error
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    frames = [
        f for f in traceback.extract_tb(first.__traceback__) if not _is_ours_or_torch(f.filename)
    ]
    location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
    message = str(first).splitlines()[0] if str(first) else ""
    return CaptureFailed(
        f"{type(first).__name__} while recording: {message}",
        rule="capture-failed",
        location=location,
        fix="ostinato doctor names operations that cannot be recorded",
    )


def _is_ours_or_torch(filename: str) -> bool:
    return "/ostinato/recording/" in filename or "/torch/" in filename
