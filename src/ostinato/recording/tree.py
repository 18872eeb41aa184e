"""Nested arguments and results taken apart into tensors and an exact, hashable structure.

Containers: tuple, list, dict, named tuple, dataclass (also a dataclass that is a dict, as
transformers' results are). Everything else is an atom that enters the structure with its type and
exact bits, or an ``UnkeyableArgument``. Nothing is ever keyed by ``id()``.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import torch

from ostinato.errors import UnkeyableArgument


class _Leaf:
    """Where a tensor stands in a structure."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


LEAF: Final = _Leaf("*")
PARAMETER: Final = _Leaf("parameter *")
Structure = Hashable

_TENSOR_TYPES: Final = (torch.Tensor, torch.nn.Parameter)

_IDENTITY_ATOMS: Final = (
    type(None),
    bool,
    int,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(Ellipsis),
    torch.Generator,  # compared by identity; the key keeps it alive
)


def flatten(value: Any, tensors: list[torch.Tensor], path: str = "argument") -> Structure:
    """Append the tensors of ``value`` in order and return the structure of the rest.

    Raises ``UnkeyableArgument`` that names the path and the type of what has no place in a key.
    """
    kind = type(value)
    if kind in _TENSOR_TYPES:
        tensors.append(value)
        return LEAF if kind is torch.Tensor else PARAMETER
    if kind is tuple or kind is list:
        return (kind, tuple([flatten(v, tensors, path) for v in value]))
    if kind in _IDENTITY_ATOMS:
        return (kind, value)
    if kind is float:
        return (float, struct.pack("<d", value))
    return _flatten_rare(value, kind, tensors, path)


def _flatten_rare(value: Any, kind: type, tensors: list[torch.Tensor], path: str) -> Structure:
    if kind is dict:
        return (
            dict,
            tuple(
                [
                    (_flatten_name(k, path), flatten(v, tensors, f"{path}[{k!r}]"))
                    for k, v in value.items()
                ]
            ),
        )
    if dataclasses.is_dataclass(kind):
        _require_nothing_else(value, kind, path)
        return (
            kind,
            tuple(
                [
                    (f.name, flatten(getattr(value, f.name), tensors, f"{path}.{f.name}"))
                    for f in dataclasses.fields(kind)
                    if hasattr(value, f.name)
                ]
            ),
        )
    if isinstance(value, tuple) and hasattr(kind, "_fields") and not getattr(value, "__dict__", 0):
        return (kind, tuple([flatten(v, tensors, path) for v in value]))
    if kind is torch.Size:
        return (torch.Size, tuple(value))
    if kind is complex:
        return (complex, struct.pack("<dd", value.real, value.imag))
    if isinstance(value, enum.Enum):
        return (kind, value.name, flatten(value.value, tensors, path))
    if kind is slice:
        return (slice, flatten((value.start, value.stop, value.step), tensors, path))
    if kind is range:
        return (range, (value.start, value.stop, value.step))
    raise UnkeyableArgument(_unkeyable(value, kind, path))


def _require_nothing_else(value: Any, kind: type, path: str) -> None:
    """What a dataclass holds beside its fields would be lost without a word."""
    names = {f.name for f in dataclasses.fields(kind)}
    held = {*getattr(value, "__dict__", ()), *(value if isinstance(value, dict) else ())}
    if not held <= names:
        raise UnkeyableArgument(
            f"{path} is a {kind.__qualname__} that holds {sorted(map(str, held - names))} beside "
            "its fields; expected nothing but its fields"
        )


def _flatten_name(name: Any, path: str) -> Hashable:
    if type(name) in (str, int, bool, bytes):
        return (type(name), name)
    raise UnkeyableArgument(
        f"{path} has a dictionary key {name!r} of type {type(name).__qualname__}; "
        "expected str, int, bool or bytes"
    )


def _unkeyable(value: Any, kind: type, path: str) -> str:
    if isinstance(value, torch.Tensor):
        return (
            f"{path} is a {kind.__module__}.{kind.__qualname__}, a tensor subclass; "
            "expected a plain torch.Tensor"
        )
    return (
        f"{path} is of type {kind.__module__}.{kind.__qualname__}, which has no exact place in a "
        "key; expected tensors, numbers, strings, None, dtypes, devices, enums, generators, or "
        "tuples, lists, dicts and dataclasses of them"
    )


def rebuilder(value: Any) -> Callable[[Sequence[Any]], Any]:
    """A function that builds a value shaped like ``value`` from new tensors in flatten's order.

    Atoms come back as they are in ``value``. The common results, one tensor and a tuple of
    tensors, are fast.
    """
    if type(value) in _TENSOR_TYPES:
        return _first
    if type(value) is tuple and value and all(type(v) in _TENSOR_TYPES for v in value):
        return tuple
    shape = skeleton(value)
    return lambda leaves: _rebuild(shape, iter(leaves))


def skeleton(value: Any) -> Any:
    """The same value with an empty tensor in each tensor's place, so that it keeps no memory
    alive.
    """
    return _rebuild(value, repeat(torch.empty(0)))


def _first(leaves: Sequence[Any]) -> Any:
    return leaves[0]


def _rebuild(value: Any, leaves: Iterator[Any]) -> Any:
    kind = type(value)
    if kind in _TENSOR_TYPES:
        return next(leaves)
    if kind is tuple or kind is list:
        return kind([_rebuild(v, leaves) for v in value])
    if kind is dict:
        return {k: _rebuild(v, leaves) for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return _rebuild_dataclass(value, kind, leaves)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return kind(*[_rebuild(v, leaves) for v in value])
    return value


def _rebuild_dataclass(value: Any, kind: type, leaves: Iterator[Any]) -> Any:
    fields = {
        f.name: _rebuild(getattr(value, f.name), leaves)
        for f in dataclasses.fields(kind)
        if hasattr(value, f.name)
    }
    if issubclass(kind, dict):
        return kind(**fields)
    made = object.__new__(kind)
    for name, field in fields.items():
        object.__setattr__(made, name, field)
    return made


def leaves(structure: Structure) -> Iterator[Structure]:
    """``LEAF`` or ``PARAMETER`` for each tensor, in order."""
    if isinstance(structure, _Leaf):
        yield structure
    elif isinstance(structure, tuple):
        for part in structure:
            yield from leaves(part)


def kinds(structure: Structure) -> Iterator[type]:
    """The classes of dataclasses, named tuples and enums in a structure: their methods are code
    that the callable can reach.
    """
    if isinstance(structure, tuple):
        if structure and isinstance(structure[0], type):
            yield structure[0]
        for part in structure:
            yield from kinds(part)


def describe(structure: Structure) -> str:
    """A short printable form of a structure: ``(*, {'scale': 2.0}, 3)``."""
    if isinstance(structure, _Leaf):
        return repr(structure)
    if not (
        isinstance(structure, tuple) and len(structure) == 2 and isinstance(structure[0], type)
    ):
        return repr(structure)
    kind, content = structure
    if kind is tuple or kind is list:
        inside = ", ".join(describe(c) for c in content)
        return f"({inside})" if kind is tuple else f"[{inside}]"
    if kind is float:
        return repr(struct.unpack("<d", content)[0])
    if kind is dict:
        return "{" + ", ".join(f"{k[1]!r}: {describe(v)}" for k, v in content) + "}"
    if dataclasses.is_dataclass(kind):
        fields = ", ".join(f"{n}={describe(v)}" for n, v in content)
        return f"{getattr(kind, '__qualname__', kind)}({fields})"
    if kind in _IDENTITY_ATOMS:
        return repr(content)
    return f"{kind.__name__}({content!r})"
