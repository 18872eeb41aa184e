"""Turns among robots: the order, what gives way, what is dropped."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import DeadlineMissed, Superseded
from ostinato.serve.openpi.turns import Turns
from ostinato.serve.queues import Turn, Waiting
from ostinato.serve.service import Request


def item(client: str, arrived_s: float = 0.0, **fields: object) -> Waiting:
    return Waiting(Request({}), 0.0, Turn(client, arrived_s=arrived_s, **fields))  # type: ignore[arg-type]


def order(turns: Turns, now_s: float = 0.0) -> list[Waiting]:
    taken = []
    while len(turns):
        taken += turns.take(1, now_s)[0]
    return taken


def test_turns_go_round_and_within_a_robot_the_first_comes_first() -> None:
    a1, a2, a3, b1, c1 = (item(name) for name in "aaabc")
    turns = Turns()
    assert turns.add([a1, a2, a3]) == []
    assert turns.take(1, 0.0) == ([a1], [])
    turns.add([b1, c1])
    assert order(turns) == [a2, b1, c1, a3]


def test_a_newer_observation_of_a_session_replaces_an_older() -> None:
    turns, other = Turns(), item("b")
    old, new = item("s", 1.0, session="s"), item("s", 2.0, session="s")
    turns.add([old, other])
    ((dropped, error),) = turns.add([new])
    assert dropped is old and isinstance(error, Superseded)
    assert order(turns) == [new, other]


def test_an_older_one_that_comes_late_is_the_one_that_goes() -> None:
    turns = Turns()
    old, new = item("s", 1.0, session="s"), item("s", 2.0, session="s")
    turns.add([new])
    ((dropped, _),) = turns.add([old])
    assert dropped is old
    assert order(turns) == [new]


def test_without_a_session_nothing_gives_way() -> None:
    turns = Turns()
    items = [item("a", 1.0), item("a", 2.0)]
    assert turns.add(items) == []
    assert order(turns) == items


def test_late_work_is_dropped_when_its_turn_comes() -> None:
    late, good = item("a", 1.0, deadline_s=1.1), item("b", 1.0, deadline_s=9.0)
    turns = Turns()
    turns.add([late, good])
    taken, ((dropped, error),) = turns.take(1, 1.1)
    assert (taken, dropped) == ([good], late)
    assert isinstance(error, DeadlineMissed)
    assert "not answered within 100 ms" in str(error)


def test_one_that_left_is_forgotten() -> None:
    a, b = item("a"), item("b")
    turns = Turns()
    turns.add([a, b])
    assert turns.discard(a) and not turns.discard(a)
    assert order(turns) == [b]
    turns.add([a])
    assert turns.drain() == [a] and len(turns) == 0


@given(st.lists(st.sampled_from("abcd"), max_size=40))
def test_nobody_waits_longer_than_one_round(names: list[str]) -> None:
    turns = Turns()
    items = [item(name) for name in names]
    turns.add(items)
    taken = [waiting.turn.client for waiting in order(turns) if waiting.turn]
    assert sorted(taken) == sorted(names)
    for name in set(names):
        places = [place for place, found in enumerate(taken) if found == name]
        steps = pairwise(places)
        assert all(len(set(taken[a + 1 : b])) == b - a - 1 for a, b in steps)
