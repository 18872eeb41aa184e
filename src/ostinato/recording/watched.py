"""One state of everything that a callable can read, and the quick question whether it is still so.

One pass over all slots and addresses without a Python loop (``rawmemory``, ``objectmemory``).
"""

from __future__ import annotations

import gc
import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple

import torch

from ostinato.recording import objectmemory, rawmemory
from ostinato.recording.places import Slot, Survey
from ostinato.recording.survey import MAX_CONTAINER_ITEMS, UNSET
from ostinato.recording.survey_values import content_of

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Generation(NamedTuple):
    """``epoch`` grows when a tensor moved (older recordings are dead); ``variant`` names a set of
    values.

    A module that toggles between training and evaluation returns to its former variant.
    """

    epoch: int
    variant: int


class Watched:
    """One state of everything watched, with what tells that it is still the state."""

    def __init__(
        self,
        tensors: list[torch.Tensor],
        slots: Sequence[Slot],
        found: Survey,
        generation: Generation,
        *,
        is_private: bool,
    ) -> None:
        self.tensors = tensors
        self.slots = slots
        self.containers = found.containers
        self.generation = generation
        self._addresses = rawmemory.AddressWatch(tensors)
        self._arrays = found.arrays
        self._elements = list(map(content_of, found.arrays))
        is_large = found.large and not is_private
        self._large = _LargeWatch(found.large) if is_large else None
        if is_private:
            tensor_slots = [s for s in slots if isinstance(s.value, torch.Tensor)]
            self._values = _ValueWatch(tensor_slots, [], [])
            self._objects = objectmemory.ObjectWatch([], [], [])
        else:
            self._values = _ValueWatch(slots, found.containers, found.hook_dicts)
            sized = [*found.namespaces, *self._values.sized]
            self._objects = objectmemory.ObjectWatch(found.instances, found.functions, sized)

    def is_held(self) -> bool:
        """True when the memory of every tensor is where it was, whether or not it is still read."""
        return not self.tensors or self._addresses.is_held()

    def is_memory_unchanged(self) -> bool:
        """False when a tensor moved, or the elements of an array or of a large container
        changed.
        """
        if self._arrays and list(map(content_of, self._arrays)) != self._elements:
            return False
        if self._large is not None and not self._large.is_unchanged():
            return False
        return not self.tensors or self._addresses.is_unchanged()

    def is_unchanged(self) -> bool:
        return (
            self.is_memory_unchanged()
            and self._objects.is_unchanged()
            and self._values.is_unchanged()
        )


class _LargeWatch:
    """Containers with too many items for slots: by the count of a dictionary's changes where
    Python keeps one, else by the identities of all items.
    """

    def __init__(self, containers: Sequence[Any]) -> None:
        is_counted = objectmemory.has_versions()
        counted = [c for c in containers if is_counted and isinstance(c, dict)]
        self._changes = objectmemory.ChangeCounts(counted)
        self._read = [c for c in containers if not (is_counted and isinstance(c, dict))]
        self._items = gc.get_referents(*self._read) if self._read else []

    def is_unchanged(self) -> bool:
        if not self._changes.is_unchanged():
            return False
        if not self._read:
            return True
        items = gc.get_referents(*self._read)
        return len(items) == len(self._items) and all(map(operator.is_, items, self._items))


