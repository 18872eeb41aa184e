"""Which recording serves a call, which one is made first, and when none may: decisions that a call
never waits for that finds its exact recording.
"""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.errors import RecordingRefused
from ostinato.recording.admission import is_worth_it
from ostinato.recording.collection import Collection, rung_of
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.ladder import Axis
from ostinato.recording.ledger import Ledger
from ostinato.recording.region import Region
from ostinato.recording.request import Request

Sizes = Mapping[Axis, int]
Chosen = tuple[Entry, Sizes | None]
"""A recording, and the call's sizes where it is a rung."""


class Choice:
    """The rules of one region; it serves nothing itself."""

    def __init__(
        self,
        region: Region,
        config: GraphConfig,
        ledger: Ledger,
        recordings: Collection,
        device_type: str,
    ) -> None:
        self._region = region
        self._config = config
        self._ledger = ledger
        self._recordings = recordings
        self._device_type = device_type

    def of(self, request: Request, forced: str | None) -> Chosen | str:
        """The recording that serves a call in the least time, or why there is none."""
        reason = self.why_direct(request, forced)
        if reason is not None:
            return reason
        rung, sizes = self._rung_for(request, forced)
        exact = self._exact_for(request, forced)
        if exact is not None and (rung is None or _is_faster(exact, rung)):
            return exact, None
        if rung is not None:
            return rung, sizes
        return self._recordings.why_not(request)

    def record(self, request: Request) -> Entry | None:
        """Record now: the exact key, the given rung, or with something that grows the whole
        ladder; raises ``RecordingRefused`` when nothing could be recorded.
        """
        reason = self.why_direct(request, None)
        if reason is not None:
            raise RecordingRefused(reason, rule="direct")
        if self._region.grows and self._config.mode != "exact":
            return self._record_rungs(request)
        recordings, key = self._recordings, request.key
        recordings.denied.pop(key, None)
        entry = recordings.exact.get(key)
        if entry is None or not entry.is_alive:
            recordings.record_exact(request, is_ordered=True)
        if key in recordings.denied:
            raise RecordingRefused(recordings.denied[key], rule="refused")
        return recordings.exact.get(key)

    def _record_rungs(self, request: Request) -> Entry | None:
        family = self._recordings.family(request.key)
        asked = None if request.rung is None else rung_of(self._region.axes, request.rung)
        rungs = self._recordings.worth_recording(family) if asked is None else [asked]
        for rung in rungs:
            if not family.has(rung):
                fitted = request.fitted(family.enlarge(request.tensors, rung))
                self._recordings.record_rung(family, rung, fitted)
        if not family.entries and family.denied:
            raise RecordingRefused(next(iter(family.denied.values())), rule="refused")
        return None if asked is None else family.entries.get(asked)

    def why_direct(self, request: Request, forced: str | None) -> str | None:
        """Why no recording may serve the call; None where one may."""
        if self._config.mode == "off":
            return "recording is off"
        if forced == "direct":
            return "forced"
        needs_grad = any(t.requires_grad for t in request.tensors)
        if request.key.modes[1] and (needs_grad or self._ledger.requires_grad()):
            return "a gradient may be needed"
        if self._region.writes and self._region.shares_written(request.tensors):
            return "a written input shares memory with another input"
        for i, t in enumerate(request.tensors):
            expected = "cpu" if i in self._region.uploads else self._device_type
            if t.device.type != expected:
                return f"input {i} is on {t.device.type}; expected {expected}"
        return self._region.why_sizes_differ(request.tensors) if self._region.grows else None

    def is_worth_it(self, entry: Entry, sizes: Sizes | None, request: Request) -> bool:
        """By measured times: the recording against the direct call."""
        if request.rung is not None:
            return True  # the caller has chosen
        if sizes is None:
            return is_worth_it(entry.recorded_us, entry.direct_us)
        return self._recordings.family(request.key).is_worth_it(entry, sizes)

    def _exact_for(self, request: Request, forced: str | None) -> Entry | None:
        """The exact recording; one that is missing is made now or later, as the path's
        rules say.
        """
        if forced == "rung" or request.rung is not None:
            return None
        if self._config.mode == "ladder" and forced != "exact":
            return None
        recordings, key = self._recordings, request.key
        entry = recordings.exact.get(key)
        if entry is not None and entry.is_alive:
            return entry
        if key in recordings.denied or recordings.keeps_being_refused(key):
            return None
        hits = recordings.count_hit(key)
        was_evicted = entry is not None
        is_on_path = not self._region.grows and not was_evicted and hits >= self._config.min_hits
        if forced == "exact" or is_on_path:
            return recordings.record_exact(request)
        if hits >= (self._config.promote_hits if self._region.grows else self._config.min_hits):
            is_served = bool(self._region.grows)
            make = recordings.record_exact
            recordings.later(("exact", key), request, make, is_served=is_served)
        return None

    def _rung_for(self, request: Request, forced: str | None) -> tuple[Entry | None, Sizes | None]:
        """The best recorded rung; the one that fits best is made, later, if it is missing."""
        if not self._region.grows or self._config.mode == "exact" or forced == "exact":
            return None, None
        sizes = self._region.sizes_of(request.tensors)
        recordings = self._recordings
        family = recordings.family(request.key)
        if request.rung is not None:
            wanted = rung_of(self._region.axes, request.rung)
        else:
            fitting = family.fit(sizes)
            if fitting is None:
                return None, None
            wanted = fitting
        if request.rung is None and not family.has(wanted):
            hits = recordings.count_hit(family.key_of(wanted))
            if forced == "rung":
                recordings.record_rung(family, wanted, request)
            elif hits >= self._config.min_hits:
                recordings.later(
                    ("rung", request.key, wanted),
                    request,
                    lambda copied: recordings.record_rung(family, wanted, copied),
                    is_served=False,
                )
        return family.best(sizes), sizes


def _is_faster(exact: Entry, rung: Entry) -> bool:
    if exact.recorded_us is None or rung.recorded_us is None:
        return True
    return exact.recorded_us <= rung.recorded_us
