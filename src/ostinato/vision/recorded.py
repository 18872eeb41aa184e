"""A tower whose calls are recorded: rungs, their times, and one call at a time.

The layout is padded on the host for the rung that serves it; everything that describes the batch
travels in one upload. What is not recorded is called directly, on the exact layout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial

import torch
import torch.nn.functional as F

from ostinato.errors import RecordingRefused
from ostinato.kernels.gate import Numerics, current_numerics, using_numerics
from ostinato.layers.copies import copies_of
from ostinato.layers.fp8 import Fp8Linear
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.growth import Length
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.region import GateCall, Region
from ostinato.recording.runner import Runner
from ostinato.recording.stats import Route, Stats
from ostinato.vision.bounded import BoundedCache
from ostinato.vision.contract import EncoderOutput, Grid, Layout, Rung
from ostinato.vision.demand import Demand
from ostinato.vision.estimates import Estimates
from ostinato.vision.examples import example_layouts
from ostinato.vision.host_layout import HostLayout
from ostinato.vision.layout import Layouts
from ostinato.vision.packing import Load, OneByOne, Packer
from ostinato.vision.padding import fits
from ostinato.vision.prepared import SERVED_BY_RUNG, Prepared
from ostinato.vision.rungs import SEGMENT_CAPACITIES, exact_rung, has_same_kernels, rungs_between
from ostinato.vision.tower import Tower
from ostinato.vision.work import Work

FP8_TOLERANCE = 0.15
"""Largest relative distance of a padded from an unpadded call in E4M3: sums in another order move
values over rounding steps of 6 %. Random weights of 32 layers have been seen 0.08 apart.
"""

_REASONS = ("padded", "recorded")

HOST_LAYOUT_BYTES = 64 << 20


class RecordedTower:
    """Serves layouts by rung or directly, from any thread. ``rungs``: the ladder, largest first.

    ``numerics`` says which operators may run fused, in recordings and direct calls alike. With
    ``"invariant"`` each item has a call to itself, padded to the smallest rung that holds it,
    whatever is recorded.
    """

    def __init__(
        self,
        tower: Tower,
        runner: Runner,
        config: GraphConfig,
        rungs: Sequence[Rung],
        *,
        numerics: Numerics = "fast",
    ) -> None:
        self._numerics: Numerics = numerics
        self._is_invariant = numerics == "invariant"
        self.tower = tower
        self._copies = copies_of(tower)
        self.layouts = Layouts(tower.config)
        self.device = runner.device
        self.dtype = next(tower.parameters()).dtype
        self._runner = runner
        if config.tolerance is None and any(isinstance(m, Fp8Linear) for m in tower.modules()):
            config = replace(config, tolerance=FP8_TOLERANCE)
        self._config = config
        self._rungs = list(rungs)
        self._between = rungs_between(rungs)
        self._axis = Axis("patches", top=max(r.num_patches for r in rungs))
        self._entries: dict[Rung, Entry] = {}
        self.estimates = Estimates(
            Work.of(tower, tower.config),
            window=tower.config.max_window_patches,
            top=self._axis.top,
        )
        self._timed_us: dict[tuple[Grid, ...], float] = {}
        self._host: BoundedCache[tuple[object, Rung], HostLayout] = BoundedCache(HOST_LAYOUT_BYTES)
        # every recording is a rung here, an exact one too: packing has chosen before a call
        one_by_one = config if config.mode == "off" else replace(config, mode="ladder")
        self._served = runner.serve(self._region(), one_by_one)
        # an exact recording would take a size over once it is there: a matter of time
        is_ladder = self._is_invariant and config.mode == "auto"
        grown = replace(config, mode="ladder") if is_ladder else config
        self._demand = Demand(tower.config, grown, rungs)
        self._lock = threading.Lock()
        self._is_closed = False
        self._plan = self._new_plan()

    def _region(self) -> Region:
        config = self.tower.config
        side = config.merge_size
        smallest = self.layouts.exact([(1, side, side)])
        num_arrays = sum(array is not None for array in smallest.arrays)
        tokens = Length(self._axis, Fraction(1, config.merge_unit), Fraction(0))
        return Region(
            name=f"{config.model_type} tower",
            fn=self.tower,
            grows={0: {0: Grows(self._axis)}},
            uploads=frozenset(range(1, 1 + num_arrays)),
            keeps_uploads=True,
            shares_buffers=True,
            is_private=True,
            result_growth=[{0: tokens}] * (1 + len(config.deepstack_blocks)),
        )

    # -- one call -------------------------------------------------------------------------------

    def prepare(self, layout: Layout, rung: Rung | None) -> Prepared:
        """Everything about a call of one exact layout that its patches do not change.

        ``rung`` is the packer's choice, ``None`` for a direct call.
        """
        if rung is None or not fits(layout, rung):
            return Prepared(layout, rung, why_direct=self._why_direct(layout, rung))
        padded = self._on_host(self.layouts.padded(layout, rung))
        is_exact = has_same_kernels(layout.size, rung)
        sizes = (("patches", rung.num_patches), ("segments", rung.num_segments))
        return Prepared(
            layout,
            rung,
            padded=padded.tensors,
            num_bytes=padded.num_bytes,
            used={self._axis: layout.size.num_patches},
            route=Route("exact" if is_exact else "rung", _REASONS[is_exact], sizes),
        )

    def run(self, patches: torch.Tensor, call: Prepared) -> tuple[EncoderOutput, Route]:
        """Embeddings of one prepared call, and how it was served.

        ``patches``: (T, patch_width) on the device, its dtype.
        """
        if current_numerics() == self._numerics:
            return self._run(patches, call)
        with using_numerics(self._numerics):
            return self._run(patches, call)

    def _run(self, patches: torch.Tensor, call: Prepared) -> tuple[EncoderOutput, Route]:
        result: EncoderOutput
        direct = self._stand_in(patches, call)
        if call.padded is None or call.rung is None:
            result = self._served.call_directly(call.why_direct, direct)
            return result, Route("direct", call.why_direct)
        entry = self.entry_of(call.rung)
        if entry is None or self._config.verify == "paranoid":
            self._copies.follow()
            result = self._served.call(
                (patches, call.padded),
                _bounds(call.rung),
                rung={self._axis: call.rung.num_patches},
                direct=direct,
            )
        else:
            inputs = [patches, *call.host_inputs]
            result = self._served.call_entry(
                entry, inputs, call.used, SERVED_BY_RUNG, direct, self._copies.are_stale
            )
        route = self._served.counters.last()
        if route is None:  # inside another recording, where nothing is counted
            return result, Route("direct", "inside another recording")
        return result, call.route if route.route == "rung" else route

    def _why_direct(self, layout: Layout, rung: Rung | None) -> str:
        if self._config.mode == "off":
            return "recording is off"
        if rung is not None:
            return "does not fit the rung"
        if layout.size.num_patches > self._axis.top:
            return "larger than the largest rung"
        return "nothing recorded is faster" if self._plan[1] else "not recorded yet"

    def _stand_in(self, patches: torch.Tensor, call: Prepared) -> Callable[[], EncoderOutput]:
        """The direct call in a recording's place: unpadded, or invariant and so its equal."""
        rung, size = call.rung, call.layout.size
        if not self._is_invariant or call.padded is None or rung is None:
            return self._direct(patches, call.layout)
        tail = rung.num_patches - size.num_patches
        padded = self._direct(
            F.pad(patches, (0, 0, 0, tail)), self.layouts.padded(call.layout, rung)
        )
        tokens = size.num_patches // self.tower.config.merge_unit

        def stand_in() -> EncoderOutput:
            main, levels = padded()
            return EncoderOutput(main[:tokens], tuple(level[:tokens] for level in levels))

        return stand_in

    def _direct(self, patches: torch.Tensor, layout: Layout) -> Callable[[], EncoderOutput]:
        """A direct call without padding: its layout is uploaded to fresh memory."""

        def call() -> EncoderOutput:
            self._copies.follow()
            tensors = self._on_host(layout).upload(self.device)
            result: EncoderOutput = self.tower(patches, tensors, **_bounds(layout.size))
            return result

        return call

    def _on_host(self, layout: Layout) -> HostLayout:
        """The layout's arrays as host tensors, made once for its grids and its size."""
        key = (layout.grids, layout.size)
        held = self._host.get(key)
        if held is None:
            held = HostLayout(layout.arrays, pin=self.device.type == "cuda")
            self._host.put(key, held, held.num_bytes)
        return held

    # -- recording ------------------------------------------------------------------------------

    def warm_up(
        self,
        progress: Callable[[int, int], None] = lambda done, total: None,
        *,
        is_brief: bool = False,
    ) -> None:
        """Record every rung, largest first, those between others last; ``progress(done, total)``
        after each. ``is_brief``: only those for few segments of the geometric ladder; the others
        are recorded once they are wanted.

        A rung that is refused is left out; why is in the log and in ``stats().refusals``. Exact
        sizes (``mode="exact"``) are not known before they come.
        """
        if self._config.mode in ("off", "exact"):
            return
        rungs = sorted(self._rungs, key=self._between.__contains__)
        if is_brief:
            few = min(SEGMENT_CAPACITIES)
            rungs = [r for r in rungs if r.num_segments <= few and r not in self._between]
        for done, rung in enumerate(rungs, 1):
            self.record(rung)
            progress(done, len(rungs))
        self._call_largest()

    def _call_largest(self) -> None:
        """One direct call of the ladder's largest size where the caller's stream is, so that later
        ones find its memory at the allocator's instead of waiting for the driver's; where there is
        none, ordinary sizes are served all the same.
        """
        examples = example_layouts(self.layouts, self._rungs[0])
        if self.device.type == "cuda" and examples and not self._is_closed:
            call = self._example_call(examples[0], seed=0)
            assert call.direct is not None
            with using_numerics(self._numerics), suppress(torch.OutOfMemoryError):
                call.direct()

    def entry_of(self, rung: Rung) -> Entry | None:
        """The recording of a rung, if there is one in service."""
        entry = self._entries.get(rung)
        return entry if entry is not None and entry.is_alive else None

    @torch.inference_mode()
    def record(self, rung: Rung, layout: Layout | None = None) -> None:
        """Record one rung now and let packing use it; ``layout``: one more that it must serve.

        In inference mode whatever the thread's: it is part of what makes two calls the same.
        """
        examples = list(example_layouts(self.layouts, rung))
        if layout is not None and layout.grids not in [e.grids for e in examples]:
            examples.append(self.layouts.padded(layout, rung))
        if not examples or self._config.mode == "off" or self._is_closed:
            return
        self._demand.count_attempt(rung)
        calls = [self._example_call(layout, seed) for seed, layout in enumerate(examples)]
        first, grids = calls[0], examples[0].grids
        num_patches = first.args[0].shape[0]
        expected_us = self._expected_us(rung, examples[0])
        try:
            with using_numerics(self._numerics):
                entry = self._served.record(
                    first.args,
                    first.kwargs,
                    rung={self._axis: rung.num_patches},
                    direct=first.direct,
                    gate_calls=calls,
                    direct_us=self._timed_us.get(grids, expected_us),
                )
        except RecordingRefused:
            return
        if entry is None or not entry.is_alive:
            return
        with self._lock:
            self._entries[rung] = entry
            if entry.recorded_us is not None:
                self.estimates.add_recorded(rung, entry.recorded_us)
            if entry.direct_us is not None and expected_us is None:
                self._timed_us[grids] = entry.direct_us
                if rung.max_segment >= rung.num_patches:
                    self.estimates.add_direct(num_patches, entry.direct_us)
            self._plan = self._new_plan()

    def _expected_us(self, rung: Rung, example: Layout) -> float | None:
        """Of a direct call, where it need not be measured: near sizes have been."""
        if rung not in self._between or not self._entries:
            return None
        return self.estimates.direct_us(self.estimates.load_of(example.size), is_any_recorded=True)

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
        args = (patches, self._on_host(padded).tensors)
        return GateCall(args, _bounds(padded.size), self._direct(patches, exact))

    def note(self, layout: Layout) -> None:
        """Count a served layout; what came often enough is recorded once the lane is idle: a rung
        of the ladder in a short pause, an exact size, which rungs serve meanwhile, in a long one.
        """
        if self._is_closed:
            return
        for rung in self._demand.note(layout, self.entry_of):
            job = partial(self._record_later, rung, layout)
            self._runner.lane.run_when_idle(job, is_long=rung not in self._rungs)

    def _record_later(self, rung: Rung, layout: Layout) -> None:
        try:
            self.record(rung, layout)
        finally:
            self._demand.forget(rung)

    def exact_rung(self, layout: Layout) -> Rung:
        """A rung for exactly this many patches, served by the kernels of the direct call."""
        return exact_rung(self.tower.config, layout.size)

    # -- times ----------------------------------------------------------------------------------

    @property
    def packer(self) -> Packer:
        """Chooses among what is recorded now; recordings that were evicted are left out."""
        packer, entries = self._plan
        if all(entry.is_alive for entry in entries):
            return packer
        with self._lock:
            self._plan = self._new_plan()
            return self._plan[0]

    def _new_plan(self) -> tuple[Packer, tuple[Entry, ...]]:
        self._entries = {rung: e for rung, e in self._entries.items() if e.is_alive}
        timed = self.estimates.timed
        if self._is_invariant:
            return OneByOne([timed(rung, None) for rung in self._rungs]), (*self._entries.values(),)
        rungs = [timed(rung, self.estimates.recorded_us(rung)) for rung in self._entries]
        return Packer(rungs, self._direct_us), tuple(self._entries.values())

    def _direct_us(self, load: Load, busy_us: float) -> float:
        return self.estimates.direct_us(load, busy_us, is_any_recorded=bool(self._entries))

    def stats(self) -> Stats:
        return self._runner.stats(self._served)

    def close(self) -> None:
        """Free every recording of the tower; calls are direct ones from now on."""
        self._is_closed = True
        self._served.close()
        with self._lock:
            self._entries = {}
            self._plan = self._new_plan()


def _bounds(rung: Rung) -> dict[str, int]:
    return {"max_segment": rung.max_segment, "max_window": rung.max_window}
