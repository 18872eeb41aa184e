"""Weights that were copied from a module that its user keeps: they follow when those change.

A layer that joins or widens weights holds copies. As long as the tensors they were made of are
alive, a change of these in place (``load_state_dict``, an optimiser's step) or of their memory is
looked for before a direct call and while a replay is under way.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

State = tuple[int, int]


class Pair(NamedTuple):
    """``source`` was copied to ``target``, a part of a weight."""

    source: Tensor
    target: Tensor


class Copies:
    """The copies of one model."""

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._known = [(weakref.ref(s), target, _state(s)) for s, target in pairs]

    def are_stale(self) -> bool:
        """Whether a source has changed since it was copied. Those that are gone are forgotten."""
        if not self._known:
            return False
        present = [(source(), state) for source, _, state in self._known]
        if any(source is None for source, _ in present):
            self._known = [known for known in self._known if known[0]() is not None]
            return self.are_stale()
        return any(source is not None and _state(source) != state for source, state in present)

    def follow(self) -> None:
        """Copy again what has changed, in the order of the current stream."""
        if not self.are_stale():
            return
        followed = []
        for reference, target, state in self._known:
            source = reference()
            if source is None:
                continue
            present = _state(source)
            if present != state:
                with torch.inference_mode(target.is_inference()), torch.no_grad():
                    target.copy_(source.detach())
            followed.append((reference, target, present))
        self._known = followed


def _state(source: Tensor) -> State:
    """What changes with a tensor's elements, where torch counts changes, or with their place."""
    return (0 if source.is_inference() else source._version, source.data_ptr())


_of_model: WeakKeyDictionary[nn.Module, Copies] = WeakKeyDictionary()
_NONE = Copies()


def remember(model: nn.Module, pairs: Iterable[Pair]) -> None:
    """These copies belong to ``model``."""
    _of_model[model] = Copies(pairs)


def forget(model: nn.Module) -> None:
    """The model has no copies that could follow, or they are used no more."""
    _of_model.pop(model, None)


def copies_of(model: nn.Module) -> Copies:
    """What was remembered of ``model``."""
    return _of_model.get(model, _NONE)
