"""One region in service: from a call to its route.

The way of a call: arguments -> key -> ledger -> recording -> result. What is slow (recording,
choosing among rungs, in ``choice.py``) happens behind ``_choose``, which a call that finds its
exact recording never enters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from torch import is_grad_enabled, is_inference_mode_enabled

from ostinato.errors import RecordingRefused, RouteUnavailable, UnkeyableArgument
from ostinato.recording import gate, tree
from ostinato.recording.choice import Choice
from ostinato.recording.collection import Collection
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.foreign import is_foreign
from ostinato.recording.key import Key, call_of, numeric_modes, repeats_of
from ostinato.recording.ladder import Axis
from ostinato.recording.lane import log
from ostinato.recording.ledger import Ledger
from ostinato.recording.quick import QuickCheck
from ostinato.recording.region import GateCall, Region
from ostinato.recording.request import Request
from ostinato.recording.routes import forced as forced_route
from ostinato.recording.spec import TensorSpec, describe
from ostinato.recording.stats import EXACT, Counters, Route
from ostinato.recording.watched import Generation
from ostinato.state import current as current_activity
from ostinato.state import verdicts

if TYPE_CHECKING:
    from ostinato.recording.runner import Runner

Sizes = Mapping[Axis, int]


class Served:
    """A region with its recordings, ledger and counters on one runner."""

    def __init__(
        self, runner: Runner, region: Region, config: GraphConfig, counters: Counters
    ) -> None:
        self.runner = runner
        self.region = region
        self.config = config
        self.counters = counters
        self.ledger = Ledger(region.fn, is_private=region.is_private)
        self.recordings = Collection(runner, region, config, self.ledger, self.counters)
        self._choice = Choice(region, config, self.ledger, self.recordings, runner.device.type)
        self._lane = runner.lane
        self._cache = runner.cache
        self._join = runner.lane.backend.join
        self._device_type = runner.device.type
        self._in_place = tuple(sorted(region.in_place))
        self._asks_identity = region.asks_identity
        self._written = tuple(sorted(region.writes))
        self._is_without_effects = not (
            region.writes or region.state or region.in_place or region.is_breakable
        )
        self._epoch = self.ledger.generation.epoch
        self._exact = self.recordings.exact
        self._quick: QuickCheck | None = None
        self._last: Entry | None = None
        self._is_paranoid = config.verify == "paranoid"
        self._is_plain = config.mode in ("auto", "exact") and not self._is_paranoid

    # -- the call -------------------------------------------------------------------------------

    def call(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        borrow: bool = False,
        rung: Sizes | None = None,
        direct: Callable[[], Any] | None = None,
    ) -> Any:
        """Serve one call by the fastest admissible route.

        A caller that pads its inputs itself gives the ``rung`` it padded for and ``direct``, the
        same call without padding.
        """
        if current_activity() is not None or is_foreign(self._device_type):
            return direct() if direct is not None else self.region.fn(*args, **kwargs)
        generation = self.ledger.check()
        quick = self._quick
        if (
            quick is not None
            and quick.generation == (generation, verdicts.number)
            and not kwargs
            and quick.admits(args)
            and forced_route() is None
            and self._lane.acquire()
        ):
            try:
                if quick.entry.is_alive:
                    return self._replay(quick.entry, args, None, EXACT, borrow=borrow)
            finally:
                self._lane.lock.release()
        structure, tensors = call_of(args, kwargs)
        if generation.epoch != self._epoch:
            self._forget_stale(generation.epoch)
        try:
            specs = tuple([describe(t) for t in tensors])
        except RuntimeError:
            raise UnkeyableArgument(_without_memory(tensors)) from None
        key = Key(
            structure,
            specs,  # type: ignore[arg-type]
            numeric_modes(self._device_type),
            (generation, verdicts.number),
            self._addresses(tensors) if self._in_place else (),
            self._repeats(tensors) if rung is None else (),
        )
        entry = self._exact.get(key)
        if (
            entry is not None
            and entry.is_preferred
            and self._is_plain
            and forced_route() is None
            and not (key.modes[1] and self.ledger.requires_grad())
            and not (self._written and self.region.shares_written(tensors))
            and entry.is_apart(tensors)
        ):
            lane = self._lane
            if lane.acquire():
                try:
                    if entry.is_alive:
                        self._arm(entry, key, args, kwargs)
                        return self._replay(entry, tensors, None, EXACT, borrow=borrow)
                finally:
                    lane.lock.release()
        key = key._replace(specs=tuple([TensorSpec(*spec) for spec in key.specs]))
        return self._choose(Request(key, tensors, args, kwargs, borrow, rung, direct))

    def call_entry(
        self,
        entry: Entry,
        tensors: Sequence[torch.Tensor],
        sizes: Sizes,
        route: Route,
        direct: Callable[[], Any],
        is_stale: Callable[[], bool],
    ) -> Any:
        """Serve one call by a rung that its caller has found and padded for; no key is made.

        ``tensors`` are the inputs in the order and of the description that the rung was recorded
        with (but for the growing lengths, which ``sizes`` tell); ``direct`` makes the same call
        without padding, and serves it where the recording may not. A recording that changes nothing
        but its results is launched before the ledger and ``is_stale``, the caller's own question
        of the kind, are asked, and its result dropped where something has changed.
        """
        if current_activity() is not None or is_foreign(self._device_type):
            return direct()
        is_early = self._is_without_effects and not entry.is_random and self.ledger.is_held()
        generation = self.ledger.generation if is_early else self.ledger.check()
        if generation.epoch != self._epoch:
            self._forget_stale(generation.epoch)
        reason = self._why_not_entry(entry, generation)
        if reason is None and not self._lane.acquire():
            reason = "the lane is recording"
        if reason is None:
            try:
                reason = self._launched(entry, tensors, generation if is_early else None)
                if reason is None and is_stale():
                    reason = "what the region reads has changed"
                if reason is None:
                    result = self._take(entry, tensors, sizes, route, borrow=False)
                    self.counters.count_rows(*self._rows_of(entry, sizes))
                    return result
            finally:
                self._lane.lock.release()
        return self.call_directly(reason, direct)

    def _launched(
        self, entry: Entry, tensors: Sequence[torch.Tensor], believed: Generation | None
    ) -> str | None:
        """Launch an entry under the lane's lock; ``None``, or why its result may not be handed out.

        What may be asked while the device is at work is asked then: whether the ledger is still of
        the generation ``believed``, and the modes.
        """
        if not entry.is_alive:
            return "the recording was evicted"
        self._launch(entry, tensors)
        if believed is not None and self.ledger.check() != believed:
            return "what the region reads has changed"
        if entry.key.modes != numeric_modes(self._device_type):
            return "recorded in another mode"
        return None

    def _why_not_entry(self, entry: Entry, generation: Generation) -> str | None:
        if forced_route() == "direct":
            return "forced"
        if entry.key.generation != (generation, verdicts.number):
            return "what the region reads has changed"
        if entry.key.modes[:2] != (is_inference_mode_enabled(), is_grad_enabled()):
            return "recorded in another mode"
        if entry.key.modes[1] and self.ledger.requires_grad():
            return "a gradient may be needed"
        return None

    @staticmethod
    def _rows_of(entry: Entry, sizes: Sizes) -> tuple[int, int]:
        """Real and padding rows of a call, along the first axis."""
        rung = entry.rung or {}
        first = next(iter(rung))
        return sizes[first], rung[first] - sizes[first]

    def _arm(
        self, entry: Entry, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Prepare the short way for further calls of the key that was served twice running."""
        is_repeated, self._last = self._last is entry, entry
        if is_repeated and not (
            entry.outside
            or kwargs
            or key.modes[1]
            or key.repeats
            or self._in_place
            or self._written
        ):
            self._quick = QuickCheck.of(entry, key.generation, args)

    def _addresses(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        return tuple([tensors[i].data_ptr() for i in self._in_place])

    def _repeats(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        return repeats_of(tensors) if self._asks_identity else ()

    def _replay(
        self,
        entry: Entry,
        tensors: Sequence[torch.Tensor],
        sizes: Sizes | None,
        route: Route,
        *,
        borrow: bool,
    ) -> Any:
        """Replay under the lane's lock, which the caller holds."""
        self._launch(entry, tensors)
        return self._take(entry, tensors, sizes, route, borrow=borrow)

    def _launch(self, entry: Entry, tensors: Sequence[torch.Tensor]) -> None:
        self._join()
        if entry.is_random:
            self._lane.backend.join_random()
        entry.launch(tensors)

    def _take(
        self,
        entry: Entry,
        tensors: Sequence[torch.Tensor],
        sizes: Sizes | None,
        route: Route,
        *,
        borrow: bool,
    ) -> Any:
        result = entry.take(tensors, sizes, borrow=borrow)
        if route is EXACT:
            self.counters.count_exact()
        else:
            self.counters.count(route)
        self._lane.last_used = monotonic() + 1e-6 * (entry.recorded_us or 0.0)
        self._cache.touch(entry.generation)
        return result

    def _direct(self, reason: str, request: Request) -> Any:
        return self.call_directly(reason, lambda: self._unpadded(request))

    def _unpadded(self, request: Request) -> Any:
        if request.direct is not None:
            return request.direct()
        if self.region.uploads:
            moved = [self._on_device(i, t) for i, t in enumerate(request.tensors)]
            return request.invoke(self.region.fn)(moved)
        return self.region.fn(*request.args, **request.kwargs)

    def call_directly(self, reason: str, call: Callable[[], Any]) -> Any:
        """A direct call that its caller has chosen; it is counted with the caller's reason."""
        self.counters.count(Route("direct", reason))
        try:
            return call()
        finally:
            self._lane.last_used = max(self._lane.last_used, monotonic())

    def _on_device(self, i: int, tensor: torch.Tensor) -> torch.Tensor:
        if i in self.region.uploads:
            return tensor.to(self.runner.device, non_blocking=True)
        return tensor

    # -- the choice -----------------------------------------------------------------------------

    def _choose(self, request: Request) -> Any:
        forced = forced_route()
        chosen = self._choice.of(request, forced)
        if isinstance(chosen, str):
            return self._unrecorded(chosen, request, forced)
        entry, sizes = chosen
        if forced is None and not self._choice.is_worth_it(entry, sizes, request):
            return self._direct("the direct call is faster", request)
        return self._serve(entry, sizes, request)

    def _unrecorded(self, reason: str, request: Request, forced: str | None) -> Any:
        if forced in ("exact", "rung"):
            raise RouteUnavailable(f"{self.region.name}: route {forced!r} is forced, but: {reason}")
        return self._direct(reason, request)

    def _serve(self, entry: Entry, sizes: Sizes | None, request: Request) -> Any:
        if not self._lane.acquire():
            return self._direct("the lane is recording", request)
        try:
            if not entry.is_apart(request.tensors):
                return self._direct("an input shares memory with what the region writes", request)
            if entry.is_alive:
                if self._is_paranoid:
                    return self._compared(entry, sizes, request)
                route = self._route_of(entry, sizes)
                borrow = request.is_borrowed
                return self._replay(entry, request.tensors, sizes, route, borrow=borrow)
        finally:
            self._lane.lock.release()
        return self._direct("the recording was evicted", request)

    def _route_of(self, entry: Entry, sizes: Sizes | None) -> Route:
        if sizes is None or entry.rung is None:
            return EXACT
        if entry.hits == 0:
            self.recordings.note_use(self.recordings.family(entry.key), tuple(entry.rung.values()))
        self.counters.count_rows(*self._rows_of(entry, sizes))
        return Route("rung", "padded", tuple((a.name, n) for a, n in entry.rung.items()))

    # -- weights that moved, doubt, warm-up, the end --------------------------------------------

    def _forget_stale(self, epoch: int) -> None:
        """Recordings that read moved memory go before anything else happens."""
        with self._lane.lock:
            self._quick = self._last = None
            self.recordings.clear()
            self._epoch = epoch

    def _compared(self, entry: Entry, sizes: Sizes | None, request: Request) -> Any:
        """Paranoid: replay and call directly, return the direct result, refuse on a difference."""
        copies = request.with_copies(self.region.in_place).tensors
        result = self._replay(entry, copies, sizes, self._route_of(entry, sizes), borrow=False)
        if request.direct is not None:
            direct = request.direct()
        else:
            moved = [self._on_device(i, t) for i, t in enumerate(request.tensors)]
            direct = request.invoke(self.region.fn)(moved)
        got: list[torch.Tensor] = []
        want: list[torch.Tensor] = []
        tree.flatten(result, got, "result")
        tree.flatten(direct, want, "result")
        try:
            if sizes is None:
                gate.compare_exact(got, want, None, "a served call")
            else:
                gate.compare_close(got, want, self.config.tolerance, "a served call")
        except RecordingRefused as refused:
            log.error("%s: a recording differs and is given up: %s", self.region.name, refused)
            self.recordings.give_up(entry, str(refused))
        return direct

    def record(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        rung: Sizes | None = None,
        direct: Callable[[], Any] | None = None,
        gate_calls: Sequence[GateCall] | None = None,
        direct_us: float | None = None,
    ) -> Entry | None:
        """Record now: the exact key, the given rung, or with something that grows the whole ladder.

        Returns the recording of the exact key or of the given rung; its times are in it. Raises
        ``RecordingRefused`` with the reason when nothing could be recorded.
        """
        structure, tensors = call_of(args, kwargs)
        generation = self.ledger.check()
        if generation.epoch != self._epoch:
            self._forget_stale(generation.epoch)
        key = Key(
            structure,
            tuple(map(TensorSpec.of, tensors)),
            numeric_modes(self._device_type),
            (generation, verdicts.number),
            self._addresses(tensors),
            self._repeats(tensors) if rung is None else (),
        )
        given = (False, rung, direct, gate_calls, direct_us)
        request = Request(key, tensors, args, kwargs, *given)
        return self._choice.record(request)

    def close(self) -> None:
        """Free every recording; later calls record anew."""
        with self._lane.lock:
            self._quick = self._last = None
            self.recordings.clear()


def _without_memory(tensors: Sequence[torch.Tensor]) -> str:
    layouts = sorted({str(t.layout) for t in tensors if t.layout is not torch.strided})
    return (
        f"an argument is a tensor without addressable memory {layouts}; expected dense, strided "
        "tensors"
    )
