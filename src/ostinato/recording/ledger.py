"""Every address and every Python value that a region's recordings depend on, checked before each
replay.

The check is one pass over all slots and addresses without a Python loop (``rawmemory``). What
changed is found only when something did.
"""

from __future__ import annotations

import gc
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from ostinato.recording import rawmemory
from ostinato.recording.survey import Slot, Survey, survey

MAX_VARIANTS = 256
"""Sets of values that are remembered; the one least recently returned to is forgotten first."""

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Generation(NamedTuple):
    """``epoch`` grows when a tensor moved (older recordings are dead); ``variant`` names a set of
    values.

    A module that toggles between training and evaluation returns to its former variant.
    """

    epoch: int
    variant: int


@dataclass(frozen=True)
class Snapshot:
    """Slots with their values, and what was in each mutable container."""

    slots: Sequence[Slot]
    contents: Sequence[tuple[Any, Any]]


class Ledger:
    """What the recordings of one callable read besides their static inputs.

    ``generation`` is the number of the present state; ``check`` brings it up to date. Any thread
    may check at any time.
    """

    def __init__(self, fn: Callable[..., Any], *, is_private: bool = False) -> None:
        self._fn = fn
        self._is_private = is_private
        self._extra: list[torch.Tensor] = []
        self._extra_slots: list[Slot] = []
        self._epoch = 0
        self._variants: dict[tuple[Any, ...], int] = {}
        self._numbers = count()
        self._lock = threading.RLock()
        self.changes: list[str] = []
        found = survey(fn)
        self.code_hash = found.code_hash()
        self._install(found)

    @property
    def generation(self) -> Generation:
        return self._watched.generation

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """Every tensor watched, each once."""
        return self._watched.tensors

    def check(self) -> Generation:
        """The present generation; a few microseconds for hundreds of tensors when
        nothing changed.
        """
        watched = self._watched
        if watched.is_unchanged():
            return watched.generation
        with self._lock:
            return self._watched.generation if self._watched.is_unchanged() else self._refresh()

    def requires_grad(self) -> bool:
        """True when any watched tensor requires a gradient."""
        return any(map(_requires_grad, self._watched.tensors))

    def watch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Also watch tensors that a probe saw being read and that the survey did not find.

        They are kept alive. The dictionary, list or cell that holds one, if any, becomes a slot, so
        that rebinding it is noticed.
        """
        with self._lock:
            known = self._watched.tensors
            identities = {id(t) for t in known}
            storages = {t.untyped_storage().data_ptr() for t in known}
            new = [
                t
                for t in tensors
                if id(t) not in identities and t.untyped_storage().data_ptr() not in storages
            ]
            if new:
                self._extra += new
                for tensor in new:
                    self._extra_slots += _owners(tensor, exclude=(new, self._extra, known))
                self._install(survey(self._fn))

    def snapshot(self) -> Snapshot:
        """The slots, their values and the contents of containers as of now, for ``revert``."""
        watched = self._watched
        return Snapshot(watched.slots, [(c, c.copy()) for c in watched.containers])

    def revert(self, snapshot: Snapshot) -> None:
        """Put back the Python values of a snapshot, in the places that still exist.

        Only what changed is assigned: most places are of classes and frozen objects.
        """
        for slot in snapshot.slots:
            present = _with_present_value(slot)
            if present is not None and present.value is slot.value:
                continue
            if slot.name is None:
                slot.owner.cell_contents = slot.value
            elif slot.holder is not None:
                setattr(slot.holder, slot.name, slot.value)
            elif isinstance(slot.owner, dict):
                slot.owner[slot.name] = slot.value
        for container, copy in snapshot.contents:
            container.clear()
            (container.extend if hasattr(container, "extend") else container.update)(copy)
        self.check()

    def _install(self, found: Survey) -> None:
        slots = [*found.slots, *self._extra_slots]
        held = {id(t): t for t in chain(found.tensors, self._extra)}
        held.update(
            (id(s.value), s.value)
            for s in slots
            if isinstance(s.value, torch.Tensor) and not is_lazy(s.value)
        )
        signature = tuple(_fingerprint(s.value) for s in slots)
        variant = self._variants.pop(signature, None)
        variant = next(self._numbers) if variant is None else variant
        self._variants[signature] = variant
        if len(self._variants) > MAX_VARIANTS:
            del self._variants[next(iter(self._variants))]
        self._watched = _Watched(
            list(held.values()),
            slots,
            found,
            Generation(self._epoch, variant),
            is_private=self._is_private,
        )

    def _refresh(self) -> Generation:
        before = self._watched
        present = [slot for slot in map(_with_present_value, self._extra_slots) if slot]
        found = survey(self._fn)
        old = {id(t) for t in before.tensors}
        lost = old - {id(t) for t in chain(found.tensors, self._extra)}
        if (
            lost
            or len(present) < len(self._extra_slots)
            or any(id(s.value) not in old for s in present)
            or not before.is_memory_unchanged()
        ):
            self._epoch += 1
            self._variants.clear()
            self._extra, self._extra_slots = [], []  # the next recording finds them again
        self._install(found)
        self.changes = list(_differences(before.slots, self._watched.slots))
        return self.generation


class _Watched:
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
        if is_private:
            self._values = _ValueWatch(
                [s for s in slots if isinstance(s.value, torch.Tensor)], [], []
            )
        else:
            sized = [*found.containers, *found.hook_dicts]
            self._values = _ValueWatch(slots, sized, found.namespaces)
        self._arrays = found.arrays
        self._elements = [a.tobytes() for a in found.arrays]

    def is_memory_unchanged(self) -> bool:
        """False when a tensor moved or an array's elements changed."""
        if self._arrays and [a.tobytes() for a in self._arrays] != self._elements:
            return False
        return not self.tensors or self._addresses.is_unchanged()

    def is_unchanged(self) -> bool:
        return self.is_memory_unchanged() and self._values.is_unchanged()


