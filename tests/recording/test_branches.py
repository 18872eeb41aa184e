"""What a region says may run beside the rest, without a device that could do so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ostinato import state
from ostinato.recording import pieces
from ostinato.recording.cuda_branches import Wish


class Notes:
    """A brancher and splitter that notes what it is asked for, in order."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def aside(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.order.append("aside")
        return fn(*args)

    def join(self) -> None:
        self.order.append("join")

    def split(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.order.append("split")
        return fn(*args)


def test_outside_of_a_recording_calls_are_made_at_once() -> None:
    with state.branching() as aside:
        assert aside(divmod, 7, 2) == (3, 1)


def test_a_recording_joins_at_the_end_of_the_block_and_after_an_error() -> None:
    notes = Notes()
    with state.entering(state.Activity(state.Phase.RECORDING, notes, notes)):
        with state.branching() as aside:
            assert aside(divmod, 7, 2) == (3, 1)
            notes.order.append("what follows")
        with state.branching(is_worth_it=False) as aside:
            assert aside(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError), state.branching() as aside:
            aside(divmod, 1, 0)
    assert notes.order == ["aside", "what follows", "join", "aside", "join"]


def test_a_direct_call_between_pieces_comes_after_what_runs_beside() -> None:
    notes = Notes()
    with (
        state.entering(state.Activity(state.Phase.RECORDING, notes, notes)),
        state.branching() as aside,
    ):
        aside(int)
        assert pieces.direct(divmod, 7, 2) == (3, 1)
    assert notes.order == ["aside", "join", "split", "join"]


def test_a_warm_up_only_notes_the_wish() -> None:
    wish = Wish()
    with state.entering(state.Activity(state.Phase.WARM_UP, None, wish)):
        with state.branching():
            pass
        assert not wish.is_made
        with state.branching() as aside:
            assert aside(divmod, 7, 2) == (3, 1)
    assert wish.is_made
