"""What a survey finds: the places values are read from, and what of them cannot be watched.

Also which code belongs to libraries, whose modules, classes and functions nobody rebinds.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import torch

_OWN = ("ostinato.recording", "ostinato.state", "ostinato.kernels")
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "triton", "builtins"}


@dataclass(frozen=True, slots=True)
class Slot:
    """One place a value is read from: ``owner[name]``; a cell's or a context variable's contents
    have no name.

    ``holder`` is the object whose attribute it is, where ``owner`` cannot be assigned to: a
    class, or an object with ``__slots__`` or a function (then ``owner`` is that object itself).
    """

    label: str
    owner: Any
    name: Any
    value: Any
    holder: Any = None


@dataclass
class Survey:
    """The slots of one callable, and the tensors in them (each once, in order of discovery).

    ``containers`` are the mutable ones, empty ones too; ``large`` those with too many items for
    slots. ``namespaces`` are dictionaries of attributes: a name that appears there may hide a
    class's. ``arrays`` are small buffers whose elements Python can read. ``functions`` and
    ``instances`` can be given other code and another class. ``unwatched`` says what the callable
    may read and nobody can watch: place and reason.
    """

    slots: list[Slot] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    hook_dicts: list[dict[Any, Any]] = field(default_factory=list)
    codes: list[types.CodeType] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    large: list[Any] = field(default_factory=list)
    namespaces: list[Any] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    functions: list[types.FunctionType] = field(default_factory=list)
    instances: list[Any] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)

    def code_hash(self) -> str:
        """Changes when any code that the callable can reach changes."""
        parts = {
            f"{c.co_qualname} {c.co_code.hex()} {c.co_names} {c.co_varnames}" for c in self.codes
        }
        return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:16]


def attributes_of(value: Any) -> dict[str, Any]:
    """An object's own attributes. Not ``getattr``: an object that imports or computes what it is
    asked for must not do so here.
    """
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def is_library(module: str) -> bool:
    """True for torch, numpy, triton, the standard library, the recorder itself, and the operators:
    they choose by tables of their own, whose generation is a part of every key.
    """
    root = module.partition(".")[0]
    return root in _LIBRARIES or module.startswith(_OWN)


@functools.cache
def is_installed(module: str) -> bool:
    """True for a module of an installed package. Its code is read for the names it mentions, since
    models' attributes are read there; its own globals are what nobody rebinds between two calls.
    """
    found = sys.modules.get(module.partition(".")[0])
    path = str(getattr(found, "__file__", None) or "").replace("\\", "/")
    return "/site-packages/" in path or "/dist-packages/" in path


def is_foreign(module: str) -> bool:
    """True for whatever is not the user's own code."""
    return is_library(module) or is_installed(module)


def module_of(kind: type) -> str:
    """The module that defines a class. Extension types (Cython's functions) can hide theirs behind
    a descriptor: they count as built in.
    """
    module = kind.__module__
    return module if isinstance(module, str) else "builtins"


def is_library_code(value: Any) -> bool:
    """Modules, classes and functions of libraries: what nobody rebinds between two calls."""
    if isinstance(value, types.ModuleType):
        return is_foreign(value.__name__)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        module = module_of(value) if isinstance(value, type) else value.__module__
        return is_foreign(module or "builtins")
    return False
