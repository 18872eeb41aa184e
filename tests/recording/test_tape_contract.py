"""What a tape promises beside equal bytes: no trace of recording, modes, draws, poison,
refusals.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ostinato import state
from ostinato.errors import RecordingRefused
from ostinato.recording.probe import probe
from ostinato.recording.tape import TapeBackend
from tests.mutations import assert_fails_under
from tests.recording.programs import Buffers, run
from tests.recording.tape_checks import (
    Function,
    T,
    bytes_of,
    check,
    check_program,
    inputs,
    record,
)

OUTSIDE = torch.empty(0)


def test_weights_written_in_place_show_at_the_next_replay() -> None:
    weight = torch.randn(3, 3)
    x = torch.randn(2, 3)
    tape, outputs = record(lambda x: x @ weight, [x])
    weight.mul_(2)
    tape.replay()
    assert bytes_of(outputs[0]) == bytes_of(x @ weight)


def test_python_does_not_run_at_replay() -> None:
    calls: list[int] = []

    def fn(x: T) -> T:
        calls.append(1)
        return x + 1

    tape, _ = record(fn, [torch.randn(2)])
    before = len(calls)
    tape.replay()
    assert len(calls) == before


def test_draws_are_live_and_follow_manual_seed() -> None:
    x = torch.ones(64)
    tape, outputs = record(lambda x: F.dropout(x, 0.5), [x])
    torch.manual_seed(7)
    replayed = []
    for _ in range(3):
        tape.replay()
        replayed.append(outputs[0].clone())
    torch.manual_seed(7)
    direct = [F.dropout(x, 0.5) for _ in range(3)]
    assert [bytes_of(t) for t in replayed] == [bytes_of(t) for t in direct]
    assert not torch.equal(replayed[0], replayed[1])


def check_no_effect() -> None:
    """Recording leaves memory, shapes and every generator as they were."""
    private, named = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    x, cache, out = torch.randn(4, 4), torch.zeros(8), torch.zeros(4, 4)
    norm = nn.BatchNorm1d(4).requires_grad_(False)
    kept = [x, cache, out, *norm.buffers()]
    before = [bytes_of(t) for t in kept]
    generators = [torch.default_generator, private, named]
    states = [bytes_of(g.get_state()) for g in generators]

    def body() -> None:
        torch.rand(2, generator=private)
        noise = torch.randn(4, 4, generator=private) + torch.rand(4, 4)
        cache[2:4].add_(1)
        x.mul_(2)
        out.copy_(norm(x + noise))

    TapeBackend().record(body, generators=[named])
    assert [bytes_of(t) for t in kept] == before
    assert [bytes_of(g.get_state()) for g in generators] == states


@pytest.mark.parametrize("mutation", ["undo.no_clone_before_write", "undo.draws_are_kept"])
def test_recording_leaves_no_effect(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(mutation, check_no_effect, monkeypatch)


def test_a_body_that_raises_leaves_no_effect_and_its_error() -> None:
    x = torch.ones(3)

    def body() -> None:
        x.add_(torch.rand(3))
        raise KeyError("mine")

    random = torch.get_rng_state()
    with pytest.raises(KeyError, match="mine"):
        TapeBackend().record(body)
    assert torch.equal(x, torch.ones(3)) and torch.equal(torch.get_rng_state(), random)
    assert not state.is_active()


def check_lazy_cache_is_seen() -> None:
    """A table first made inside one recording and read by another one is not that one's memory."""
    tables: list[T] = []
    x, first, second = torch.ones(3), torch.empty(3), torch.empty(3)

    def fn(out: T) -> None:
        if not tables:
            tables.append(torch.arange(3.0))
        out.copy_(x + tables[0])

    backend = TapeBackend(poison=True)
    tapes = [backend.record(lambda: fn(out)) for out in (first, second)]  # noqa: B023
    tapes[1].replay()
    assert second.isnan().all()


def test_poison_shows_memory_of_another_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("tape.no_poison", check_lazy_cache_is_seen, monkeypatch)


def test_poison_of_every_kind() -> None:
    kinds = (torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.int64)
    kept: list[T] = []

    def body() -> None:
        kept.extend(torch.empty(3, dtype=kind) for kind in (*kinds, torch.bool))

    tape = TapeBackend(poison=True).record(body)
    tape.replay()
    assert all(t.isnan().all() for t in kept[:4])
    assert kept[4].tolist() == [0x7F] * 3 and kept[5].tolist() == [0x7F7F7F7F7F7F7F7F] * 3
    assert kept[6].tolist() == [True] * 3
    assert tape.bytes_held == 3 * (2 + 2 + 8 + 8 + 1 + 8 + 1)


@pytest.mark.parametrize("recorded_in", [False, True])
@pytest.mark.parametrize("replayed_in", [False, True])
def test_inference_mode_of_the_recording_is_entered(recorded_in: bool, replayed_in: bool) -> None:
    x = torch.randn(3)
    out = torch.empty(3)
    with torch.inference_mode(recorded_in):

        def body() -> None:
            out.copy_((x * 2).add_(1))

        tape = TapeBackend(poison=True).record(body)
    with torch.inference_mode(replayed_in):
        tape.replay()
    assert torch.equal(out, x * 2 + 1)


