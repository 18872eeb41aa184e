"""What a tape repeats at a replay: operators, and direct calls between pieces.

An entry keeps aliases of the recorded tensors, so that later changes of shape in place do not reach
it, and copies results that are new memory to where they were when they were recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from ostinato.recording.calls import tensors_in
from ostinato.recording.rules import RULES, Finding


class Entry(Protocol):
    """One step of a replay."""

    def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where result ``position`` of an operator has its fixed address.

    ``is_whole`` copies the storage byte by byte, for results that overlap themselves or each other.
    """

    position: int
    tensor: torch.Tensor
    is_whole: bool

    def take(self, result: torch.Tensor) -> None:
        if not self.is_whole:
            self.tensor.copy_(result)
        elif result.untyped_storage().nbytes() == self.tensor.untyped_storage().nbytes():
            self.tensor.untyped_storage().copy_(result.untyped_storage())
        else:
            raise RuntimeError(
                f"result {self.position} holds {result.untyped_storage().nbytes()} bytes, "
                f"{self.tensor.untyped_storage().nbytes()} were recorded"
            )


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One operator below autograd, with its recorded arguments."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: tuple[Target, ...]

    def run(self) -> None:
        result = self.func(*self.args, **self.kwargs)
        if self.targets:
            results = list(tensors_in(result))
            for target in self.targets:
                target.take(results[target.position])


@dataclass(frozen=True, slots=True)
class DirectEntry:
    """A direct call between two pieces. ``kept`` has a tensor for each result that is
    new memory.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    leaves: tuple[Any, ...]
    kept: tuple[torch.Tensor | None, ...]
    structure: pytree.TreeSpec
    location: str | None

    def run(self) -> None:
        leaves, structure = pytree.tree_flatten(self.fn(*self.args))
        if structure != self.structure:
            self._refuse(f"a result of structure {structure} instead of {self.structure}")
        for new, recorded, kept in zip(leaves, self.leaves, self.kept, strict=True):
            if isinstance(recorded, torch.Tensor):
                self._take(new, recorded, kept)
            elif type(new) is not type(recorded) or new != recorded:
                self._refuse(f"the Python value {new!r} instead of {recorded!r}")

    def _take(self, new: Any, recorded: torch.Tensor, kept: torch.Tensor | None) -> None:
        if not isinstance(new, torch.Tensor) or _form(new) != _form(recorded):
            found = _form(new) if isinstance(new, torch.Tensor) else new
            self._refuse(f"{found} instead of {_form(recorded)}")
        if kept is not None:
            kept.copy_(new)
        elif new.data_ptr() != recorded.data_ptr():
            self._refuse("a tensor at another address than the argument it was a view of")

    def _refuse(self, what: str) -> None:
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        detail = f"direct call {name} returned {what}, which"
        raise Finding(RULES["piece-result"], detail, self.location).refusal()


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device
