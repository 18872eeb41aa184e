"""Everything outside its arguments that a callable's code can read: the slots a recording depends
on.

A walk from the callable through modules, closures, named globals, attributes and small containers.
An attribute or a global counts only when reachable code can name it; where code asks for attributes
by computed names, all of them count. Installed packages are read for the names that their code
mentions; their globals are not watched. Libraries (torch, numpy, the standard library) are not
entered, except for the code of ``torch.nn`` layers, whose attributes are part of a model.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

MAX_CONTAINER_ITEMS = 4096
"""Of larger containers only the length is watched: reading them would cost more than the replay."""
MAX_ARRAY_BYTES = 65536
MAX_SLOTS = 200_000

_STORED = (dict, OrderedDict, list, tuple, set, frozenset, deque)
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "triton", "builtins"}
_OWN = ("ostinato.recording", "ostinato.state", "ostinato.kernels")
"""Operators choose by tables of their own, whose generation is a part of every key."""

_DYNAMIC_NAMES = {"getattr", "vars", "__dict__", "__getattribute__"}
_MODULE_MACHINERY = frozenset(torch.nn.Module().__dict__) - {"training"}
_HOOK_DICTS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOK_DICTS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_SKIPPED_METHODS = {"__init__", "__new__", "__repr__", "__del__", "__init_subclass__", "__str__"}


@dataclass(frozen=True, slots=True)
class Slot:
    """One place a value is read from: ``owner[name]``, or a cell's contents (``name`` is None).

    ``holder`` is the object whose attribute it is, where ``owner`` cannot be assigned to: a
    class, or an object with ``__slots__`` (then ``owner`` is that object itself).
    """

    label: str
    owner: Any
    name: Any
    value: Any
    holder: Any = None


@dataclass
class Survey:
    """The slots of one callable, and the tensors in them (each once, in order of discovery).

    ``containers`` are the mutable ones, empty ones too. ``namespaces`` are dictionaries of
    attributes: a name that appears there may hide a class's. ``arrays`` are small numpy arrays,
    whose elements Python can read.
    """

    slots: list[Slot] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    hook_dicts: list[dict[Any, Any]] = field(default_factory=list)
    codes: list[types.CodeType] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    namespaces: list[Any] = field(default_factory=list)
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def code_hash(self) -> str:
        """Changes when any code that the callable can reach changes."""
        parts = {
            f"{c.co_qualname} {c.co_code.hex()} {c.co_names} {c.co_varnames}" for c in self.codes
        }
        return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:16]


def survey(fn: Callable[..., Any]) -> Survey:
    """Walk from ``fn``; see the module's docstring for what counts."""
    walker = _Walker()
    walker.visit(fn, "fn")
    walker.run()
    return walker.result