_requires_grad = operator.attrgetter("requires_grad")


def _with_present_value(slot: Slot) -> Slot | None:
    """None where the place is gone, as in a cache that was cleared."""
    try:
        if slot.name is None:
            value = slot.owner.cell_contents
        elif slot.owner is slot.holder:
            value = getattr(slot.owner, slot.name)
        else:
            value = slot.owner[slot.name]
    except (KeyError, IndexError, ValueError, AttributeError):
        return None
    return replace(slot, value=value)


class _ValueWatch:
    """The identities of the values in many slots, read again in bulk and compared.

    Also the length of each namespace, and of containers too large to read: an attribute that
    appears may hide a class's. An empty container costs next to nothing and shows when it is
    filled.
    """

    def __init__(
        self, slots: Sequence[Slot], containers: Sequence[Any], namespaces: Sequence[Any]
    ) -> None:
        by_owner: dict[int, list[Slot]] = {}
        for slot in slots:
            by_owner.setdefault(id(slot.owner), []).append(slot)
        self._picked: list[tuple[Callable[[Any], Any], Any]] = []
        bare = [c for c in containers if id(c) not in by_owner]
        self._whole = [c for c in bare if not c]
        self._sized = [c for c in bare if c]
        self._sized += [n for n in namespaces if id(n) not in by_owner]
        for group in by_owner.values():
            owner, names = group[0].owner, sorted({s.name for s in group}, key=repr)
            if owner is group[0].holder:
                self._picked.append((operator.attrgetter(*names, names[0]), owner))
            elif _is_read_whole(owner, len(names)):
                self._whole.append(owner)
            else:
                self._picked.append((operator.itemgetter(*names, names[0]), owner))
                self._sized.append(owner)
        self._reference, self._lengths = self._read()
        self._bytes = rawmemory.items_of(self._reference) if rawmemory.is_supported() else None

    def _read(self) -> tuple[list[Any], list[int]]:
        values = gc.get_referents(*self._whole) if self._whole else []
        values += chain.from_iterable([get(owner) for get, owner in self._picked])
        return values, list(map(len, self._sized))

    def is_unchanged(self) -> bool:
        try:
            values, lengths = self._read()
        except (KeyError, IndexError, AttributeError):
            return False
        if len(values) != len(self._reference) or lengths != self._lengths:
            return False
        if self._bytes is not None:
            return rawmemory.items_of(values) == self._bytes
        return all(map(operator.is_, values, self._reference))


def _is_read_whole(owner: Any, num_slots: int) -> bool:
    """Cells and sets always; what has items when the slots are all of them."""
    if isinstance(owner, (dict, list, tuple, deque)):
        return num_slots == len(owner)
    return not hasattr(owner, "keys")


def _fingerprint(value: Any) -> Any:
    """Equal for values that make the same recording: atoms by type and bits, all else by identity.

    What is in a container has slots of its own.
    """
    if isinstance(value, float):
        return (type(value), value.hex())
    if isinstance(value, complex):
        return (complex, value.real.hex(), value.imag.hex())
    if isinstance(value, _ATOMS):
        return (type(value), value)
    if type(value) in (tuple, list, dict, set, frozenset, deque):
        return (type(value), len(value))
    return _Identity(value)


class _Identity:
    """Equal only to the same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _differences(before: Sequence[Slot], after: Sequence[Slot]) -> Iterable[str]:
    olds = {(s.label, s.name): s for s in before}
    news = {(s.label, s.name): s for s in after}
    for key in dict.fromkeys([*olds, *news]):
        old, new = olds.get(key), news.get(key)
        if old is None or new is None:
            yield f"{key[0]} {'appeared' if old is None else 'is gone'}"
        elif _fingerprint(old.value) != _fingerprint(new.value):
            is_tensor = isinstance(new.value, torch.Tensor)
            yield (
                f"{key[0]}: another tensor"
                if is_tensor and isinstance(old.value, torch.Tensor)
                else f"{key[0]}: {_brief(old.value)} -> {_brief(new.value)}"
            )


def _brief(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, _ATOMS) else type(value).__qualname__


def _owners(tensor: torch.Tensor, exclude: Sequence[Any]) -> list[Slot]:
    """The dictionary items, list items and cells that hold ``tensor`` right now."""
    skipped = {id(e) for e in exclude}
    slots = []
    for holder in gc.get_referrers(tensor):
        if id(holder) in skipped:
            continue
        if isinstance(holder, dict):
            names = [k for k, v in holder.items() if v is tensor]
        elif isinstance(holder, list):
            names = [k for k, v in enumerate(holder) if v is tensor]
        elif type(holder).__name__ == "cell":
            names = [None]
        else:
            continue
        slots += [Slot(f"a {type(holder).__name__} item {k!r}", holder, k, tensor) for k in names]
    return slots
