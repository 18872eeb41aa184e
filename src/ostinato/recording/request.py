"""One call on its way from its arguments to its route."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ostinato.recording import tree
from ostinato.recording.buffers import copy_of
from ostinato.recording.key import Key
from ostinato.recording.ladder import Axis
from ostinato.recording.order import Invoke
from ostinato.recording.region import GateCall


@dataclass(frozen=True, slots=True)
class Request:
    """A call with its key. ``tensors`` are its inputs in flattened order.

    ``rung`` and ``direct`` are given by a caller that pads its inputs itself: the rung it padded
    for, and the same call without padding; when it has one recorded also ``gate_calls`` to check
    the recording with, the call itself first, and ``direct_us`` if it has timed ``direct`` before.
    """

    key: Key
    tensors: Sequence[torch.Tensor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    is_borrowed: bool = False
    rung: Mapping[Axis, int] | None = None
    direct: Callable[[], Any] | None = None
    gate_calls: Sequence[GateCall] | None = None
    direct_us: float | None = None

    def invoke(self, fn: Callable[..., Any]) -> Invoke:
        """``fn`` as a function of the input tensors alone; keeps none of this call's tensors."""
        rebuild = tree.rebuilder((self.args, dict(self.kwargs)))
        repeats = self.key.repeats
        kinds = list(tree.leaves(self.key.structure))
        parameters = [i for i, kind in enumerate(kinds) if kind is tree.PARAMETER]

        def invoke(tensors: Sequence[torch.Tensor]) -> Any:
            given = list(tensors)
            for i in parameters:
                given[i] = torch.nn.Parameter(given[i], given[i].requires_grad)
            if repeats:
                given = [given[first] for first in repeats]
            args, kwargs = rebuild(given)
            return fn(*args, **kwargs)

        return invoke

    def with_copies(self, in_place: frozenset[int]) -> Request:
        """The same call on copies of its inputs, which the caller may overwrite meanwhile."""
        copies = [t if i in in_place else copy_of(t) for i, t in enumerate(self.tensors)]
        return replace(self, tensors=copies)

    def fitted(self, tensors: Sequence[torch.Tensor]) -> Request:
        """The same call with other tensors in its inputs' places."""
        return replace(self, tensors=tensors)
