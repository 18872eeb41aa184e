"""The operators of one run, and where two runs of the same callable part.

Operators are compared with every argument that is not a tensor, and tensors by dtype and shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ostinato.recording.calls import Call


class Operation(NamedTuple):
    name: str
    signature: tuple[str, ...]
    location: str | None


class Difference(NamedTuple):
    """``is_branch``: other operators were run from here on; otherwise one argument differs."""

    is_branch: bool
    detail: str
    location: str | None


def operation(call: Call, location: str | None) -> Operation:
    values = [*call.args, *(f for pair in sorted(call.kwargs.items()) for f in pair)]
    return Operation(call.name, tuple(_described(v) for v in values), location)


def differences(first: Sequence[Operation], second: Sequence[Operation]) -> Iterator[Difference]:
    """Every argument that differs, up to the first operator that is not the same."""
    for a, b in zip(first, second, strict=False):
        if a.name != b.name or a.location != b.location:
            where = a.location if len(first) > len(second) else b.location
            yield Difference(True, f"running {a.name} in one call and {b.name} in another", where)
            return
        if a.signature != b.signature:
            yield Difference(False, _argument(a, b), a.location)
    if len(first) != len(second):
        longer = first if len(first) > len(second) else second
        extra = longer[min(len(first), len(second))]
        yield Difference(True, f"running {extra.name} in one call only", extra.location)


def branch(first: Sequence[Operation], second: Sequence[Operation]) -> Difference | None:
    """The first operator that is not the same, whatever the arguments."""
    return next((d for d in differences(first, second) if d.is_branch), None)


def _argument(a: Operation, b: Operation) -> str:
    pairs = [(x, y) for x, y in zip(a.signature, b.signature, strict=False) if x != y]
    if not pairs:
        return f"another number of arguments of {a.name}"
    return f"an argument of {a.name}, {pairs[0][0]} in one call and {pairs[0][1]} in another,"


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_described, value))}]"
    if isinstance(value, torch.Generator):
        return "generator"
    return repr(value)
