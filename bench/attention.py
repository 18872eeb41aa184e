"""Which attention backend is fastest for which segments, and how far from float32 is it?

    python -m bench.attention [--tiles] [--only NAME] [--out FILE]

Each backend on each shape: device time of a call inside a CUDA graph of ten, relative error against
float32, and whether NaN in the last segment stays there. ``--tiles`` times tile sizes of the own
kernel instead. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench.report import write
from ostinato.bench.attention_shapes import SHAPES, AttentionShape
from ostinato.bench.kernels import usable
from ostinato.kernels.segment_attention import fa3
from ostinato.kernels.segment_attention.availability import as_operator
from ostinato.kernels.segment_attention.backends import BACKENDS
from ostinato.kernels.segment_attention.call import Call
from ostinato.kernels.segment_attention.tiles import Tiles

TILES = [
    Tiles(rows, keys, warps, stages)
    for (rows, warps), keys, stages in product(((64, 4), (128, 8)), (64, 128), (2, 3))
]
SHORT_TILES = [
    *(Tiles(64, 64, warps, 1, is_single=True) for warps in (4, 8)),
    Tiles(64, 64, 4, 1),
    Tiles(64, 64, 4, 2),
]
GRAPH_CALLS = 10


def microseconds(run: Callable[[], object]) -> float:
    """Median device time of one of ten calls in a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(GRAPH_CALLS):
            run()
    graph.replay()
    times = []
    for _ in range(15):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / GRAPH_CALLS)
    return sorted(times)[len(times) // 2]


def distance(ours: Tensor, exact: Tensor) -> float:
    return float((ours.float() - exact.float()).norm() / exact.float().norm())


def keeps_nan(call: Call, attend: Callable[[Call, Tensor | None], Tensor]) -> bool | None:
    """Whether NaN in the last segment leaves the others alone; ``None`` for one segment."""
    if call.num_segments == 1:
        return None
    start = int(call.offsets[-2])
    clean = attend(call, None)[:start].clone()
    poisoned = [x.clone() for x in call[:3]]
    for x in poisoned:
        x[start:] = torch.nan
    return torch.equal(attend(Call(*poisoned, *call[3:]), None)[:start], clean)


def ways(call: Call) -> dict[str, Callable[[Call, Tensor | None], Tensor]]:
    """What can serve the call on this machine, by name."""
    found = {backend.name: backend.attend for backend in usable(call)}
    if "fa3" in found and call.num_segments > 1:
        found["fa3 raw"] = fa3.attend_as_is
    return found


def compare(shape: AttentionShape) -> dict[str, Any]:
    """One row of the table."""
    call = shape.call(torch.bfloat16, "cuda")
    exact = as_operator(BACKENDS["varlen"]).reference(*(x.float() for x in call[:3]), *call[3:])
    row: dict[str, Any] = {"shape": shape.name, "head_dim": shape.head_dim}
    for name, attend in ways(call).items():
        try:
            error = distance(attend(call, None), exact)
            stays = keeps_nan(call, attend)
            us = microseconds(lambda attend=attend: attend(call, None))
            row[name] = {"us": round(us, 1), "error": float(f"{error:.2e}"), "nan_stays": stays}
        except Exception as error:
            row[name] = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
            torch.cuda.synchronize()
    return row


def sweep(shape: AttentionShape) -> dict[str, Any]:
    """Times of the own kernel by tile."""
    from ostinato.kernels.segment_attention.triton import segment_attention

    call = shape.call(torch.bfloat16, "cuda")
    row: dict[str, Any] = {"shape": shape.name, "head_dim": shape.head_dim}
    for tiles in SHORT_TILES if call.max_length <= 64 else TILES:
        single = " single" if tiles.is_single else ""
        name = f"{tiles.rows}x{tiles.keys} w{tiles.num_warps} s{tiles.num_stages}{single}"
        try:
            us = microseconds(lambda tiles=tiles: segment_attention(*call, tiles=tiles))
            row[name] = {"us": round(us, 1)}
        except Exception as error:
            row[name] = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return row


def compile_share(job: tuple[int, int]) -> None:
    """Every ``num_workers``-th kernel of the sweep, into the cache on disk."""
    from ostinato.kernels.segment_attention.triton import segment_attention

    share, num_workers = job
    jobs = [(s, t) for t in TILES for s in SHAPES if not s.name.startswith(("1x12544", "196 w"))]
    for shape, tiles in jobs[share::num_workers]:
        with suppress(Exception):  # the sweep says what failed
            segment_attention(*shape.call(torch.bfloat16, "cuda"), tiles=tiles)


def show(row: dict[str, Any]) -> None:
    """One line of text."""
    cells = []
    for name, cell in row.items():
        if not isinstance(cell, dict):
            continue
        if "failed" in cell:
            cells.append(f"{name} FAILED {cell['failed'][:60]}")
            continue
        error = f" ({cell['error']:.1e})" if "error" in cell else ""
        leak = " NAN LEAKS" if cell.get("nan_stays") is False else ""
        cells.append(f"{name} {cell['us']:.1f}{error}{leak}")
    print(f"{row['shape']:>18} x{row['head_dim']:<4} {' | '.join(cells)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiles", action="store_true", help="tile sizes of the own kernel")
    parser.add_argument("--only", help="only shapes whose name contains this")
    parser.add_argument("--workers", type=int, default=8, help="processes that compile")
    parser.add_argument("--out", help="result file")
    options = parser.parse_args()
    if options.tiles:
        with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
            pool.map(compile_share, [(i, options.workers) for i in range(options.workers)])
    rows = []
    for shape in SHAPES:
        if options.only is None or options.only in shape.name:
            rows.append((sweep if options.tiles else compare)(shape))
            show(rows[-1])
    write("attention-tiles" if options.tiles else "attention-backends", rows, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
