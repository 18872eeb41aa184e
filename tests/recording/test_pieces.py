"""A recording may consist of pieces with direct calls between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ostinato import state
from ostinato.errors import RecordingRefused
from ostinato.recording.pieces import direct
from ostinato.recording.probe import probe
from ostinato.recording.tape import TapeBackend
from tests.mutations import assert_fails_under
from tests.recording.tape_checks import T, bytes_of, check, record


def scale(x: T, factor: float) -> T:
    """Reads a value on the host, which no recording can."""
    return x * (float(x.sum()) + factor)


def test_pieces_equal_a_direct_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: T) -> Any:
        first = direct(scale, x.t() + 1, 0.5)
        return direct(scale, torch.relu(first), 2.0) - x.t()

    assert_fails_under("pieces.no_split", lambda: check(fn, (3, 4)), monkeypatch)
    x = torch.randn(3, 4)
    tape, _ = record(fn, [x])
    assert tape.num_pieces == 3 and record(lambda x: x + 1, [x])[0].num_pieces == 1


def test_a_direct_call_runs_its_python_at_every_replay_and_in_no_activity() -> None:
    calls: list[Any] = []

    def note(x: T) -> T:
        calls.append(state.current())
        return x + 1

    tape, _ = record(lambda x: direct(note, x), [torch.zeros(2)])
    calls.clear()
    tape.replay()
    tape.replay()
    assert calls == [None, None]


def test_writes_into_arguments_and_views_of_them() -> None:
    def fill(x: T, out: T) -> tuple[T, T, str]:
        out.copy_(x.cumsum(0) * int(x.shape[0]))
        return out[1:], x.t(), "done"

    def fn(x: T) -> Any:
        out = torch.empty(3, 3)
        tail, turned, word = direct(fill, x * 2, out)
        assert word == "done"
        return [tail + 1, turned + out]

    check(fn, (3, 3))


def test_nested_arguments_and_results() -> None:
    def pair(values: dict[str, list[T]]) -> dict[str, Any]:
        first, second = values["both"]
        return {"sum": first + second, "none": None, "parts": (first.clone(), 3)}

    def fn(x: T) -> Any:
        result = direct(pair, {"both": [x, x + 1]})
        assert result["none"] is None and result["parts"][1] == 3
        return [result["sum"] * 2, result["parts"][0] - 1]

    check(fn, (2, 2))


def test_a_direct_call_may_reshape_its_own_tensors() -> None:
    def fn(x: T) -> T:
        own = x + 1
        own.t_().unsqueeze_(0).squeeze_(0)
        torch.add(x.t(), 1, out=(out := torch.empty(0)))
        return own + out.resize_(3, 2)

    check(lambda x: direct(fn, x) * 2, (2, 3))


def test_a_direct_call_must_not_write_an_undeclared_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_it() -> None:
        x = torch.ones(3)
        with pytest.raises(RecordingRefused, match="input-write"):
            probe(lambda: direct(x.add_, 1), [x])
        assert x.tolist() == [1.0] * 3

    assert_fails_under("rules.input-write", check_it, monkeypatch)


def test_a_result_that_fn_keeps_is_not_poisoned() -> None:
    kept = torch.ones(2)
    x, out = torch.ones(2), torch.zeros(2)
    tape = TapeBackend(poison=True).record(lambda: out.copy_(direct(lambda: kept) + x))
    kept.add_(1)
    tape.replay()
    assert kept.tolist() == [2.0, 2.0] and out.tolist() == [3.0, 3.0]


def test_recording_leaves_no_effect_of_a_direct_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_it() -> None:
        cache, x = torch.zeros(4), torch.ones(4)
        random = torch.get_rng_state()
        TapeBackend().record(lambda: direct(lambda: cache.add_(x + torch.rand(4))))
        assert bytes_of(cache) == bytes_of(torch.zeros(4))
        assert torch.equal(torch.get_rng_state(), random)

    assert_fails_under("undo.no_clone_before_write", check_it, monkeypatch)


@pytest.mark.parametrize(
    "results",
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), 1),
        (3, 4),
        (1, True),
        (1, 1.0),
        ([torch.ones(1)], [torch.ones(1), torch.ones(1)]),
    ],
)
def test_a_result_that_changes_is_refused(
    results: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_it() -> None:
        answers = iter(results)

        def changing() -> Any:
            return next(answers)

        tape = TapeBackend().record(lambda: direct(changing))
        with pytest.raises(RecordingRefused, match="changing") as caught:
            tape.replay()
        assert caught.value.rule == "piece-result"
        assert str(caught.value.location).startswith(__file__)

    assert_fails_under("pieces.results_are_trusted", check_it, monkeypatch)


def test_a_view_that_moves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_it() -> None:
        rows = iter([0, 1])
        x = torch.ones(2, 2)
        tape = TapeBackend().record(lambda: direct(lambda x: x[next(rows)], x))
        with pytest.raises(RecordingRefused, match="another address"):
            tape.replay()

    assert_fails_under("pieces.results_are_trusted", check_it, monkeypatch)


def test_outside_of_a_recording_it_is_a_plain_call() -> None:
    assert direct(max, 3, 4) == 4
    with state.entering(state.Activity(state.Phase.WARM_UP)):
        assert direct(max, 3, 4) == 4