class _ValueWatch:
    """The identities of the values in many slots, read again in bulk and compared.

    ``sized`` are containers whose length must be watched beside them: large ones, and empty ones,
    as most modules' dictionaries of hooks are.
    """

    def __init__(
        self, slots: Sequence[Slot], containers: Sequence[Any], hook_dicts: Sequence[Any]
    ) -> None:
        by_owner: dict[int, list[Slot]] = {}
        self._variables = [s.owner for s in slots if isinstance(s.owner, ContextVar)]
        for slot in slots:
            if not isinstance(slot.owner, (ContextVar, FunctionType)):  # functions: objectmemory
                by_owner.setdefault(id(slot.owner), []).append(slot)
        self._picked: list[tuple[Callable[[Any], Any], Any]] = []
        bare = [c for c in (*containers, *hook_dicts) if id(c) not in by_owner]
        self._whole = [c for c in bare if not c and not isinstance(c, (dict, list))]
        self.sized = [c for c in bare if c or isinstance(c, (dict, list))]
        for group in by_owner.values():
            owner, names = group[0].owner, sorted({s.name for s in group}, key=repr)
            if owner is group[0].holder:
                self._picked.append((operator.attrgetter(*names, names[0]), owner))
            elif _is_read_whole(owner, len(names)):
                self._whole.append(owner)
            else:
                self._picked.append((operator.itemgetter(*names, names[0]), owner))
                self.sized.append(owner)
        self._is_empty = not (self._whole or self._picked or self._variables)
        self._reference = self._read()
        self._bytes = rawmemory.items_of(self._reference) if rawmemory.is_supported() else None

    def _read(self) -> list[Any]:
        values = gc.get_referents(*self._whole) if self._whole else []
        values += chain.from_iterable([get(owner) for get, owner in self._picked])
        if self._variables:
            values += [variable.get(UNSET) for variable in self._variables]
        return values

    def is_unchanged(self) -> bool:
        if self._is_empty:
            return True
        try:
            values = self._read()
        except (KeyError, IndexError, AttributeError):
            return False
        if len(values) != len(self._reference):
            return False
        if self._bytes is not None:
            return rawmemory.items_of(values) == self._bytes
        return all(map(operator.is_, values, self._reference))


def _is_read_whole(owner: Any, num_slots: int) -> bool:
    """Cells and sets always; what has items when the slots are all of them, and where a class of
    its own may hand out others.
    """
    if isinstance(owner, (dict, list, tuple, deque)):
        return type(owner).__getitem__ not in _GETTERS or num_slots == len(owner)
    return not hasattr(owner, "keys")


def fingerprint(value: Any) -> Any:
    """Equal for values that make the same recording: atoms by type and bits, all else by identity.

    What is in a container has slots of its own.
    """
    if isinstance(value, float):
        return (type(value), value.hex())
    if isinstance(value, complex):
        return (complex, value.real.hex(), value.imag.hex())
    if isinstance(value, _ATOMS):
        return (type(value), value)
    if type(value) in _CONTAINERS and len(value) <= MAX_CONTAINER_ITEMS:
        return (type(value), len(value))
    return Identity(value)


_CONTAINERS = (tuple, list, dict, set, frozenset, deque)
_GETTERS = {kind.__getitem__ for kind in (dict, list, tuple, deque)}


class Identity:
    """Equal only to the same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def with_present_value(slot: Slot) -> Slot | None:
    """None where the place is gone, as in a cache that was cleared."""
    try:
        if isinstance(slot.owner, ContextVar):
            value = slot.owner.get(UNSET)
        elif slot.name is None:
            value = slot.owner.cell_contents
        elif slot.owner is slot.holder:
            value = getattr(slot.owner, slot.name)
        else:
            value = slot.owner[slot.name]
    except (KeyError, IndexError, ValueError, AttributeError):
        return None
    return replace(slot, value=value)


def differences(before: Sequence[Slot], after: Sequence[Slot]) -> Iterator[str]:
    olds = {(s.label, s.name): s for s in before}
    news = {(s.label, s.name): s for s in after}
    for key in dict.fromkeys([*olds, *news]):
        old, new = olds.get(key), news.get(key)
        if old is None or new is None:
            yield f"{key[0]} {'appeared' if old is None else 'is gone'}"
        elif fingerprint(old.value) != fingerprint(new.value):
            is_tensor = isinstance(new.value, torch.Tensor)
            yield (
                f"{key[0]}: another tensor"
                if is_tensor and isinstance(old.value, torch.Tensor)
                else f"{key[0]}: {_brief(old.value)} -> {_brief(new.value)}"
            )


def _brief(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, _ATOMS) else type(value).__qualname__
