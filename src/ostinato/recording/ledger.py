"""Every address and every Python value that a region's recordings depend on, checked before each
replay.

``watched.py`` asks the quick question whether anything changed; what changed is found here, only
when something did.
"""

from __future__ import annotations

import gc
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ostinato.recording.places import Slot, Survey, is_library, module_of
from ostinato.recording.survey import UNSET, survey
from ostinato.recording.watched import (
    Generation,
    Watched,
    differences,
    fingerprint,
    with_present_value,
)

MAX_VARIANTS = 256
"""Sets of values that are remembered; the one least recently returned to is forgotten first."""


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
        self._types: dict[type, None] = {}
        self._extra: list[torch.Tensor] = []
        self._extra_slots: list[Slot] = []
        self._epoch = 0
        self._variants: dict[tuple[Any, ...], int] = {}
        self._numbers = count()
        self._lock = threading.RLock()
        self.changes: list[str] = []
        self.is_relied_on = False  # True once there is a recording
        self.is_pure = False  # True once a probe has shown that it writes and draws nothing
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

    @property
    def unwatched(self) -> Sequence[str]:
        """What the callable may read and this ledger cannot watch: place and reason."""
        return () if self._is_private else self._unwatched

    def check(self) -> Generation:
        """The present generation; a few microseconds for hundreds of tensors when
        nothing changed.
        """
        watched = self._watched
        if watched.is_unchanged():
            return watched.generation
        with self._lock:
            return self._watched.generation if self._watched.is_unchanged() else self._refresh()

    def is_held(self) -> bool:
        """True when what recordings read is still where it was, so that a replay harms nothing,
        though its result may be of a state that is past. A fraction of what ``check`` takes.
        """
        return self._watched.is_held()

    def requires_grad(self) -> bool:
        """True when any watched tensor requires a gradient."""
        return any(map(_requires_grad, self._watched.tensors))

    def learn(self, tensors: Iterable[torch.Tensor], kinds: Iterable[type] = ()) -> None:
        """Also watch what a trial call showed: tensors that the survey did not find, and the
        classes of arguments. Looks anew, since a call may have imported or made something.

        The tensors are kept alive. The dictionary, list or cell that holds one, if any, becomes a
        slot, so that rebinding it is noticed.
        """
        with self._lock:
            self._types.update({k: None for k in kinds if not is_library(module_of(k))})
            if not (self._is_private and self.is_relied_on):  # of our own code only tensors count
                self._extend()
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
                self._extend()

    def snapshot(self) -> Snapshot:
        """The slots, their values and the contents of containers as of now, for ``revert``."""
        watched = self._watched
        return Snapshot(watched.slots, [(c, c.copy()) for c in watched.containers])

    def revert(self, snapshot: Snapshot) -> None:
        """Put back the Python values of a snapshot, in the places that still exist.

        Only what changed is assigned: most places are of classes and frozen objects.
        """
        for slot in snapshot.slots:
            present = with_present_value(slot)
            if present is not None and present.value is slot.value:
                continue
            if isinstance(slot.owner, ContextVar):
                if slot.value is not UNSET:
                    slot.owner.set(slot.value)
            elif slot.name is None:
                slot.owner.cell_contents = slot.value
            elif slot.holder is not None:
                setattr(slot.holder, slot.name, slot.value)
            elif isinstance(slot.owner, dict):
                slot.owner[slot.name] = slot.value
        for container, copy in snapshot.contents:
            container.clear()
            (container.extend if hasattr(container, "extend") else container.update)(copy)
        self.check()

    def _extend(self) -> None:
        """Look anew. Before anything is recorded, to see more of a state is no change of it."""
        found, variant = survey(self._fn, self._types), None
        if not self.is_relied_on:
            variant = self.generation.variant
            self._variants.clear()
        self._install(found, variant)

    def _install(self, found: Survey, variant: int | None = None) -> None:
        slots = [*found.slots, *self._extra_slots]
        held = {id(t): t for t in chain(found.tensors, self._extra)}
        held.update(
            (id(s.value), s.value)
            for s in slots
            if isinstance(s.value, torch.Tensor) and not is_lazy(s.value)
        )
        kinds = map(type, found.instances)
        signature = (*[fingerprint(s.value) for s in slots], *kinds)
        variant = self._variants.pop(signature, variant)
        variant = next(self._numbers) if variant is None else variant
        self._variants[signature] = variant
        if len(self._variants) > MAX_VARIANTS:
            del self._variants[next(iter(self._variants))]
        self._unwatched = tuple(dict.fromkeys(found.unwatched))
        self._watched = Watched(
            list(held.values()),
            slots,
            found,
            Generation(self._epoch, variant),
            is_private=self._is_private,
        )

    def _refresh(self) -> Generation:
        before = self._watched
        present = [slot for slot in map(with_present_value, self._extra_slots) if slot]
        found = survey(self._fn, self._types)
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
        self.changes = list(differences(before.slots, self._watched.slots))
        return self.generation


_requires_grad = operator.attrgetter("requires_grad")


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
