"""Python state that a callable can reach: what changed between two moments, and putting it back.

Attributes, globals, closures and containers, as ``survey`` finds them, plus the generators of
Python's ``random`` and of numpy. Tensors' memory is the tracker's business, not this file's.
"""

from __future__ import annotations

import random
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from ostinato.recording.places import Slot, Survey, attributes_of

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)  # others may compute what they hold


class Change(NamedTuple):
    """``names``: the attribute, global or container that changed, the most exact first."""

    label: str
    names: tuple[str, ...]
    detail: str


class PythonState:
    """A copy, one level deep each, of every container and attribute that ``fn`` can reach."""

    def __init__(self, fn: Callable[..., Any], found: Survey) -> None:
        self._owners: dict[int, tuple[str, Any, Any]] = {}
        self._generators: list[tuple[Any, Any]] = [
            (random.setstate, random.getstate()),
            (np.random.set_state, np.random.get_state()),
        ]
        for slot in found.slots:
            self._add(_prefix(slot), slot.owner)
            self._add_value(slot.label, slot.value)
        self._add_value("fn", fn)
        self._add_value("fn", getattr(fn, "__self__", None))

    def changes(self) -> Iterator[Change]:
        """What is not as it was copied."""
        for label, owner, copy in self._owners.values():
            yield from _changes(label, owner, copy)

    def restore(self) -> None:
        """Put everything back, and remove what was added."""
        for _, owner, copy in self._owners.values():
            if _is_same(owner, copy):
                continue
            if isinstance(owner, types.CellType):
                owner.cell_contents = copy
            elif isinstance(owner, list):
                owner[:] = copy
            elif isinstance(owner, set):
                owner.clear()
                owner.update(copy)
            else:
                _restore_dict(owner, copy)
        for put_back, state in self._generators:
            put_back(state)

    def _add_value(self, label: str, value: Any) -> None:
        if type(value) in _CONTAINERS:
            self._add(label, value)
        elif isinstance(value, random.Random):
            self._generators.append((value.setstate, value.getstate()))
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            self._generators.append((lambda s: setattr(bits, "state", s), bits.state))
        elif not isinstance(value, (type, types.ModuleType, torch.Tensor, types.FunctionType)):
            self._add(label, attributes_of(value))

    def _add(self, label: str, owner: Any) -> None:
        if id(owner) in self._owners:
            return
        if isinstance(owner, types.CellType):
            self._owners[id(owner)] = (label, owner, owner.cell_contents)
        elif type(owner) in _CONTAINERS:
            self._owners[id(owner)] = (label, owner, owner.copy())


def _prefix(slot: Slot) -> str:
    """The label of a slot's owner."""
    if slot.name is None:
        return slot.label
    if isinstance(slot.name, str) and slot.label.endswith(f".{slot.name}"):
        return slot.label[: -len(slot.name) - 1]
    return slot.label.rpartition("[")[0] or slot.label


def _restore_dict(owner: dict[Any, Any], copy: dict[Any, Any]) -> None:
    for name in owner.keys() - copy.keys():
        del owner[name]
    for name, value in copy.items():
        if name not in owner or owner[name] is not value:
            owner[name] = value


def _is_same(owner: Any, copy: Any) -> bool:
    if isinstance(owner, types.CellType):
        return bool(owner.cell_contents is copy)
    if isinstance(owner, set):
        return bool(owner == copy)
    if isinstance(owner, list):
        return len(owner) == len(copy) and all(map(lambda a, b: a is b, owner, copy))
    return owner.keys() == copy.keys() and all(owner[k] is v for k, v in copy.items())


def _changes(label: str, owner: Any, copy: Any) -> Iterator[Change]:
    last = label.rpartition(".")[2]
    if isinstance(owner, types.CellType):
        if not _is_equal(owner.cell_contents, copy):
            yield Change(label, (last,), _arrow(copy, owner.cell_contents))
    elif isinstance(owner, list):
        if len(owner) != len(copy):
            yield Change(label, (last,), f"{len(copy)} items -> {len(owner)}")
        else:
            for k, (old, new) in enumerate(zip(copy, owner, strict=True)):
                if not _is_equal(old, new):
                    yield Change(f"{label}[{k}]", (last,), _arrow(old, new))
    elif isinstance(owner, set):
        if owner != copy:
            yield Change(label, (last,), f"{len(copy)} items -> {len(owner)}")
    else:
        yield from _dict_changes(label, last, owner, copy)


def _dict_changes(
    label: str, last: str, owner: dict[Any, Any], copy: dict[Any, Any]
) -> Iterator[Change]:
    for name in [*copy, *(k for k in owner if k not in copy)]:
        if isinstance(name, str) and name.startswith("__"):
            continue
        is_name = isinstance(name, str) and name.isidentifier()
        shown = f"{label}.{name}" if is_name else f"{label}[{name!r}]"
        names = (str(name), last) if is_name else (last,)
        if name not in owner:
            yield Change(shown, names, "removed")
        elif name not in copy:
            yield Change(shown, names, "new")
        elif not _is_equal(copy[name], owner[name]):
            yield Change(shown, names, _arrow(copy[name], owner[name]))


def _is_equal(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, _ATOMS):
        return bool(old == new) or repr(old) == repr(new) == "nan"
    if type(old) in (tuple, list) and len(old) == len(new):
        return all(map(_is_equal, old, new))
    return False


def _arrow(old: Any, new: Any) -> str:
    return f"{_brief(old)} -> {_brief(new)}"


def _brief(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, _ATOMS) else f"a {type(value).__qualname__}"
