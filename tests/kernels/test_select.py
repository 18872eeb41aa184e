from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ostinato import state
from ostinato.kernels.select import Selector

RECORDING = state.Activity(state.Phase.RECORDING)


def _timer(*seconds: float) -> Callable[[Sequence[Callable[[], object]]], list[float]]:
    return lambda candidates: list(seconds[: len(candidates)])


def _variants(*names: str) -> dict[str, Callable[[], object]]:
    return {name: lambda: None for name in names}


def test_the_fastest_wins_and_other_processes_choose_alike(tmp_path: Path) -> None:
    first = Selector(tmp_path, "card", timer=_timer(2.0, 1.0))
    assert first.choose("attention", "S<1024", _variants("a", "b")) == "b"
    other = Selector(tmp_path, "card", timer=_timer(1.0, 2.0))
    assert other.choose("attention", "S<1024", _variants("a", "b")) == "b"
    assert other.choose("attention", "S<2048", _variants("a", "b")) == "a"


def test_another_machine_or_other_variants_measure_anew(tmp_path: Path) -> None:
    Selector(tmp_path, "card", timer=_timer(2.0, 1.0)).choose("op", "c", _variants("a", "b"))
    other = Selector(tmp_path, "card, torch 3", timer=_timer(1.0, 2.0))
    assert other.choose("op", "c", _variants("a", "b")) == "a"
    same = Selector(tmp_path, "card", timer=_timer(3.0, 2.0, 1.0))
    assert same.choose("op", "c", _variants("a", "b", "c")) == "c"


def test_a_choice_made_meanwhile_by_another_process_is_taken_over(tmp_path: Path) -> None:
    late = Selector(tmp_path, "card", timer=_timer(1.0, 2.0))
    Selector(tmp_path, "card", timer=_timer(2.0, 1.0)).choose("op", "c", _variants("a", "b"))
    assert late.choose("op", "c", _variants("a", "b")) == "b"


def test_nothing_is_measured_under_recording(tmp_path: Path) -> None:
    selector = Selector(tmp_path, "card", timer=_timer(2.0, 1.0))
    with state.entering(RECORDING):
        assert selector.choose("op", "c", _variants("a", "b")) == "a"
        assert selector.choose("op", "d", _variants("b", "a")) == "b"
    assert selector.choices() == {}
    before = state.verdicts.number
    assert selector.choose("op", "c", _variants("a", "b")) == "b"
    assert state.verdicts.number == before + 1, "a recording holds the other variant"
    assert Selector(None, "card", timer=_timer(2.0, 1.0)).choose("op", "e", _variants("a", "b"))
    assert state.verdicts.number == before + 1


def test_a_raising_variant_is_out() -> None:
    def broken() -> object:
        raise RuntimeError("no kernel image is available")

    selector = Selector(None, "card", timer=_timer(5.0))
    assert selector.choose("op", "c", {"broken": broken, "works": lambda: None}) == "works"
    assert selector.choose("op", "d", {"broken": broken, "broken too": broken}) == "broken"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"machine": "card", "choices": 3}'])
def test_a_broken_table_is_replaced(tmp_path: Path, content: str) -> None:
    Selector(tmp_path, "card", timer=_timer(2.0, 1.0)).choose("op", "c", _variants("a", "b"))
    [path] = tmp_path.iterdir()
    path.write_text(content)
    selector = Selector(tmp_path, "card", timer=_timer(1.0, 2.0))
    assert selector.choose("op", "c", _variants("a", "b")) == "a"
    assert json.loads(path.read_text())["choices"] == selector.choices()


def test_a_directory_that_cannot_be_written_costs_nothing_but_the_table(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    selector = Selector(tmp_path / "file" / "below", "card", timer=_timer(2.0, 1.0))
    assert selector.choose("op", "c", _variants("a", "b")) == "b"