def test_the_recorded_modes_are_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []
    with torch.library._scoped_library("ostinato_test_modes", "DEF") as library:
        library.define("note(Tensor x) -> Tensor")

        def note(x: T) -> T:
            seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
            return x + 1

        library.impl("note", note, "CPU")
        x = torch.ones(3)
        operator = torch.ops.ostinato_test_modes.note

        def body() -> None:
            operator(x)
            with torch.no_grad():
                operator(x)
            with torch.inference_mode():
                operator(x)

        def check_it() -> None:
            seen.clear()
            tape = TapeBackend().record(body)
            recorded = list(seen)
            assert recorded == [(True, False), (False, False), (False, True)]
            seen.clear()
            with torch.inference_mode():
                tape.replay()
            assert seen == recorded

        assert_fails_under("tape.callers_modes", check_it, monkeypatch)


def test_the_callers_autocast_does_not_reach_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_it() -> None:
        x, weight = inputs(0, (4, 4), (4, 4))
        tape, outputs = record(lambda x: x @ weight, [x])
        with torch.autocast("cpu", torch.bfloat16):
            tape.replay()
        assert bytes_of(outputs[0]) == bytes_of(x @ weight)

    assert_fails_under("tape.callers_autocast", check_it, monkeypatch)


def test_recorded_autocast_is_kept() -> None:
    def fn(x: T) -> T:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return (x @ x).float()

    check(fn, (4, 4))


def test_a_freed_tape_refuses_to_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_it() -> None:
        backend = TapeBackend()
        x = torch.ones(3)
        one, other = backend.record(lambda: x + 1), backend.record(lambda: x + 2)
        one.free()
        one.free()
        assert one.bytes_held == 0 and other.bytes_held == 12
        with pytest.raises(RuntimeError, match="freed"):
            one.replay()
        other.replay()
        backend.close()
        with pytest.raises(RuntimeError, match="freed"):
            other.replay()

    assert_fails_under("tape.freed_tapes_replay", check_it, monkeypatch)


@pytest.mark.parametrize(
    ("rule", "fn"),
    [
        ("host-scalar", lambda x: x.sum().item()),
        ("host-compare", lambda x: torch.equal(x, x)),
        ("baked-data", lambda x: torch.tensor([1.0, 2.0])),
        ("data-dependent", lambda x: x.nonzero()),
        ("baked-data", lambda x: torch.tensor(0.0).add_(x.sum())),
        ("baked-data", lambda x: torch.frombuffer(bytearray(8), dtype=torch.float32)),
        ("compiled-frame", lambda x: torch.compile(torch.relu, backend="eager")(x)),
        ("device-wait", lambda x: torch.cuda.synchronize()),
        ("boolean-read", lambda x: x[x > 0]),
        ("boolean-write", lambda x: x.clone().index_put_((x > 0,), x.sum())),
        ("layout", lambda x: x.to_sparse()),
        ("device-move", lambda x: torch.empty(3, device="meta").copy_(x)),
        ("rebind", lambda x: x.unsqueeze_(0)),
        ("rebind", lambda x: torch.sum(torch.ones(5, 5), 0, keepdim=True, out=OUTSIDE)),
    ],
)
def test_the_tape_refuses_by_itself(
    rule: str, fn: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_it() -> None:
        x = torch.randn(3)
        with pytest.raises(RecordingRefused) as caught:
            TapeBackend().record(lambda: fn(x))
        assert caught.value.rule == rule
        assert str(caught.value.location).startswith(__file__) or rule == "rebind"
        assert x.shape == (3,) and OUTSIDE.shape == (0,)

    assert_fails_under(f"rules.{rule}", check_it, monkeypatch)


def test_memory_is_given_back_when_a_tape_is_freed() -> None:
    kept: list[T] = []

    def body() -> None:
        kept.append((torch.ones(1000) + 1).unsqueeze(0))

    tape = TapeBackend().record(body)
    assert tape.bytes_held == 8000
    storage = weakref.ref(kept[0].untyped_storage())
    kept.clear()
    assert storage() is not None
    tape.free()
    assert storage() is None


def test_memory_is_given_back_when_a_recording_is_refused() -> None:
    storages = []

    def body() -> None:
        large = torch.ones(1000) + 1
        storages.append(weakref.ref(large.untyped_storage()))
        large.sum().item()

    with pytest.raises(RecordingRefused):
        TapeBackend().record(body)
    gc.collect()
    assert storages[0]() is None


@pytest.mark.parametrize("grad", [False, True])
def test_parameters_that_require_grad(grad: bool) -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def fn(x: T) -> Any:
        return layer(x).detach()

    with torch.set_grad_enabled(grad):
        check(fn, (2, 4))


def test_what_the_probe_lets_pass_can_be_recorded() -> None:
    x = torch.randn(4, 4)
    probe(lambda: run([("attention", 0, 1, 1), ("set_number", 3, 0, 1)], x, x, Buffers()), [x])
    check_program([("attention", 0, 1, 1), ("set_number", 3, 0, 1)])


def test_warm_up_runs_the_body_in_its_phase() -> None:
    phases = []
    TapeBackend().warm_up(lambda: phases.append(state.current().phase))  # type: ignore[union-attr]
    assert phases == [state.Phase.WARM_UP]
