"""One lane of one device with its cache and budget; serves any number of regions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from ostinato.errors import ConfigError
from ostinato.recording.backend import Backend
from ostinato.recording.cache import Budget, Cache
from ostinato.recording.config import GraphConfig, resolve_budget
from ostinato.recording.entry import Entry
from ostinato.recording.lane import Lane
from ostinato.recording.order import Order
from ostinato.recording.recorder import Recorder
from ostinato.recording.region import Region
from ostinato.recording.served import Served
from ostinato.recording.stats import Counters, Stats
from ostinato.recording.store import Store

T = TypeVar("T")


class Runner:
    """Records and replays regions on one lane.

    ``budget`` may be shared with others (a KV cache, another lane of the device). Regions of one
    runner share the lane's pools; regions that must overlap on the device belong to two runners.
    """

    def __init__(self, backend: Backend, budget: Budget) -> None:
        self.device = backend.device
        self.budget = budget
        self.lane = Lane(backend)
        self.cache = Cache(backend, budget)
        self._recorder = Recorder(backend, self.cache)
        self._stores: dict[Path, Store] = {}
        self._is_closed = False

    @classmethod
    def on(cls, device: torch.device, config: GraphConfig | None = None) -> Runner:
        """A runner with the device's own backend and a budget of its own."""
        budget = resolve_budget(config or GraphConfig(), device).budget_bytes
        assert budget is not None
        return cls(backend_of(device), Budget(budget))

    def serve(
        self,
        region: Region,
        config: GraphConfig | None = None,
        counters: Counters | None = None,
    ) -> Served:
        """Put a region in service; its calls are counted in ``counters``, or in its own."""
        return Served(self, region, config or GraphConfig(), counters or Counters())

    def store_for(self, config: GraphConfig) -> Store | None:
        """The file of this machine in the configured folder; None without a folder."""
        if config.cache_dir is None:
            return None
        folder = Path(config.cache_dir)
        if folder not in self._stores:
            self._stores[folder] = Store(folder, self.device)
        return self._stores[folder]

    def make(
        self,
        order: Order,
        counters: Counters,
        find: Callable[[], Entry | None],
        keep: Callable[[Entry], None],
    ) -> Entry:
        """Record on the lane's thread and ``keep``, unless ``find`` shows that it was just made."""

        def job() -> Entry:
            made = find()
            if made is not None and made.is_alive:
                return made
            start = time.perf_counter()
            try:
                entry = self._recorder.record(order)
            finally:
                counters.add("recording_seconds", time.perf_counter() - start)
            counters.add("num_recorded", 1)
            keep(entry)
            return entry

        entry: Entry = self.lane.run(job)
        return entry

    def run_in_pool(self, call: Callable[[], T]) -> T:
        """Call directly, in the memory that recordings use for temporaries: a direct call beside
        recordings needs no memory of its own.

        For jobs on the lane's thread (``lane.run_when_idle``): no replay may be under way. What the
        call returns must not lie on the device, where the next replay would overwrite it.
        """
        generation = next(iter(reversed(list(self.cache))), None)
        return call() if generation is None else generation.pool.warm_up(call)

    def stats(self, served: Served, *others: Served) -> Stats:
        """A snapshot of one region, or of several that count together, with the device's totals."""
        counters = served.counters
        routes = counters.routes()
        calls = dict.fromkeys(("exact", "rung", "direct"), 0)
        reasons: dict[str, int] = {}
        for route, count in routes.items():
            calls[route.route] += count
            reason = f"{route.route}: {route.reason}"
            reasons[reason] = reasons.get(reason, 0) + count
        every = (served, *others)
        entries = [entry for some in every for entry in some.recordings.entries()]
        return Stats(
            calls=calls,
            reasons=reasons,
            num_recordings=len(entries),
            num_recorded=int(counters.number("num_recorded")),
            num_refused=int(counters.number("num_refused")),
            num_evicted=self.cache.num_evicted,
            recording_seconds=counters.number("recording_seconds"),
            rows_served=int(counters.number("rows_served")),
            rows_padded=int(counters.number("rows_padded")),
            bytes_held=sum(e.own_bytes for e in entries),
            device_bytes_held=self.budget.held(),
            budget_bytes=self.budget.limit_bytes,
            refusals={k: v for some in every for k, v in some.recordings.refusals().items()},
        )

    def close(self) -> None:
        """Free every recording and end the lane's thread. Calling it twice is allowed."""
        if not self._is_closed:
            self._is_closed = True
            with self.lane.lock:
                self.cache.close()
            self.lane.close()
            self.lane.backend.close()


def backend_of(device: torch.device) -> Backend:
    """The backend that records on ``device``; raises ``ConfigError`` for one without."""
    if device.type == "cuda":
        from ostinato.recording.cuda import CudaBackend

        return CudaBackend(device)
    if device.type == "cpu":
        from ostinato.recording.tape import TapeLane

        return TapeLane()
    raise ConfigError(f"device {device} cannot record; expected cuda or cpu")
