"""The prefill backend for a machine that nobody has named one for: the fastest, by measurement.

One rung is recorded by each, and its replay timed; times are kept on disk where others are. Not
among them is ``tc_piecewise``: as it is traced it records the kernels of ``breakable``, cut at the
same places, and a trace or a compiler at each first start would cost more than the answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from ostinato.kernels.gate import Numerics
from ostinato.lm.backends import FULL, Compiler, Name, PrefillBackend, make_backend
from ostinato.lm.build import (
    EngineSizes,
    invariant_sizes,
    make_cache,
    make_prefill,
    make_slots,
)
from ostinato.lm.models.qwen import Qwen
from ostinato.recording.admission import best_of
from ostinato.recording.config import GraphConfig
from ostinato.recording.graphed import shared_runner
from ostinato.recording.store import short_hash

CANDIDATES: tuple[Name, ...] = ("full", "breakable")
TIMED_TOKENS = 256
NUM_TIMED = 10
MARGIN = 0.97
"""What is timed must be this much faster than ``full`` to take its place: noise is not a reason."""
SECTION = "prefill backends"
log = logging.getLogger(__name__)


def choose_backend(
    name: Name | None,
    model: Qwen,
    sizes: EngineSizes,
    *,
    graph: GraphConfig,
    num_levels: int,
    numerics: Numerics = "fast",
    compiler: Compiler = "eager",
) -> PrefillBackend:
    """The named one; for ``None`` the fastest on a GPU, and elsewhere ``full``, which is also what
    ``invariant`` numerics get: nothing of an answer may depend on a clock.
    """
    if numerics == "invariant":
        sizes = invariant_sizes(sizes)
    if name is not None:
        return make_backend(
            name, model, num_sequences=sizes.max_chunks, num_levels=num_levels, compiler=compiler
        )
    if model.table.device.type != "cuda" or graph.mode == "off" or numerics == "invariant":
        return FULL
    return fastest_backend(model, sizes, graph=graph, num_levels=num_levels, numerics=numerics)


def fastest_backend(
    model: Qwen,
    sizes: EngineSizes,
    *,
    graph: GraphConfig,
    num_levels: int,
    numerics: Numerics = "fast",
    timer: Callable[[], float] = time.perf_counter,
) -> PrefillBackend:
    """The fastest of ``CANDIDATES`` that could be recorded, by the times of an earlier start or by
    times taken now.
    """
    top = sizes.prefill_ladder.top
    rung = sizes.prefill_ladder.fit(min(TIMED_TOKENS, top)) or top
    store = shared_runner(model.table.device, graph).store_for(graph)
    item = short_hash(f"{model.config} {model.table.dtype} {sizes.max_chunks} {rung}")
    times: dict[str, float] = {} if store is None else store.get(SECTION).get(item, {})
    made = {
        name: make_backend(name, model, num_sequences=sizes.max_chunks, num_levels=num_levels)
        for name in CANDIDATES
    }
    if not times:
        for name, backend in made.items():
            taken = _time(backend, rung, model, sizes, graph, num_levels, numerics, timer)
            if taken is not None:
                times[name] = round(1e6 * taken, 1)
        if store is not None and times:
            store.put(SECTION, item, times)
    best = min(times, key=lambda name: times[name], default=FULL.name)
    if times.get(best, 0.0) > MARGIN * times.get(FULL.name, float("inf")):
        best = FULL.name
    log.info("prefill is recorded by %s: microseconds of %d tokens are %s", best, rung, times)
    return next((backend for name, backend in made.items() if name == best), FULL)


def _time(
    backend: PrefillBackend,
    rung: int,
    model: Qwen,
    sizes: EngineSizes,
    graph: GraphConfig,
    num_levels: int,
    numerics: Numerics,
    timer: Callable[[], float],
) -> float | None:
    """Seconds of a replay; ``None`` where it was refused."""
    lane = shared_runner(model.table.device, graph).lane
    cache = make_cache(model.config, 0, sizes.page_size, model.table)
    slots = make_slots(model, sizes)
    prefill = make_prefill(backend, model, sizes, cache, slots, graph, num_levels, numerics)
    try:
        with torch.inference_mode():
            inputs = prefill.scratch(rung)
            if not prefill.recorded.record(inputs, rung):
                return None

            def replay() -> None:
                prefill.recorded(inputs, rung)
                lane.backend.synchronize()

            replay()
            return best_of(replay, timer, NUM_TIMED)
    finally:
        prefill.recorded.close()
