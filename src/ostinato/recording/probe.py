"""Runs a callable once, for real, before anything is recorded, and tells what it does.

It refuses what no recording could replay, with the user's file and line, and finds what the call
reads and writes outside of itself. It records nothing, and ``Probe.restore()`` leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ostinato import state as activity
from ostinato.recording.calls import (
    Call,
    generator_key,
    has_storage,
    storage_key,
    tensors_in,
)
from ostinato.recording.frames import user_location
from ostinato.recording.memory import LiveMemory, OwnTensors
from ostinato.recording.observer import Observer, Report
from ostinato.recording.undo import HostDraws, RandomUndo, UndoLog

MAX_STATE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ExternalWrite:
    """The first write to memory that is neither an input, nor declared, nor made by the call."""

    tensor: torch.Tensor
    operator: str
    location: str | None


@dataclass(frozen=True, slots=True)
class Probe:
    """What one call did.

    ``reads`` holds one tensor per storage that was read or written and is neither an input nor made
    by the call, declared state among them; the references are strong. ``input_writes`` are
    positions in ``inputs``. ``temporary_bytes`` is the peak of live memory that the call made.
    """

    result: Any
    reads: tuple[torch.Tensor, ...]
    input_writes: tuple[int, ...]
    writes: tuple[ExternalWrite, ...]
    is_random: bool
    generators: tuple[torch.Generator, ...]
    temporary_bytes: int
    num_operations: int
    _undo: UndoLog = field(repr=False)
    _random: RandomUndo = field(repr=False)
    _host: HostDraws | None = field(repr=False, default=None)

    @property
    def is_pure(self) -> bool:
        """True when the call wrote nothing but memory of its own and drew nothing."""
        return not (self.writes or self.input_writes or self.is_random)

    def restore(self) -> None:
        """Put back undeclared state, written inputs and random generators, byte for byte."""
        self._undo.restore()
        self._random.restore()
        if self._host is not None and self._host.is_drawn_in_pieces:
            self._host.restore()


def probe(
    body: Callable[[], Any],
    inputs: Sequence[torch.Tensor],
    *,
    state: Iterable[torch.Tensor] = (),
    writes: Iterable[int] = (),
    max_state_bytes: int = MAX_STATE_BYTES,
    host: HostDraws | None = None,
) -> Probe:
    """Run ``body()`` once and report what it did.

    ``state``: tensors, by storage, that the caller declared as state: never cloned. ``writes``:
    positions in ``inputs`` that may be written. Raises ``RecordingRefused`` at the first breach
    of a rule, ``large-state`` before the write that would need more than ``max_state_bytes`` of
    clones; an exception of the body propagates unchanged. In both cases all memory and every
    random generator of torch is as before; the host's are put back by who gave ``host``.
    """
    random = RandomUndo()
    tracker = Tracker(inputs, state, writes, max_state_bytes, random)
    host = host or HostDraws()
    observer = Observer(watch=tracker, inputs=inputs, host=host)
    host.begin()
    try:
        phase = activity.Activity(activity.Phase.WARM_UP, observer)
        with activity.entering(phase), observer:
            result = body()
            tracker.finish(observer.report)
            host.look()
            if host.is_drawn:
                observer.report("host-random", "a draw of Python's random module or of numpy")
        if observer.first is not None:
            raise observer.first.refusal()
    except BaseException:
        tracker.undo.restore()
        random.restore()
        raise
    return tracker.summary(result, host)


def unwatched_probe(body: Callable[[], Any]) -> Probe:
    """Run ``body()`` once where it is known to write nothing from outside and to draw nothing."""
    return Probe(body(), (), (), (), False, (), 0, 0, UndoLog(), RandomUndo())


class Tracker:
    """An observer's watch: reads, writes, random draws and memory of one call."""

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        state: Iterable[torch.Tensor],
        writes: Iterable[int],
        max_state_bytes: int,
        random: RandomUndo,
    ) -> None:
        self.undo = UndoLog()
        self._random = random
        self._inputs: dict[int, list[int]] = {}
        for position, tensor in enumerate(inputs):
            self._inputs.setdefault(storage_key(tensor), []).append(position)
        self._state = {storage_key(tensor): tensor for tensor in state}
        self._declared_writes = frozenset(writes)
        self._max_state_bytes = max_state_bytes
        self._reads: dict[int, torch.Tensor] = {}
        self._written_inputs: set[int] = set()
        self._writes: dict[int, ExternalWrite] = {}
        self._memory = LiveMemory()
        self._own_views = OwnTensors()
        self._is_random = False
        self._generators: dict[int, torch.Generator] = {}
        self._num_operations = 0

    @property
    def reads(self) -> Mapping[int, torch.Tensor]:
        """Storage -> the tensor from outside by which it was first read or written."""
        return self._reads

    def before(self, call: Call, report: Report) -> None:
        self._num_operations += 1
        self._is_random = self._is_random or call.is_random
        for generator in call.generators:
            self._generators[generator_key(generator)] = generator
            self._random.note(generator)
        for tensor in call.tensors:
            key = storage_key(tensor)
            if key not in self._inputs and key not in self._memory:
                self._reads.setdefault(key, tensor)
        for tensor in call.written:
            self._before_write(tensor, call, report)

    def after(self, call: Call, result: Any) -> None:
        for tensor in tensors_in(result):
            if not has_storage(tensor):
                continue
            key = storage_key(tensor)
            if key in self._memory or (key not in self._inputs and key not in self._reads):
                self._memory.add(tensor)
            elif not any(tensor is argument for argument in call.tensors):
                self._own_views.add(tensor)

    def finish(self, report: Report) -> None:
        """Look for tensors from outside that were moved by a write."""
        for _ in self.undo.moved():
            report("rebind", "an operator that resized a tensor from outside")

    def summary(self, result: Any, host: HostDraws | None = None) -> Probe:
        return Probe(
            result=result,
            reads=tuple(self._reads.values()),
            input_writes=tuple(sorted(self._written_inputs)),
            writes=tuple(self._writes.values()),
            is_random=self._is_random or self._random.has_drawn(),
            generators=tuple(self._generators.values()),
            temporary_bytes=self._memory.peak_bytes,
            num_operations=self._num_operations,
            _undo=self.undo,
            _random=self._random,
            _host=host,
        )

    def _before_write(self, tensor: torch.Tensor, call: Call, report: Report) -> None:
        key = storage_key(tensor)
        if key in self._memory:
            return
        if call.has_tag(torch.Tag.inplace_view):
            if tensor not in self._own_views:
                report("rebind", f"{call.name} on a tensor from outside")
            return
        if key in self._inputs:
            positions = self._inputs[key]
            self._written_inputs.update(positions)
            undeclared = [p for p in positions if p not in self._declared_writes]
            if undeclared:
                report("input-write", f"{call.name} on input {undeclared[0]}")
        elif key in self._state:
            return
        else:
            write = ExternalWrite(tensor, str(call.func), user_location())
            self._writes.setdefault(key, write)
        self._save(tensor, call, report)

    def _save(self, tensor: torch.Tensor, call: Call, report: Report) -> None:
        if tensor not in self.undo:
            num_bytes = self.undo.num_bytes + tensor.untyped_storage().nbytes()
            if num_bytes > self._max_state_bytes:
                report(
                    "large-state",
                    f"{call.name} would make {num_bytes} bytes of undeclared state to put back "
                    f"(limit {self._max_state_bytes}); it",
                )
                return
        self.undo.before_write(tensor)
