"""Everything outside its arguments that a callable's code can read: the slots a recording depends
on.

A walk from the callable through modules, closures, named globals, attributes and small containers.
An attribute or a global counts only when reachable code can name it; where code asks for attributes
by computed names, all of them count. Installed packages are read for the names that their code
mentions; their globals are not watched. Libraries (torch, numpy, the standard library) are not
entered, except for the code of ``torch.nn`` layers, whose attributes are part of a model, and for
what their objects hold. ``docs/not-noticed.md`` lists what a walk cannot find.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from ostinato.recording import survey_values
from ostinato.recording.places import (
    Slot,
    Survey,
    attributes_of,
    is_foreign,
    is_installed,
    is_library,
    is_library_code,
    module_of,
)
from ostinato.recording.survey_code import modules_imported, names_of

MAX_CONTAINER_ITEMS = 4096
"""Larger containers have no slots; they are compared as a whole."""
MAX_VISITED_ITEMS = 65_536
MAX_SLOTS = 200_000
UNSET = object()
"""The value of a context variable that has none."""

_DYNAMIC_NAMES = {"getattr", "vars", "__dict__", "__getattribute__"}
_ENVIRONMENT_NAMES = {"environ", "getenv"}
_MODULE_MACHINERY = frozenset(torch.nn.Module().__dict__) - {"training"}
_HOOK_DICTS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOK_DICTS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_PLAIN = {*_CONTAINERS, OrderedDict, defaultdict}
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_SKIPPED_METHODS = {"__init__", "__new__", "__repr__", "__del__", "__init_subclass__", "__str__"}
_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
_ENDS = {bool, int, float, complex, str, bytes, type(None), torch.dtype, types.CodeType}
"""Values with nothing behind them."""


def survey(fn: Callable[..., Any], types_of_arguments: Iterable[type] = ()) -> Survey:
    """Walk from ``fn``, and from the classes of its arguments, whose methods it can call; see the
    module's docstring for what counts.
    """
    walker = _Walker()
    walker.visit(fn, "fn")
    for kind in types_of_arguments:
        walker.visit(kind, kind.__qualname__)
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
        self._classes: set[type] = {torch.nn.Module, object, type}
        self._has_modules = False

    def visit(self, value: Any, label: str) -> None:
        if id(value) not in self._seen and type(value) not in _ENDS:
            self._seen.add(id(value))
            self._alive.append(value)
            self._queue.append((value, label))

    def run(self) -> None:
        while self._queue:
            if len(self.result.slots) >= MAX_SLOTS:
                self.result.unwatched.append(f"more than {MAX_SLOTS} values")
                return
            self._expand(*self._queue.pop())

    def _expand(self, value: Any, label: str) -> None:
        if isinstance(value, torch.Tensor):
            if not is_lazy(value):  # a parameter without shape and memory yet
                self.result.tensors.append(value)
                self._named(attributes_of(value), label)
        elif isinstance(value, torch.nn.Module):
            self._module(value, label)
        elif isinstance(value, types.FunctionType):
            self._function(value, label)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__, label)
            self.visit(value.__self__, f"{label}.__self__")
        elif isinstance(value, types.BuiltinMethodType):
            if not isinstance(value.__self__, types.ModuleType):  # ``get = variable.get``
                self.visit(value.__self__, f"{label}.__self__")
        elif isinstance(value, functools.partial):
            for part, name in ((value.func, "func"), (value.args, "args"), (value.keywords, "kw")):
                self.visit(part, f"{label}.{name}")
        elif isinstance(value, property):
            self.visit(value.fget, label)
        elif isinstance(value, (classmethod, staticmethod)):
            self.visit(value.__func__, label)
        elif isinstance(value, _CONTAINERS):
            self._container(value, label)
        elif isinstance(value, types.ModuleType):
            if not is_foreign(value.__name__):
                self._named(vars(value), label)
        elif isinstance(value, type):
            self._class(value, label)
        elif isinstance(value, ContextVar):
            if not value.name.startswith("ostinato_"):
                self._slot(value, None, value.get(UNSET), label)
        elif survey_values.is_buffer(value):
            self._buffer(value, label)
        elif not is_library(module_of(type(value))) or isinstance(value, _NAMESPACES):
            self._object(value, label)
        else:
            self._library_object(value, label)

    def _buffer(self, value: Any, label: str) -> None:
        reason = survey_values.why_no_buffer(value)
        if reason is None:
            self.result.arrays.append(value)
        elif reason:
            self.result.unwatched.append(f"{label} is {reason}")

    def _library_object(self, value: Any, label: str) -> None:
        """What objects of libraries hold, where the library's code, which is not read, may read
        it.
        """
        if value is survey_values.environment():
            self._environment()
            return
        inner = survey_values.inner(value)
        if inner is not None:
            self.visit(inner, label)
            return
        reason = survey_values.why_unwatched(value)
        if reason is not None:
            self.result.unwatched.append(f"{label} is {reason}")
            return
        attributes = attributes_of(value)
        if not self._wrapper(attributes, label) and survey_values.is_read_whole(value):
            self.result.namespaces.append(attributes)
            self._named(attributes, label, is_whole=True)

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
        self.result.instances.append(value)
        self.result.namespaces.append(attributes)  # an empty one too: a name may hide a class's
        self._named(attributes, label)
        for base in type(value).__mro__:
            if is_library(module_of(base)):
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
        self.result.instances.append(module)
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
        meta: type = type(cls)
        for base in (*cls.__mro__, *meta.__mro__):
            if base in self._classes:
                continue
            self._classes.add(base)
            module = module_of(base)
            if module.startswith("torch.nn.modules") or not is_library(module):
                self._named(base.__dict__, base.__qualname__, skipped=_SKIPPED_METHODS, holder=base)

    def _function(self, fn: types.FunctionType, label: str) -> None:
        self._code(fn.__code__)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                self._slot(cell, None, cell.cell_contents, f"{label}.{name}")
            except ValueError:  # an empty cell
                continue
        if is_library(fn.__module__ or ""):
            return
        mentioned = set(names_of(fn.__code__))
        names = mentioned.intersection(fn.__globals__)
        if is_installed(fn.__module__ or ""):
            for name in names:
                value = fn.__globals__[name]
                if isinstance(value, (types.FunctionType, type)):
                    self.visit(value, f"{fn.__module__}.{name}")
            return
        self.result.functions.append(fn)
        for part in _FUNCTION_PARTS:
            self._slot(fn, part, getattr(fn, part), f"{label}.{part}", fn)
        self.result.namespaces.append(fn.__dict__)
        self._named(fn.__dict__, label)
        for name in names:
            self._slot(fn.__globals__, name, fn.__globals__[name], f"{fn.__module__}.{name}")
        for module in modules_imported(fn.__code__, fn.__globals__):
            self.visit(module, module.__name__)
        if mentioned & _ENVIRONMENT_NAMES:
            self.visit(survey_values.environment(), "os.environ")

    def _environment(self) -> None:
        """Watched, not used: whatever the callable reads of it."""
        held: dict[Any, Any] = attributes_of(survey_values.environment())["_data"]
        self.result.namespaces.append(held)
        for name, value in list(held.items()):
            self._slot(held, name, value, f"os.environ[{name!r}]")

    def _container(self, value: Any, label: str) -> None:
        """Items as they are stored: a subclass may make others when it is asked for them."""
        base: Any = next(b for b in _CONTAINERS if isinstance(value, b))
        items = list(dict.items(value) if base is dict else enumerate(base.__iter__(value)))
        if len(items) <= MAX_CONTAINER_ITEMS:
            if base not in (tuple, frozenset) and survey_values.is_stored(value):
                self.result.containers.append(value)
            for key, item in items:
                self._slot(value, key, item, f"{label}[{key!r}]")
        else:
            self._large(value, items, label)
        if type(value) not in _PLAIN:
            self._object(value, label)
        elif isinstance(value, defaultdict):
            self.visit(value.default_factory, f"{label}.default_factory")

    def _large(self, value: Any, items: list[tuple[Any, Any]], label: str) -> None:
        if not isinstance(value, (tuple, frozenset)):
            self.result.large.append(value)
        if len(items) > MAX_VISITED_ITEMS:
            if not isinstance(value, (dict, tuple, frozenset)):
                what = f"a {type(value).__qualname__} of {len(items)} items"
                self.result.unwatched.append(f"{label} is {what}, more than {MAX_VISITED_ITEMS}")
            return
        for _, item in items:
            self.visit(item, f"{label}[...]")

    def _named(
        self,
        owner: Mapping[str, Any],
        label: str,
        *,
        skipped: frozenset[str] | set[str] = frozenset(),
        holder: Any = None,
        is_whole: bool = False,
    ) -> None:
        """Slots for the names that code can mention, now or when code that does is found later."""
        for name, value in list(owner.items()):
            if name in skipped:
                continue
            is_special = name.startswith("__") and isinstance(value, types.FunctionType)
            if self._is_dynamic or is_special or is_whole or name in self._names:
                self._slot(owner, name, value, f"{label}.{name}", holder)
            else:
                self._waiting.setdefault(name, []).append((owner, label, holder))

    def _slot(self, owner: Any, name: Any, value: Any, label: str, holder: Any = None) -> None:
        is_theirs = isinstance(value, types.ModuleType) or (
            isinstance(holder, type) and is_foreign(module_of(holder))
        )
        if not (is_theirs and is_library_code(value)):
            self.result.slots.append(Slot(label, owner, name, value, holder))
        self.visit(value, label)

    def _code(self, code: types.CodeType) -> None:
        self.result.codes.append(code)
        new = {n for n in names_of(code) if n not in self._names}
        self._names |= new
        if new & _DYNAMIC_NAMES and not self._is_dynamic:
            self._is_dynamic = True
            new = set(self._waiting)
        for name in new:
            for owner, label, holder in self._waiting.pop(name, ()):
                if name in owner:
                    self._slot(owner, name, owner[name], f"{label}.{name}", holder)
