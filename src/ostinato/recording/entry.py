"""One recording with everything it needs to serve a call: static inputs, recorded work, results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ostinato.recording.backend import Recorded
from ostinato.recording.buffers import StaticInputs
from ostinato.recording.cache import Generation
from ostinato.recording.gate import Verdict
from ostinato.recording.growth import ResultGrowth, lengths
from ostinato.recording.key import Key
from ostinato.recording.ladder import Axis
from ostinato.recording.results import Results

MAX_KNOWN_LENGTHS = 1024


@dataclass(eq=False)
class Entry:
    """A recording in service. Used under its lane's lock.

    ``rung`` is None for an exact recording, else the sizes it was recorded for. ``recorded_us`` and
    ``direct_us`` are measured times of whole calls in microseconds, None where none were taken;
    ``outside`` holds, for a region that writes, the storages it touches besides its inputs: an
    input that lies there is another memory in a recording. ``is_preferred`` is False when the
    direct call was measured to be faster.
    """

    key: Key
    inputs: StaticInputs
    results: Results
    recorded: Recorded
    generation: Generation
    writes: Sequence[int]
    verdict: Verdict
    rung: Mapping[Axis, int] | None = None
    result_growth: ResultGrowth = field(default_factory=list)
    recorded_us: float | None = None
    direct_us: float | None = None
    is_random: bool = False
    is_preferred: bool = True
    outside: frozenset[int] = frozenset()
    is_alive: bool = True
    hits: int = 0
    _known_lengths: dict[tuple[int, ...], list[dict[int, int]]] = field(default_factory=dict)

    def is_apart(self, tensors: Sequence[torch.Tensor]) -> bool:
        """False when an input lies in memory that the region writes, or reads while it writes."""
        return not self.outside or not any(
            t.untyped_storage().data_ptr() in self.outside for t in tensors
        )

    @property
    def own_bytes(self) -> int:
        """Static buffers and executable; the pool is counted with the generation."""
        held = self.inputs.num_bytes + self.results.num_bytes if self.is_alive else 0
        return held + self.recorded.bytes_held

    def serve(
        self, tensors: Sequence[torch.Tensor], sizes: Mapping[Axis, int] | None, *, borrow: bool
    ) -> Any:
        """Load, replay, write back, and give the caller its result. Nothing waits for
        the device.
        """
        self.launch(tensors)
        return self.take(tensors, sizes, borrow=borrow)

    def launch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Enqueue the copies of a call's inputs and the replay."""
        self.inputs.load(tensors, self.rung)
        self.recorded.replay()

    def take(
        self, tensors: Sequence[torch.Tensor], sizes: Mapping[Axis, int] | None, *, borrow: bool
    ) -> Any:
        """What the launched call gives its caller, and what it writes to the caller's inputs."""
        self.hits += 1
        for i in self.writes:
            self._write_back(i, tensors[i])
        if borrow:
            return self.results.borrow(tensors)
        if sizes is None:
            return self.results.hand_out(tensors)
        return self.results.cut(tensors, self.inputs.tensors, self._lengths(sizes))

    def _lengths(self, sizes: Mapping[Axis, int]) -> list[dict[int, int]]:
        """What a call of these sizes gets of each result; worked out once for each."""
        key = tuple(sizes.values())
        found = self._known_lengths.get(key)
        if found is None:
            if len(self._known_lengths) >= MAX_KNOWN_LENGTHS:
                self._known_lengths.clear()
            found = self._known_lengths[key] = lengths(self.result_growth, sizes)
        return found

    def _write_back(self, i: int, given: torch.Tensor) -> None:
        static = self.inputs.tensors[i]
        if static is given:
            return
        if static.shape != given.shape:
            for dim, n in enumerate(given.shape):
                static = static.narrow(dim, 0, n)
        given.copy_(static)

    def release(self, *, keep_executable: bool) -> None:
        """Stop serving and give up the static buffers; the executable too unless it
        must live on.
        """
        if self.is_alive:
            self.is_alive = False
            if not keep_executable:
                self.recorded.free()
            self.inputs = self.results = None  # type: ignore[assignment]

    def free(self) -> None:
        self.release(keep_executable=False)
        self.recorded.free()
