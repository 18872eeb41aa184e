"""Turns one run of a body into the entries of a tape.

Whether a result is new memory is decided by the identity of its storage, never by a schema. Views
and ``empty`` are not repeated: their addresses are fixed. Writes and new results are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from enum import Enum
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ostinato.recording.calls import Call, has_storage, storage_key, tensors_in
from ostinato.recording.entries import DirectEntry, Entry, OperatorEntry, Target
from ostinato.recording.frames import user_location
from ostinato.recording.memory import LiveMemory, OwnTensors
from ostinato.recording.modes import OperatorMode
from ostinato.recording.operator_rules import breaches_after, breaches_before
from ostinato.recording.patches import Patch
from ostinato.recording.rules import RULES, Finding
from ostinato.recording.undo import RandomUndo, UndoLog

Modes = tuple[bool, bool]
"""Grad mode and inference mode."""

_EMPTY = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::empty_permuted",
    "aten::new_empty",
    "aten::new_empty_strided",
}


class _Place(Enum):
    """Whose code runs: only the body must keep the rules that patched functions break."""

    BODY = 1
    OPERATOR = 2
    DIRECT_CALL = 3


class TapeRecorder(OperatorMode):
    """A dispatch mode that records; also the splitter of a recording in pieces."""

    def __init__(self, undo: UndoLog, random: RandomUndo) -> None:
        super().__init__()
        self.entries: list[tuple[Modes, Entry]] = []
        self.temporaries: dict[int, torch.Tensor] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self.num_pieces = 1
        self.first: Finding | None = None
        self._undo = undo
        self._random = random
        self._own_views = OwnTensors()
        self._place = _Place.BODY

    def on_operator(self, call: Call) -> Any:
        if call.name == "aten::lift_fresh" and call.args[0].dim() == 0:
            return self._constant(call)
        return self._operator(call)

    def on_higher_order(self, call: Call) -> Any:
        self._refuse("higher-order", str(call.func))

    def split(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run ``fn`` unrecorded and keep its results at fixed addresses."""
        with _disable_current_modes(), self._in(_Place.DIRECT_CALL), _WriteWatch(self):
            leaves, structure = pytree.tree_flatten(fn(*args))
        known = {storage_key(t) for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)}
        kept: list[torch.Tensor | None] = []
        with _disable_current_modes():
            for position, leaf in enumerate(leaves):
                is_new = isinstance(leaf, torch.Tensor) and storage_key(leaf) not in known
                if is_new:
                    leaves[position] = leaf.detach().clone()
                    self.temporaries[storage_key(leaves[position])] = leaves[position]
                kept.append(_alias(leaves[position]) if is_new else None)
            frozen = pytree.tree_map(_alias, (args, tuple(leaves)))
        entry = DirectEntry(fn, frozen[0], frozen[1], tuple(kept), structure, user_location())
        self.entries.append((_modes(), entry))
        self.num_pieces += 1
        return pytree.tree_unflatten(leaves, structure)

    def on_patch(self, patch: Patch) -> bool:
        """A call of a function that no mode sees; never asks to skip it."""
        is_allowed = self._place is _Place.DIRECT_CALL or (
            patch.opaque and self._place is _Place.OPERATOR
        )
        if not is_allowed:
            self._refuse(patch.rule, patch.name)
        return False

    def check_finished(self) -> None:
        """Refuse what only shows at the end, and what the body swallowed."""
        for _ in self._undo.moved():
            self._refuse("rebind", "an operator that resized a tensor from outside")
        if self.first is not None:
            raise self.first.refusal()

    def save_outside(self, call: Call, own: Container[int] = ()) -> None:
        """Clone what the call is about to write if it is not memory of the recording,
        or ``own``.
        """
        for tensor in call.written:
            key = storage_key(tensor)
            if key in self.temporaries or key in own:
                continue
            if key in self.constants:
                self._refuse("baked-data", "writing to a tensor made from a Python number")
            if call.has_tag(torch.Tag.inplace_view):
                if tensor not in self._own_views:
                    self._refuse("rebind", f"{call.name} on a tensor from outside")
                continue
            self._undo.before_write(tensor)
        for generator in call.generators:
            self._random.note(generator)

    def _operator(self, call: Call) -> Any:
        for rule, detail in breaches_before(call, self.constants.keys()):
            self._refuse(rule, detail)
        self.save_outside(call)
        with self._in(_Place.OPERATOR):
            result = call.func(*call.args, **call.kwargs)
        for rule, detail in breaches_after(call, result):
            self._refuse(rule, detail)
        targets = self._targets(call, result)
        if self._must_repeat(call, result, targets):
            args, kwargs = pytree.tree_map(_alias, (call.args, call.kwargs))
            entry = OperatorEntry(call.func, args, kwargs, targets)
            self.entries.append((_modes(), entry))
        return result

    def _targets(self, call: Call, result: Any) -> tuple[Target, ...]:
        known = {storage_key(tensor) for tensor in call.tensors}
        targets: dict[int, Target] = {}
        for position, tensor in enumerate(tensors_in(result)):
            key = storage_key(tensor)
            if key in known:
                self._note_view(tensor, call)
                continue
            is_whole = key in targets or torch._debug_has_internal_overlap(tensor) != 0
            if key not in targets or not targets[key].is_whole:
                targets[key] = Target(position, _alias(tensor), is_whole)
            self.temporaries.setdefault(key, _alias(tensor))
        return tuple(targets.values())

    def _note_view(self, tensor: torch.Tensor, call: Call) -> None:
        if not any(tensor is argument for argument in call.tensors):
            self._own_views.add(tensor)

    def _must_repeat(self, call: Call, result: Any, targets: tuple[Target, ...]) -> bool:
        if call.name in _EMPTY or call.has_tag(torch.Tag.inplace_view):
            return False
        is_view = not targets and not call.written and any(True for _ in tensors_in(result))
        return not is_view

    def _constant(self, call: Call) -> torch.Tensor:
        """A Python number that torch turned into a tensor is baked, like any Python number."""
        result: torch.Tensor = call.func(*call.args, **call.kwargs)
        self.constants[storage_key(result)] = result
        return result

    @contextlib.contextmanager
    def _in(self, place: _Place) -> Iterator[None]:
        former, self._place = self._place, place
        try:
            yield
        finally:
            self._place = former

    def _refuse(self, rule: str, detail: str) -> None:
        finding = Finding(RULES[rule], detail, user_location())
        self.first = self.first or finding
        raise finding.refusal()


class _WriteWatch(OperatorMode):
    """Clones what a direct call writes, and records nothing."""

    def __init__(self, recorder: TapeRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._own = LiveMemory()

    def on_operator(self, call: Call) -> Any:
        self._recorder.save_outside(call, self._own)
        known = {storage_key(tensor) for tensor in call.tensors}
        result = call.func(*call.args, **call.kwargs)
        for tensor in tensors_in(result):
            if has_storage(tensor) and storage_key(tensor) not in known:
                self._own.add(tensor)
        return result

    def on_higher_order(self, call: Call) -> Any:
        return call.func(*call.args, **call.kwargs)


def _modes() -> Modes:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _alias(value: Any) -> Any:
    """A second tensor on the same memory; anything else as it is."""
    if isinstance(value, torch.Tensor) and has_storage(value):
        return value.detach()
    return value
