"""Switches protections off, one by one, so that each test can be seen to fail.

A mutation is a function that takes pytest's ``monkeypatch`` and removes one protection. Names are
``"<file>.<what no longer happens>"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Mutation = Callable[[pytest.MonkeyPatch], None]
mutations: dict[str, Mutation] = {}


def mutation(name: str) -> Callable[[Mutation], Mutation]:
    def register(function: Mutation) -> Mutation:
        assert name not in mutations, name
        mutations[name] = function
        return function

    return register


def assert_fails_under(
    name: str, check: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``check`` passes as the code stands and fails with the protection ``name`` switched off."""
    check()
    with monkeypatch.context() as patched:
        mutations[name](patched)
        with pytest.raises((Exception, pytest.fail.Exception)):
            check()


def without_rule(rule: str) -> Mutation:
    """Neither the probe nor the tape looks at one rule any more."""

    def mutate(monkeypatch: pytest.MonkeyPatch) -> None:
        from ostinato.recording.observer import Observer
        from ostinato.recording.tape_recorder import TapeRecorder

        for owner, method in ((Observer, "report_always"), (TapeRecorder, "_refuse")):
            original = getattr(owner, method)

            def report(self: Any, name: str, detail: str, original: Any = original) -> None:
                if name != rule:
                    original(self, name, detail)

            monkeypatch.setattr(owner, method, report)

    return mutate


def _register_rules() -> None:
    from ostinato.recording.rules import RULES

    for rule in RULES:
        mutations[f"rules.{rule}"] = without_rule(rule)


_register_rules()


@mutation("undo.no_clone_before_write")
def _no_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.undo import UndoLog

    monkeypatch.setattr(UndoLog, "before_write", lambda self, tensor: None)


@mutation("undo.shapes_stay")
def _shapes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.undo import UndoLog

    monkeypatch.setattr(UndoLog, "moved", lambda self: iter(()))


@mutation("undo.draws_are_kept")
def _draws_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.undo import RandomUndo

    monkeypatch.setattr(RandomUndo, "restore", lambda self: None)


@mutation("calls.schema_is_trusted")
def _schema_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import calls

    monkeypatch.setattr(calls, "_HIDDEN_WRITES", {})


@mutation("calls.composites_stay_whole")
def _composites_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import modes

    monkeypatch.setattr(modes, "is_composite", lambda call: False)


@mutation("tape.no_poison")
def _no_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.tape import Tape

    monkeypatch.setattr(Tape, "fill_temporaries", lambda self: None)


@mutation("tape.callers_modes")
def _callers_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    from ostinato.recording import tape

    monkeypatch.setattr(tape, "_entering", lambda modes: contextlib.nullcontext())


@mutation("tape.callers_autocast")
def _callers_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    import torch

    monkeypatch.setattr(torch._C, "_DisableAutocast", contextlib.nullcontext)


@mutation("tape.results_are_not_copied")
def _results_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.entries import Target

    monkeypatch.setattr(Target, "take", lambda self, result: None)


@mutation("tape.live_shapes")
def _live_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries keep the tensors themselves, whose shape a later ``t_`` or ``resize_`` changes."""
    from ostinato.recording import tape_recorder

    monkeypatch.setattr(tape_recorder, "_alias", lambda value: value)


@mutation("tape.freed_tapes_replay")
def _freed_tapes_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.tape import Tape

    monkeypatch.setattr(Tape, "free", lambda self: None)


@mutation("tape.swallowed_refusals_pass")
def _swallowed_refusals_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.observer import Observer
    from ostinato.recording.tape_recorder import TapeRecorder

    for owner in (Observer, TapeRecorder):
        monkeypatch.setattr(
            owner, "first", property(lambda self: None, lambda self, v: None), raising=False
        )


@mutation("pieces.results_are_trusted")
def _results_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.entries import DirectEntry

    monkeypatch.setattr(DirectEntry, "_refuse", lambda self, what: None)


@mutation("pieces.no_split")
def _no_split(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato import state

    monkeypatch.setattr(state, "current", lambda: None)


@mutation("frames.innermost_of_all")
def _innermost_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import frames

    monkeypatch.setattr(frames, "_is_machinery", lambda path: False)


@mutation("patches.not_installed")
def _not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import patches

    monkeypatch.setattr(patches, "PATCHES", ())


@mutation("patches.stay_installed")
def _stay_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import patches

    monkeypatch.setattr(patches, "_leave", lambda: None)
    monkeypatch.setattr(patches, "_num_watchers", 0)
    for patch in patches.PATCHES:  # put the originals back when the test ends
        owner = patches._owner(patch.owner)
        if owner is not None and patch.attribute in vars(owner):
            monkeypatch.setattr(owner, patch.attribute, getattr(owner, patch.attribute))
    monkeypatch.setattr(patches, "_installed", [])


@mutation("ledger.nothing_changes")
def _nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.ledger import Ledger

    monkeypatch.setattr(Ledger, "check", lambda self: self.generation)