class _Walker:
    def __init__(self) -> None:
        self.result = Survey()
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # what _seen refers to must not be freed during the walk
        self._queue: list[tuple[Any, str]] = []
        self._names: set[str] = {"forward"}
        self._waiting: dict[str, list[tuple[Any, str, Any]]] = {}
        self._is_dynamic = False
        self._classes: set[type] = {torch.nn.Module, object}
        self._has_modules = False

    def visit(self, value: Any, label: str) -> None:
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._alive.append(value)
            self._queue.append((value, label))

    def run(self) -> None:
        while self._queue and len(self.result.slots) < MAX_SLOTS:
            self._expand(*self._queue.pop())

    def _expand(self, value: Any, label: str) -> None:
        if isinstance(value, torch.Tensor):
            if not is_lazy(value):  # a parameter without shape and memory yet
                self.result.tensors.append(value)
        elif isinstance(value, torch.nn.Module):
            self._module(value, label)
        elif isinstance(value, types.FunctionType):
            self._function(value, label)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__, label)
            self.visit(value.__self__, f"{label}.__self__")
        elif isinstance(value, functools.partial):
            for part, name in ((value.func, "func"), (value.args, "args"), (value.keywords, "kw")):
                self.visit(part, f"{label}.{name}")
        elif isinstance(value, property):
            self.visit(value.fget, label)
        elif isinstance(value, (classmethod, staticmethod)):
            self.visit(value.__func__, label)
        elif isinstance(value, _CONTAINERS) and _is_stored(value):
            self._container(value, label)
        elif isinstance(value, np.ndarray):
            if value.nbytes <= MAX_ARRAY_BYTES:
                self.result.arrays.append(value)
        elif isinstance(value, types.ModuleType):
            if not (_is_library(value.__name__) or _is_installed(value.__name__)):
                self._named(vars(value), label)
        elif isinstance(value, type):
            self._class(value, label)
        elif not _is_library(type(value).__module__) or isinstance(value, _NAMESPACES):
            self._object(value, label)
        else:
            self._wrapper(attributes_of(value), label)

    def _wrapper(self, attributes: dict[str, Any], label: str) -> bool:
        """Visit what ``functools.cache`` and its like wrap; False for other objects."""
        wrapped = attributes.get("__wrapped__")
        if callable(wrapped):
            self.visit(wrapped, label)
            return True
        return False

    def _object(self, value: Any, label: str) -> None:
        attributes = attributes_of(value)
        if self._wrapper(attributes, label):
            return
        if attributes:
            self.result.namespaces.append(attributes)
            self._named(attributes, label)
        for base in type(value).__mro__:
            if _is_library(base.__module__):
                continue
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):  # not set yet
                        self._slot(value, name, getattr(value, name), f"{label}.{name}", value)
        self._class(type(value), f"type({label})")

    def _module(self, module: torch.nn.Module, label: str) -> None:
        if not self._has_modules:
            self._has_modules = True
            for name in _GLOBAL_HOOK_DICTS:
                self._hooks(getattr(torch_module, name), name)
        for part in (module._parameters, module._buffers, module._modules):
            for name, value in part.items():
                self._slot(part, name, value, f"{label}.{name}")
        for name in _HOOK_DICTS:
            self._hooks(module.__dict__[name], f"{label}.{name}")
        self.result.namespaces.append(module.__dict__)
        self._named(module.__dict__, label, skipped=_MODULE_MACHINERY)
        self._class(type(module), f"type({label})")

    def _hooks(self, hooks: dict[Any, Any], label: str) -> None:
        self.result.hook_dicts.append(hooks)
        for key, hook in hooks.items():
            self._slot(hooks, key, hook, f"{label}[{key}]")

    def _class(self, cls: type, label: str) -> None:
        for base in cls.__mro__:
            if base in self._classes:
                continue
            self._classes.add(base)
            if base.__module__.startswith("torch.nn.modules") or not _is_library(base.__module__):
                self._named(base.__dict__, base.__qualname__, skipped=_SKIPPED_METHODS, holder=base)

    def _function(self, fn: types.FunctionType, label: str) -> None:
        self._code(fn.__code__)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                self._slot(cell, None, cell.cell_contents, f"{label}.{name}")
            except ValueError:  # an empty cell
                continue
        if not _is_library(fn.__module__ or ""):
            if fn.__defaults__:
                self._slot(fn, "__defaults__", fn.__defaults__, f"{label} defaults", fn)
            if fn.__kwdefaults__:
                self.visit(fn.__kwdefaults__, f"{label} defaults")
            names = set(_names_of(fn.__code__)).intersection(fn.__globals__)
            is_installed = _is_installed(fn.__module__ or "")
            for name in names:
                value = fn.__globals__[name]
                if not is_installed:
                    self._slot(fn.__globals__, name, value, f"{fn.__module__}.{name}")
                elif isinstance(value, (types.FunctionType, type)):
                    self.visit(value, f"{fn.__module__}.{name}")

    def _container(self, value: Any, label: str) -> None:
        if not isinstance(value, (tuple, frozenset)):
            self.result.containers.append(value)
        if len(value) > MAX_CONTAINER_ITEMS:
            return
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in list(items):
            self._slot(value, key, item, f"{label}[{key!r}]")

    def _named(
        self,
        owner: Mapping[str, Any],
        label: str,
        *,
        skipped: frozenset[str] | set[str] = frozenset(),
        holder: Any = None,
    ) -> None:
        """Slots for the names that code can mention, now or when code that does is found later."""
        for name, value in list(owner.items()):
            if name in skipped:
                continue
            is_special = name.startswith("__") and isinstance(value, types.FunctionType)
            if self._is_dynamic or is_special or name in self._names:
                self._slot(owner, name, value, f"{label}.{name}", holder)
            else:
                self._waiting.setdefault(name, []).append((owner, label, holder))

    def _slot(self, owner: Any, name: Any, value: Any, label: str, holder: Any = None) -> None:
        if not _is_library_code(value):
            self.result.slots.append(Slot(label, owner, name, value, holder))
        self.visit(value, label)

    def _code(self, code: types.CodeType) -> None:
        self.result.codes.append(code)
        new = {n for n in _names_of(code) if n not in self._names}
        self._names |= new
        if new & _DYNAMIC_NAMES and not self._is_dynamic:
            self._is_dynamic = True
            new = set(self._waiting)
        for name in new:
            for owner, label, holder in self._waiting.pop(name, ()):
                if name in owner:
                    self._slot(owner, name, owner[name], f"{label}.{name}", holder)


def _names_of(code: types.CodeType) -> Iterator[str]:
    """Names and string constants of a code object and of the functions defined inside it."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, str):
            yield const
        elif isinstance(const, types.CodeType):
            yield from _names_of(const)


def attributes_of(value: Any) -> dict[str, Any]:
    """An object's own attributes. Not ``getattr``: an object that imports or computes what it is
    asked for must not do so here.
    """
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_stored(container: Any) -> bool:
    """False for a container that makes its items when asked (transformers' lazy mappings)."""
    return all(
        getattr(type(container), name, None) in [getattr(base, name, None) for base in _STORED]
        for name in ("__iter__", "__getitem__", "items")
    )


def _is_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root in _LIBRARIES or module.startswith(_OWN)


@functools.cache
def _is_installed(module: str) -> bool:
    """True for a module of an installed package. Its code is read for the names it mentions, since
    models' attributes are read there; its own globals are what nobody rebinds between two calls.
    """
    found = sys.modules.get(module.partition(".")[0])
    path = str(getattr(found, "__file__", None) or "").replace("\\", "/")
    return "/site-packages/" in path or "/dist-packages/" in path


def _is_library_code(value: Any) -> bool:
    """Modules, classes and functions of libraries: what nobody rebinds between two calls."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
    elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        name = value.__module__ or "builtins"
    else:
        return False
    return _is_library(name) or _is_installed(name)
