"""Static results, and what a caller gets from them.

The last recorded operations copy a call's results into static results in ordinary memory. What a
caller gets is a copy of those in the memory of its own current stream, with the relations the
direct call has: a result that is an input, a parameter or a view of another result comes back as
that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ostinato.errors import RecordingRefused, UnkeyableArgument
from ostinato.recording import tree
from ostinato.recording.buffers import is_dense
from ostinato.recording.shared import SharedBuffers
from ostinato.recording.spec import TensorSpec

Lengths = Mapping[int, int]
"""Dimension -> how many of its elements belong to the call."""


class _View(NamedTuple):
    """A result that lies in memory of ``source``: an input's index, or a group's."""

    source: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int  # elements from the source's first one
    is_whole: bool = False  # an input as it is

    def cut(self, lengths: Lengths) -> _View:
        """The part of the view that belongs to a call."""
        shape = [lengths.get(dim, n) for dim, n in enumerate(self.shape)]
        return self._replace(shape=torch.Size(shape))


class _Group:
    """Results that share one storage, and the static tensor that holds them."""

    def __init__(
        self,
        members: Sequence[torch.Tensor],
        place: int = 0,
        shared: SharedBuffers | None = None,
    ) -> None:
        specs = [TensorSpec.of(t) for t in members]
        self.start = min(int(t.storage_offset()) for t in members)
        end = max(int(t.storage_offset()) + s.span for t, s in zip(members, specs, strict=True))
        if len({t.dtype for t in members}) > 1:
            raise RecordingRefused(
                "results share memory under different dtypes: "
                f"{sorted(str(t.dtype) for t in members)}",
                rule="result-alias",
                fix="return a clone of one of them",
            )
        self.is_plain = len(members) == 1 and is_dense(specs[0])
        first = members[0]
        self.is_shared = self.is_plain and shared is not None and first.is_contiguous()
        if self.is_shared and shared is not None:
            self.static, _ = shared.take(("result", place), specs[0], first.device)
        elif self.is_plain:
            self.static = specs[0]._replace(is_aligned=True).empty(first.device)
        else:
            self.static = torch.empty(end - self.start, dtype=first.dtype, device=first.device)

    def whole(self, member: torch.Tensor) -> torch.Tensor:
        """Of a new result (of the recorded shape) what goes into the static tensor."""
        if self.is_plain:
            return member
        return member.as_strided((self.static.shape[0],), (1,), self.start)


class Results:
    """The static results of one recording, laid out like one direct call's result.

    Made from that result (``example``), the static inputs it was computed from, and the tensors
    that exist outside (parameters, buffers). ``store`` is recorded; ``hand_out`` and ``borrow``
    are not. With ``shared``, results lie in buffers that other recordings use too.
    """

    def __init__(
        self,
        example: Any,
        inputs: Sequence[torch.Tensor],
        outside: Sequence[torch.Tensor],
        shared: SharedBuffers | None = None,
    ) -> None:
        self._shared = shared
        leaves: list[torch.Tensor] = []
        try:
            self.structure = tree.flatten(example, leaves, "result")
        except UnkeyableArgument as error:
            raise RecordingRefused(
                str(error), rule="result-type", fix="return tensors, tuples, lists or dictionaries"
            ) from None
        self._rebuild = tree.rebuilder(example)
        self._places: list[_View | int | torch.Tensor] = []
        self._groups: list[_Group] = []
        self._classify(leaves, inputs, outside)
        sources = [p.source for p in self._places if isinstance(p, _View)]
        self._is_shared = [sources.count(~at) > 1 for at in range(len(self._groups))]
        self.specs = [TensorSpec.of(t) for t in leaves]
        is_one_tensor = self.structure is tree.LEAF and self._places == [0]
        self._only = self._groups[0].static if is_one_tensor and self._groups[0].is_plain else None

    def _classify(
        self,
        leaves: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        outside: Sequence[torch.Tensor],
    ) -> None:
        by_input = {_storage(t): i for i, t in reversed(list(enumerate(inputs)))}
        by_outside = {_storage(t) for t in outside}
        shared: dict[int, list[torch.Tensor]] = {}
        for leaf in leaves:
            shared.setdefault(_storage(leaf), []).append(leaf)
        made: dict[int, int] = {}
        for leaf in leaves:
            key = _storage(leaf)
            if key in by_input and key:
                i = by_input[key]
                view = _view(i, leaf, int(inputs[i].storage_offset()))
                is_whole = _alias(inputs[i], view) is inputs[i]
                self._places.append(view._replace(is_whole=is_whole))
            elif key in by_outside and key:
                self._places.append(leaf)
            else:
                at = made.setdefault(key, len(self._groups)) if key else len(self._groups)
                if at == len(self._groups):
                    members = shared[key] if key else [leaf]
                    self._groups.append(_Group(members, len(self._groups), self._shared))
                group = self._groups[at]
                self._places.append(at if group.is_plain else _view(~at, leaf, group.start))

    @property
    def num_bytes(self) -> int:
        own = [g.static for g in self._groups if not g.is_shared]
        return sum(static.numel() * static.element_size() for static in own)

    @property
    def statics(self) -> list[torch.Tensor]:
        """The static tensors, one for each group of results that share memory."""
        return [g.static for g in self._groups]

    def store(self, value: Any) -> None:
        """Copy a result of the recorded callable into the static results.

        Raises ``RecordingRefused`` when the result is not laid out like the example: another
        structure, other Python values, other shapes or strides.
        """
        leaves: list[torch.Tensor] = []
        structure = tree.flatten(value, leaves, "result")
        if structure != self.structure:
            raise RecordingRefused(
                f"the Python values or the structure of the result change from call to call: "
                f"{tree.describe(self.structure)} became {tree.describe(structure)}",
                rule="result-value",
                fix="return tensors, or values that do not change",
            )
        stored: dict[int, torch.Tensor] = {}
        for place, leaf, spec in zip(self._places, leaves, self.specs, strict=True):
            if leaf.shape != spec.shape or leaf.stride() != spec.stride:
                raise RecordingRefused(
                    f"a result's layout changed from {spec} to {TensorSpec.of(leaf)}",
                    rule="result-value",
                )
            at = place if isinstance(place, int) else None
            if isinstance(place, _View) and place.source < 0:
                at = ~place.source
            if at is not None and at not in stored:
                stored[at] = self._groups[at].whole(leaf)
        for at, whole in stored.items():  # each alone: what is recorded costs no launch
            self._groups[at].static.copy_(whole)

    def hand_out(self, inputs: Sequence[torch.Tensor]) -> Any:
        """The caller's own result: copies in memory of the current stream, aliases of
        ``inputs``.
        """
        if self._only is not None:
            return self._only.clone()
        own = [torch.empty_like(static) for static in self.statics]
        _copy(own, self.statics)
        return self._build(own, inputs)

    def borrow(self, inputs: Sequence[torch.Tensor]) -> Any:
        """The static results themselves: valid until the next replay of this recording."""
        return self._build(self.statics, inputs)

    def cut(
        self,
        inputs: Sequence[torch.Tensor],
        padded: Sequence[torch.Tensor],
        lengths: Sequence[Lengths],
    ) -> Any:
        """Like ``hand_out``, but only the part of each result that belongs to the call.

        ``padded`` are the static inputs: a result that is an input is the caller's own, a view of
        one is a view of the caller's, where it lies as its static twin does (else a copy). Results
        that share memory share one copy of it, padding included.
        """
        leaves = []
        copies: dict[int, torch.Tensor] = {}
        own: list[torch.Tensor] = []
        parts: list[torch.Tensor] = []
        for place, static, length in zip(self._places, self.leaves(padded), lengths, strict=True):
            if isinstance(place, torch.Tensor):
                leaves.append(place)
            elif isinstance(place, _View) and place.source >= 0:
                given, twin = inputs[place.source], padded[place.source]
                if static is twin:
                    leaves.append(given)
                elif given.stride() == twin.stride():
                    leaves.append(_alias(given, place.cut(length)))
                else:
                    leaves.append(_cut(static, length).clone())
            elif isinstance(place, _View) and self._is_shared[~place.source]:
                at = ~place.source
                if at not in copies:
                    copies[at] = self._groups[at].static.clone()
                leaves.append(_cut(_of_group(copies[at], place), length))
            else:
                part = _cut(static, length)
                layout = torch.contiguous_format if length else torch.preserve_format
                own.append(torch.empty_like(part, memory_format=layout))
                parts.append(part)
                leaves.append(own[-1])
        _copy(own, parts)
        return self._rebuild(leaves)

    def require_relations(self, growth: Mapping[int, Mapping[int, object]]) -> None:
        """Raise ``RecordingRefused`` for a view of an input that grows where padding moves its
        rows apart: it could only come back as a copy. ``growth``: input -> dimensions.
        """
        for place in self._places:
            if not isinstance(place, _View) or place.source < 0 or place.is_whole:
                continue
            if any(dim > 0 for dim in growth.get(place.source, ())):
                raise RecordingRefused(
                    f"a result is a view of input {place.source}, which grows in a dimension "
                    f"other than its first: {sorted(growth[place.source])}",
                    rule="result-alias",
                    fix="return a clone of it",
                )

    def leaves(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The static results as flat list in the order of the structure; aliases resolved."""
        return self._leaves(self.statics, inputs)

    def _build(self, groups: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Any:
        return self._rebuild(self._leaves(groups, inputs))

    def _leaves(
        self, groups: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        leaves = []
        for place in self._places:
            if isinstance(place, int):
                leaves.append(groups[place])
            elif isinstance(place, torch.Tensor):
                leaves.append(place)
            elif place.source < 0:
                leaves.append(_of_group(groups[~place.source], place))
            else:
                leaves.append(_alias(inputs[place.source], place))
        return leaves


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """One launch, where the tensors of a list are of one dtype."""
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        torch._foreach_copy_(targets, sources)


def _cut(tensor: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    for dim, n in lengths.items():
        tensor = tensor.narrow(dim, 0, n)
    return tensor


def _of_group(memory: torch.Tensor, place: _View) -> torch.Tensor:
    return memory.as_strided(place.shape, place.stride, place.offset)


def _storage(tensor: torch.Tensor) -> int:
    """Identity of a tensor's memory; 0 for tensors without any."""
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def _view(source: int, leaf: torch.Tensor, start: int) -> _View:
    return _View(source, leaf.shape, leaf.stride(), int(leaf.storage_offset()) - start)


def _alias(given: torch.Tensor, place: _View) -> torch.Tensor:
    if given.shape == place.shape and given.stride() == place.stride and place.offset == 0:
        return given
    return given.as_strided(place.shape, place.stride, given.storage_offset() + place.offset)
