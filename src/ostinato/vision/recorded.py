"""A tower whose calls are recorded: rungs, their times, and one call at a time.

The layout is padded on the host for the rung that serves it; everything that describes the batch
travels in one upload. What is not recorded is called directly, on the exact layout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil

import torch

from ostinato.errors import RecordingRefused
from ostinato.recording.admission import DirectTimes
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.growth import Length
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.region import GateCall, Region
from ostinato.recording.runner import Runner
from ostinato.recording.stats import Route, Stats
from ostinato.vision.bounded import BoundedCache
from ostinato.vision.contract import EncoderOutput, Layout, LayoutTensors, Rung
from ostinato.vision.examples import example_layouts
from ostinato.vision.layout import Layouts, num_bytes, to_tensors
from ostinato.vision.packing import Load, Packer
from ostinato.vision.packing import Rung as TimedRung
from ostinato.vision.padding import fits
from ostinato.vision.tower import Tower

UNTIMED_CALL = 1000.0
"""Without a clock (the tape) a call costs this many rows, so that packing still prefers
few calls.
"""

HOST_LAYOUT_BYTES = 64 << 20


class RecordedTower:
    """Serves layouts by rung or directly. ``top`` and ``ratio`` shape the ladder."""

    def __init__(
        self, tower: Tower, runner: Runner, config: GraphConfig, rungs: Sequence[Rung]
    ) -> None:
        self.tower = tower
        self.layouts = Layouts(tower.config)
        self.device = runner.device
        self.dtype = next(tower.parameters()).dtype
        self._runner = runner
        self._config = config
        self._rungs = list(rungs)
        self._axis = Axis("patches", top=max(r.num_patches for r in rungs))
        self._entries: dict[Rung, Entry] = {}
        self._direct_times = DirectTimes()
        self._host: BoundedCache[tuple[object, Rung], LayoutTensors] = BoundedCache(
            HOST_LAYOUT_BYTES
        )
        self._served = runner.serve(self._region(), config)
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()
        self.packer = self._new_packer()

    def _region(self) -> Region:
        config = self.tower.config
        num_arrays = len(self._present(self._smallest()))
        num_results = 1 + len(config.deepstack_blocks)
        tokens = Length(self._axis, Fraction(1, config.merge_unit), Fraction(0))
        return Region(
            name=f"{config.model_type} tower",
            fn=self.tower,
            grows={0: {0: Grows(self._axis)}},
            uploads=frozenset(range(1, 1 + num_arrays)),
            result_growth=[{0: tokens}] * num_results,
        )

    def _smallest(self) -> Layout:
        side = self.tower.config.merge_size
        return self.layouts.exact([(1, side, side)])

    @staticmethod
    def _present(layout: Layout) -> list[object]:
        return [array for array in layout.arrays if array is not None]

    # -- one call -------------------------------------------------------------------------------

    def run(self, patches: torch.Tensor, layout: Layout, rung: Rung | None) -> EncoderOutput:
        """Embeddings of one exact layout. ``patches``: (T, patch_width) on the device, its dtype.

        ``rung`` is the packer's choice, ``None`` for a direct call.
        """
        size = layout.size
        if rung is None or not fits(layout, rung):
            args, kwargs = (patches, self._on_host(layout)), _bounds(size)
            result: EncoderOutput = self._served.call_directly(
                self._why_direct(rung),
                args,
                kwargs,
            )
            return result
        padded = self.layouts.padded(layout, rung)
        result = self._served.call(
            (patches, self._on_host(padded)),
            _bounds(rung),
            rung={self._axis: rung.num_patches},
            direct=self._direct(patches, layout),
        )
        return result

    def _why_direct(self, rung: Rung | None) -> str:
        if self._config.mode == "off":
            return "recordings are off"
        return "nothing recorded is faster" if rung is None else "does not fit the rung"

    def route(self) -> Route | None:
        """How this thread's last call was served."""
        return self._served.counters.last()

    def _direct(self, patches: torch.Tensor, layout: Layout) -> Callable[[], EncoderOutput]:
        """A direct call without padding: its layout is uploaded to fresh memory."""

        def call() -> EncoderOutput:
            tensors = self._on_host(layout)
            moved = LayoutTensors(
                **{
                    name: t.to(self.device, non_blocking=True)
                    for name, t in tensors._asdict().items()
                    if t is not None
                }
            )
            result: EncoderOutput = self.tower(patches, moved, **_bounds(layout.size))
            return result

        return call

    def _on_host(self, layout: Layout) -> LayoutTensors:
        """The layout's arrays as host tensors, made once for a grid and a rung."""
        key = (layout.grids, layout.size)
        tensors = self._host.get(key)
        if tensors is None:
            tensors = to_tensors(layout.arrays)
            self._host.put(key, tensors, num_bytes(layout.arrays))
        return tensors

    # -- recording ------------------------------------------------------------------------------

    def warm_up(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Record every rung, largest first; ``progress(done, total)`` after each.

        A rung that is refused is left out; why is in the log and in ``stats().refusals``.
        """
        for done, rung in enumerate(self._rungs, 1):
            self.record(rung)
            progress(done, len(self._rungs))

    def record(self, rung: Rung) -> None:
        """Record one rung now and let packing use it."""
        examples = example_layouts(self.layouts, rung)
        if not examples or self._config.mode == "off":
            return
        calls = [self._example_call(layout, seed) for seed, layout in enumerate(examples)]
        first = calls[0]
        try:
            entry = self._served.record(
                first.args,
                first.kwargs,
                rung={self._axis: rung.num_patches},
                direct=first.direct,
                gate_calls=calls,
            )
        except RecordingRefused:
            return
        if entry is None:
            return
        with self._lock:
            self._entries[rung] = entry
            if entry.direct_us is not None:
                self._direct_times.add(first.args[0].shape[0], entry.direct_us)
            self.packer = self._new_packer()

    def _example_call(self, padded: Layout, seed: int) -> GateCall:
        """A call on a padded example layout with seeded random patches of its real rows."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        exact = self.layouts.exact(padded.grids)
        patches = torch.randn(
            exact.num_patches,
            self.tower.config.patch_width,
            generator=generator,
            device=self.device,
            dtype=self.dtype,
        )
        args = (patches, self._on_host(padded))
        return GateCall(args, _bounds(padded.size), self._direct(patches, exact))

    def note(self, layout: Layout, promote_hits: int) -> None:
        """Count a size; one that comes often gets a recording without padding, off the path."""
        size = layout.size.num_patches
        if self._config.mode in ("off", "ladder") or size > self._axis.top:
            return
        with self._lock:
            if len(self._counts) > 4096:
                self._counts.clear()
            self._counts[size] = self._counts.get(size, 0) + 1
            if self._counts[size] != promote_hits:
                return
        rung = self.exact_rung(layout)
        if rung not in self._entries:
            self._runner.lane.run_when_idle(lambda: self.record(rung))

    def exact_rung(self, layout: Layout) -> Rung:
        """A rung for exactly this many patches, with room for as many segments as rungs have."""
        from ostinato.vision.rungs import SEGMENT_CAPACITIES, rung_of

        needed = layout.size.num_segments
        segments = next((c for c in SEGMENT_CAPACITIES if c >= needed), needed)
        units = layout.size.num_patches // self.tower.config.merge_unit
        return rung_of(self.tower.config, layout.size.num_patches, min(segments, units))

    # -- times ----------------------------------------------------------------------------------

    def load_of(self, layout: Layout) -> Load:
        """What one item takes of a rung; windows as those beyond the least its patches make."""
        size, window = layout.size, self.tower.config.max_window_patches
        extra = ceil(size.num_windows - size.num_patches / window) if window else 0
        return Load(size.num_patches, size.num_segments, extra)

    def _new_packer(self) -> Packer:
        timed = [
            TimedRung(self._capacity(rung), self._time_of(rung, entry))
            for rung, entry in self._entries.items()
            if entry.is_alive
        ]
        self._by_capacity = {self._capacity(rung): rung for rung in self._entries}
        return Packer(timed, self._direct_us)

    def rung_for(self, timed: TimedRung | None) -> Rung | None:
        """The tower's rung behind the packer's."""
        return None if timed is None else self._by_capacity.get(timed.capacity)

    def _capacity(self, rung: Rung) -> Load:
        """What items may take: one segment, and the tail's own windows, are left to the padding."""
        window = self.tower.config.max_window_patches
        extra = rung.num_windows - ceil(rung.num_patches / window) - 1 if window else 0
        return Load(rung.num_patches, max(rung.num_segments - 1, 1), extra, 1 << 30)

    @staticmethod
    def _time_of(rung: Rung, entry: Entry) -> float:
        return (
            entry.recorded_us if entry.recorded_us is not None else UNTIMED_CALL + rung.num_patches
        )

    def _direct_us(self, load: Load) -> float:
        measured = self._direct_times.estimate(load.num_tokens)
        if measured is not None:
            return measured
        return 10 * (UNTIMED_CALL + load.num_tokens) if self._entries else UNTIMED_CALL

    def stats(self) -> Stats:
        return self._runner.stats(self._served)

    def close(self) -> None:
        """Free every recording of the tower."""
        with self._lock:
            self._entries.clear()
            self.packer = self._new_packer()
        self._served.close()


def _bounds(rung: Rung) -> dict[str, int]:
    return {"max_segment": rung.max_segment, "max_window": rung.max_window}
