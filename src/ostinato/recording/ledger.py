"""Every address and every Python value that a region's recordings depend on, checked before each
replay.

The check is one pass over all slots and addresses without a Python loop (``rawmemory``). What
changed is found only when something did.
"""

from __future__ import annotations

import gc
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from ostinato.recording import rawmemory
from ostinato.recording.survey import Slot, Survey, survey

MAX_VARIANTS = 64
"""Sets of Python values told apart at one time; a value that changes with each call makes many."""

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Generation(NamedTuple):
    """``epoch`` grows when a tensor moved (older recordings are dead); ``variant`` names a set of
    values.

    A module that toggles between training and evaluation returns to its former variant.
    """

    epoch: int
    variant: int


class Ledger:
    """What the recordings of one callable read besides their static inputs.

    ``generation`` is the number of the present state; ``check`` brings it up to date.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._extra: list[torch.Tensor] = []
        self._extra_slots: list[Slot] = []
        self._epoch = 0
        self._variants: dict[tuple[Any, ...], int] = {}
        self.changes: list[str] = []
        found = survey(fn)
        self.code_hash = found.code_hash()
        self._install(found)

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """Every tensor watched, each once."""
        return self._tensors

    def check(self) -> Generation:
        """The present generation; a few microseconds for hundreds of tensors when nothing
        changed.
        """
        if (
            (not self._tensors or self._addresses.is_unchanged())
            and self._values.is_unchanged()
            and not any(self._idle_hooks)
        ):
            return self.generation
        return self._refresh()

    def requires_grad(self) -> bool:
        """True when any watched tensor requires a gradient."""
        return any(t.requires_grad for t in self._tensors)

    def watch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Also watch tensors that a probe saw being read and that the survey did not find.

        They are kept alive. The dictionary, list or cell that holds one, if any, becomes a slot, so
        that rebinding it is noticed.
        """
        known = {id(t) for t in self._tensors}
        storages = {t.untyped_storage().data_ptr() for t in self._tensors}
        new = [
            t
            for t in tensors
            if id(t) not in known and t.untyped_storage().data_ptr() not in storages
        ]
        if new:
            self._extra += new
            for tensor in new:
                self._extra_slots += _owners(tensor, exclude=(new, self._extra, self._tensors))
            self._install(survey(self._fn))

    def snapshot(self) -> dict[tuple[str, Any], Slot]:
        """The slots and their values as of the last check, for ``revert``."""
        return dict(self._slots)

    def revert(self, snapshot: Mapping[tuple[str, Any], Slot]) -> None:
        """Put back the Python values of a snapshot, in the slots that still exist."""
        for slot in snapshot.values():
            if slot.name is None:
                slot.owner.cell_contents = slot.value
            elif isinstance(slot.owner, dict) or (
                isinstance(slot.owner, list) and slot.name < len(slot.owner)
            ):
                slot.owner[slot.name] = slot.value
        lengths = Counter(id(s.owner) for s in snapshot.values() if isinstance(s.owner, list))
        for slot in snapshot.values():
            if isinstance(slot.owner, list):
                del slot.owner[lengths[id(slot.owner)] :]
        self._refresh()

    def _install(self, found: Survey) -> None:
        slots = [*found.slots, *self._extra_slots]
        self._slots = {(slot.label, slot.name): slot for slot in slots}
        held = {id(t): t for t in chain(found.tensors, self._extra)}
        held.update((id(s.value), s.value) for s in slots if isinstance(s.value, torch.Tensor))
        self._tensors = list(held.values())
        self._addresses = rawmemory.AddressWatch(self._tensors)
        self._values = _ValueWatch(slots)
        self._idle_hooks = [hooks for hooks in found.hook_dicts if not hooks]
        signature = tuple(_fingerprint(s.value) for s in self._slots.values())
        if signature not in self._variants and len(self._variants) >= MAX_VARIANTS:
            self._epoch += 1
            self._variants.clear()
        variant = self._variants.setdefault(signature, len(self._variants))
        self.generation = Generation(self._epoch, variant)

    def _refresh(self) -> Generation:
        before, moved = self._slots, not self._addresses.is_unchanged()
        old = {id(t) for t in self._tensors}
        self._extra_slots = [_with_present_value(slot) for slot in self._extra_slots]
        found = survey(self._fn)
        tensors = {id(t) for t in found.tensors}
        lost = old - tensors - {id(t) for t in self._extra}
        if moved or lost or any(id(s.value) not in old for s in self._extra_slots):
            self._epoch += 1
            self._variants.clear()
        self._install(found)
        self.changes = list(_differences(before, self._slots))
        return self.generation


def _with_present_value(slot: Slot) -> Slot:
    try:
        value = slot.owner.cell_contents if slot.name is None else slot.owner[slot.name]
    except (KeyError, IndexError, ValueError):
        value = None
    return Slot(slot.label, slot.owner, slot.name, value)


class _ValueWatch:
    """The identities of the values in many slots, read again in bulk and compared."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        by_owner: dict[int, list[Slot]] = {}
        for slot in slots:
            by_owner.setdefault(id(slot.owner), []).append(slot)
        self._whole: list[Any] = []
        self._picked: list[tuple[Callable[[Any], Any], Any]] = []
        for group in by_owner.values():
            owner = group[0].owner
            if _is_read_whole(owner, len(group)):
                self._whole.append(owner)
            else:
                names = sorted({s.name for s in group}, key=repr)
                self._picked.append((operator.itemgetter(*names, names[0]), owner))
        self._reference = self._read()
        self._bytes = rawmemory.items_of(self._reference) if rawmemory.is_supported() else None

    def _read(self) -> list[Any]:
        values = gc.get_referents(*self._whole) if self._whole else []
        values += chain.from_iterable([get(owner) for get, owner in self._picked])
        return values

    def is_unchanged(self) -> bool:
        try:
            values = self._read()
        except (KeyError, IndexError):
            return False
        if len(values) != len(self._reference):
            return False
        if self._bytes is not None:
            return rawmemory.items_of(values) == self._bytes
        return all(map(operator.is_, values, self._reference))


def _is_read_whole(owner: Any, num_slots: int) -> bool:
    """Cells always; dictionaries and lists when the slots are (nearly) all of their items."""
    if isinstance(owner, (dict, list)):
        return num_slots == len(owner)
    return not hasattr(owner, "keys")


def _fingerprint(value: Any) -> Any:
    """Equal for values that make the same recording: atoms by type and bits, all else by
    identity.
    """
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, float):
        return (float, value.hex())
    if isinstance(value, _ATOMS):
        return (type(value), value)
    if isinstance(value, (tuple, list, dict, set, frozenset)):
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


def _differences(
    before: dict[tuple[str, Any], Slot], after: dict[tuple[str, Any], Slot]
) -> Iterable[str]:
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            yield f"{key[0]} {'appeared' if old is None else 'is gone'}"
        elif _fingerprint(old.value) != _fingerprint(new.value):
            yield f"{key[0]}: {_brief(old.value)} -> {_brief(new.value)}"
        elif isinstance(old.value, torch.Tensor) and old.value is not new.value:
            yield f"{key[0]}: another tensor"


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
