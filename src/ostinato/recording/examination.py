"""The gate of one recording: which calls it is compared on, and what must be equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ostinato.errors import GateFailed
from ostinato.recording import gate, growth, tree
from ostinato.recording.backend import Backend
from ostinato.recording.buffers import copy_of, pad
from ostinato.recording.entry import Entry
from ostinato.recording.gate import Verdict, vary
from ostinato.recording.ladder import Axis
from ostinato.recording.order import GateSet, Order
from ostinato.recording.probe import Probe

VARIATIONS = (1, 7)
"""By how many places the floating inputs of the two varied calls are rolled."""


class Examination:
    """Compares one recording with direct calls. Every trial starts from the same state
    and draws.
    """

    def __init__(self, order: Order, entry: Entry, made: Probe, backend: Backend) -> None:
        self._order = order
        self._entry = entry
        self._made = made
        self._backend = backend
        self._pool = entry.generation.pool

    def restore(self) -> None:
        """Put back random draws and whatever undeclared state the last trial wrote."""
        self._made.restore()

    def run_unpadded(self) -> Any:
        """A direct call of the example at its own size, in memory of the pool."""
        return self._unpadded(self._order.example)

    def _unpadded(self, given: GateSet) -> Any:
        if given.direct is not None:
            return self._pool.warm_up(given.direct)
        return self._direct(self._on_device(given.tensors))

    def result_growth(self) -> growth.ResultGrowth:
        """Which dimensions of the results follow which axis, found by padding the example
        further.
        """
        order = self._order
        assert order.rung is not None

        def shapes_at(sizes: Mapping[Axis, int]) -> list[torch.Size]:
            padded = self._padded(self._on_device(order.example.tensors), sizes)
            shapes = [t.shape for t in self._leaves(self._direct(padded))]
            self.restore()
            return shapes

        return growth.infer(shapes_at, order.rung)

    def verdict(self) -> Verdict:
        """Compare on every set; the worst distance seen. Raises ``GateFailed``."""
        order = self._order
        sets = [*order.gate_sets]
        if order.direct is not None and len(sets) > 1:
            sets = sets[1:]  # a padding caller's: the first is what was recorded with
        elif not order.region.state:
            example = order.example.tensors
            sets += [GateSet([vary(t, step) for t in example]) for step in VARIATIONS]
            sets += self._smaller(example)
        check = self._exact if order.rung is None else self._rung
        verdicts = [
            check(given, f"check {number} of {len(sets)}") for number, given in enumerate(sets, 1)
        ]
        worst = max(v.worst for v in verdicts)
        notes = sorted({v.note for v in verdicts if v.note})
        return Verdict(all(v.is_exact for v in verdicts), worst, "; ".join(notes))

    def _smaller(self, example: Sequence[torch.Tensor]) -> list[GateSet]:
        """The example cut to one step, to half and to one step below the rung, as far as it goes:
        a rung is never trusted by calls that fill it. A size at which the direct call itself raises
        or gives nothing finite is left out.

        Where one axis describes another (offsets), cutting would break the example: then a smaller
        call has to come from the example itself or from ``gate_inputs``.
        """
        order, region = self._order, self._order.region
        if order.rung is None or order.direct is not None:
            return []  # nothing is padded, or the caller pads and brings calls of other sizes
        given = region.sizes_of(example)
        grown = [grows for dims in region.grows.values() for grows in dims.values()]
        if any(isinstance(grows.fill, Axis) for grows in grown):
            return []
        sets = []
        for part in (0.0, 0.5, 1.0):
            sizes = {a: _part_of(rung, part, a.multiple) for a, rung in order.rung.items()}
            sizes = {axis: min(size, given[axis]) for axis, size in sizes.items()}
            if sizes != given:
                cut = [self._cut_input(i, t, sizes) for i, t in enumerate(example)]
                if self._is_fit(cut):
                    sets.append(GateSet(cut))
        return sets

    def _cut_input(self, i: int, tensor: torch.Tensor, sizes: Mapping[Axis, int]) -> torch.Tensor:
        for dim, grows in self._order.region.grows.get(i, {}).items():
            tensor = tensor.narrow(dim, 0, grows.length(sizes[grows.axis]))
        return tensor

    def _is_fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True when a direct call with these inputs works and gives finite values."""
        try:
            gate.check_finite(
                self._leaves(self._direct(self._on_device(tensors))), "a smaller call"
            )
        except Exception:
            return False
        finally:
            self.restore()
        return True

    def _exact(self, given: GateSet, what: str) -> Verdict:
        tensors = given.tensors
        want = self._observe(tensors, self._run_direct)
        got = self._observe(tensors, self._run_replay)
        gate.check_finite(want, f"the direct call's results in {what}")
        return gate.compare_exact(got, want, self._spread(tensors, got, want, what), what)

    def _rung(self, given: GateSet, what: str) -> Verdict:
        """Padded direct call and replay agree in the real rows, padding poisoned; unpadded is
        close.
        """
        order, tensors = self._order, given.tensors
        sizes = order.region.sizes_of(tensors)
        lengths = growth.lengths(self._entry.result_growth, sizes)
        num = len(lengths)

        def real(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [_cut(t, length) for t, length in zip(values[:num], lengths, strict=True)]

        want = self._observe(tensors, self._run_direct)
        poisoned = self._observe(tensors, self._run_replay, poison=True)
        gate.check_finite(real(want), f"the padded direct call's results in {what}")
        spread = self._spread(tensors, poisoned, want, what, real)
        exact = gate.compare_exact(real(poisoned), real(want), spread, f"{what}, padding poisoned")
        if order.direct is not None and given.direct is None:
            return exact  # the caller pads its inputs: only it can call without padding
        unpadded = [t.clone() for t in self._leaves(self._unpadded(given))]
        self.restore()
        close = gate.compare_close(real(want), unpadded, order.config.tolerance, what)
        return Verdict(exact.is_exact, max(exact.worst, close.worst), exact.note)

    def _spread(
        self,
        tensors: Sequence[torch.Tensor],
        got: Sequence[torch.Tensor],
        want: Sequence[torch.Tensor],
        what: str,
        part: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] = list,
    ) -> list[float] | None:
        """How far two direct calls are apart, asked only when the replay is not equal to the first;
        ``part`` is what counts of what a run shows.

        Declared state is not put back between trials, so its region may accumulate.
        """
        if all(gate.is_bit_exact(a, b) for a, b in zip(part(got), part(want), strict=True)):
            return None
        again, first = part(self._observe(tensors, self._run_direct)), part(want)
        gaps = [gate.distance(a, b) for a, b in zip(again, first, strict=True)]
        if not self._order.region.state:
            gate.check_spread(gaps, first, what)
        return gaps if any(gaps) else None

    def _observe(
        self,
        tensors: Sequence[torch.Tensor],
        run: Callable[[], list[torch.Tensor]],
        *,
        poison: bool = False,
    ) -> list[torch.Tensor]:
        """Clones of everything a run shows: results, written inputs, undeclared state."""
        inputs = self._entry.inputs
        inputs.load(tensors, self._order.rung)
        if poison:
            inputs.poison(tensors)
        seen = run()
        seen += [inputs.tensors[i].clone() for i in self._entry.writes]
        seen += [write.tensor.clone() for write in self._made.writes]
        self.restore()
        return seen

    def _run_direct(self) -> list[torch.Tensor]:
        result = self._direct(self._entry.inputs.tensors)
        return [t.clone() for t in self._leaves(result)]

    def _run_replay(self) -> list[torch.Tensor]:
        for static in self._entry.results.statics:
            if static.is_floating_point():
                static.fill_(float("nan"))
        self._entry.recorded.replay()
        return [t.clone() for t in self._entry.results.leaves(self._entry.inputs.tensors)]

    def _direct(self, tensors: Sequence[torch.Tensor]) -> Any:
        return self._pool.warm_up(lambda: self._order.invoke(tensors))

    def _leaves(self, result: Any) -> list[torch.Tensor]:
        leaves: list[torch.Tensor] = []
        structure = tree.flatten(result, leaves, "result")
        if structure != self._entry.results.structure:
            raise GateFailed(
                f"the Python values of the result differ between calls: "
                f"{tree.describe(self._entry.results.structure)} and {tree.describe(structure)}",
                rule="result-value",
                fix="return tensors, or values that do not change",
            )
        return leaves

    def _on_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of a direct trial call: uploaded where they are on the host, and copies of
        what the call writes to.
        """
        region = self._order.region
        moved = [
            t.to(self._backend.device) if i in region.uploads else t for i, t in enumerate(tensors)
        ]
        return [copy_of(t) if i in region.writes else t for i, t in enumerate(moved)]

    def _padded(
        self, tensors: Sequence[torch.Tensor], sizes: Mapping[Axis, int]
    ) -> list[torch.Tensor]:
        padded = list(tensors)
        for i, grown in self._order.region.grows.items():
            shape = list(tensors[i].shape)
            for dim, grows in grown.items():
                shape[dim] = grows.length(sizes[grows.axis])
            padded[i] = pad(tensors[i], grown, shape, sizes)
        return padded


def _cut(tensor: torch.Tensor, lengths: Mapping[int, int]) -> torch.Tensor:
    for dim, n in lengths.items():
        tensor = tensor.narrow(dim, 0, n)
    return tensor


def _part_of(rung: int, part: float, step: int) -> int:
    """One step, about half, or one step less than the rung, in whole steps."""
    if part == 0.0:
        return min(step, rung)
    size = rung - step if part == 1.0 else int(rung * part) // step * step
    return max(size, min(step, rung))
