"""The check whether a call is like the last one, without making its key.

Making a key costs about five microseconds; most calls repeat the one before. torch keeps, for its
own compiler, checks in C++ of a tensor's description and of the global switches; where this torch
has them, a call whose arguments are plain positional tensors is compared with them. What they do
not cover is compared here, and whoever fails takes the long way: this file can only say "the
same" for a call that has the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ostinato.recording.entry import Entry
from ostinato.recording.key import uncovered_switches

_guards: Any = torch._C._dynamo.guards
_TensorGuards = getattr(_guards, "TensorGuards", None)
_GlobalStateGuard = getattr(_guards, "GlobalStateGuard", None)

_is_inference = torch.is_inference_mode_enabled


class QuickCheck:
    """The arguments and modes of one served call, and the recording that served it."""

    def __init__(self, entry: Entry, generation: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        self.entry = entry
        self.generation = generation
        self.num_tensors = len(tensors)
        assert _TensorGuards is not None and _GlobalStateGuard is not None
        self._tensors_match: Callable[..., bool] = _TensorGuards(
            *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check
        self._globals_match: Callable[[], bool] = _GlobalStateGuard().check
        self._is_inference = _is_inference()
        self._switches = uncovered_switches()
        self._alignments = [not t.data_ptr() & 15 for t in tensors]
        self._is_aligned = all(self._alignments)

    @classmethod
    def of(cls, entry: Entry, generation: Hashable, args: tuple[Any, ...]) -> QuickCheck | None:
        """A check for calls with these positional arguments; None where it cannot be made."""
        if (
            _TensorGuards is None
            or _GlobalStateGuard is None
            or not args
            or not all(type(a) is torch.Tensor for a in args)
        ):
            return None
        try:
            return cls(entry, generation, args)
        except (RuntimeError, TypeError):
            return None

    def admits(self, args: tuple[Any, ...]) -> bool:
        """True when a call with these arguments, now, on this thread, has the same key."""
        if len(args) != self.num_tensors or _is_inference() is not self._is_inference:
            return False
        if not (self._tensors_match(*args) and self._globals_match()):
            return False
        if uncovered_switches() != self._switches:
            return False
        if self.num_tensors == 1:
            return (not args[0].data_ptr() & 15) is self._is_aligned
        return [not t.data_ptr() & 15 for t in args] == self._alignments
