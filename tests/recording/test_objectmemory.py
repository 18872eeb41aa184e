"""What is changed about objects is noticed alike with and without reading words of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ostinato.recording import objectmemory, rawmemory
from ostinato.recording.objectmemory import ChangeCounts, ObjectWatch


class One:
    pass


class Two:
    pass


def make() -> tuple[Any, Any, Any]:
    def function(a: int = 1, *, b: int = 2) -> int:
        return a + b

    return One(), function, [{1: 1}, [1, 2], (1,), {3}]


def set_code(o: Any, f: Any, s: Any) -> None:
    f.__code__ = make.__code__


CHANGES: dict[str, Callable[[Any, Any, Any], object]] = {
    "nothing": lambda o, f, s: None,
    "attribute": lambda o, f, s: setattr(o, "x", 1),
    "item": lambda o, f, s: s[1].__setitem__(0, 9),
    "class": lambda o, f, s: setattr(o, "__class__", Two),
    "code": lambda o, f, s: setattr(f, "__code__", (lambda a=1, *, b=2: a).__code__),
    "defaults": lambda o, f, s: setattr(f, "__defaults__", None),
    "named defaults": lambda o, f, s: setattr(f, "__kwdefaults__", {"b": 2}),
    "attributes": lambda o, f, s: setattr(f, "__dict__", {"x": 1}),
    "dictionary": lambda o, f, s: s[0].update({2: 2}),
    "list": lambda o, f, s: s[1].pop(),
    "set": lambda o, f, s: s[3].add(4),
}


@pytest.mark.parametrize("is_supported", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_both_ways_notice_the_same(
    name: str, is_supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_supported:
        monkeypatch.setattr(rawmemory, "is_supported", lambda: False)
    instance, function, sized = make()
    watch = ObjectWatch([instance, One()], [function, lambda: None], sized)
    assert watch.is_unchanged()
    CHANGES[name](instance, function, sized)
    assert watch.is_unchanged() == (name in ("nothing", "attribute", "item"))


def test_this_interpreter_is_supported() -> None:
    assert objectmemory.function_offsets() is not None
    assert ObjectWatch([One()], [make], [{}])._words is not None


@pytest.mark.skipif(not objectmemory.has_versions(), reason="this Python counts no changes")
def test_every_change_of_a_dictionary_is_counted() -> None:
    held: dict[Any, Any] = dict.fromkeys(range(100), 1)
    changes: list[Callable[[], Any]] = [
        lambda: held.update({5: 2}),
        lambda: held.pop(5),
        lambda: held.update({1000: 1}),
        lambda: held.setdefault(1001, 1),
        held.popitem,
        held.clear,
    ]
    for change in changes:
        watch = ChangeCounts([held])
        assert watch.is_unchanged()
        change()
        assert not watch.is_unchanged()
    assert ChangeCounts([]).is_unchanged()
