"""A probe tells what one call reads, writes, draws and holds, and leaves no trace when restored."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from ostinato import state
from ostinato.errors import RecordingRefused
from ostinato.recording.calls import generator_key
from ostinato.recording.observer import Observer
from ostinato.recording.pieces import direct
from ostinato.recording.probe import probe
from ostinato.recording.rules import Finding
from tests.mutations import assert_fails_under
from tests.recording.programs import Buffers, run
from tests.recording.tape_checks import bytes_of
from tests.recording.test_tape import steps

T = torch.Tensor


def test_reads_are_external_tensors_by_storage() -> None:
    layer = nn.Linear(3, 3)
    table = torch.randn(4, 3)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    with torch.no_grad():
        seen = probe(lambda: layer(x) + table[1:3] + table[0].sum() + y.t().t(), [x, y])
    assert {t.untyped_storage().data_ptr() for t in seen.reads} == {
        t.untyped_storage().data_ptr() for t in (layer.weight, layer.bias, table)
    }
    assert any(t is layer.weight for t in seen.reads)
    assert seen.writes == () and seen.input_writes == () and not seen.is_random
    assert bytes_of(seen.result) == bytes_of(layer(x) + table[1:3] + table[0].sum() + y)


def test_undeclared_writes_are_told_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = nn.BatchNorm1d(3).requires_grad_(False)
    calls, declared, x = torch.zeros(()), torch.zeros(3), torch.randn(4, 3)

    def body() -> Any:
        calls.add_(1)
        declared.add_(1)
        return norm(x) * calls

    def check() -> None:
        before = [bytes_of(t) for t in (*norm.buffers(), calls)]
        seen = probe(body, [x], state=[declared])
        assert [bytes_of(t) for t in (*norm.buffers(), calls)] != before
        written = {w.tensor.data_ptr(): w for w in seen.writes}
        assert written.keys() == {t.data_ptr() for t in (*norm.buffers(), calls)}
        assert written[calls.data_ptr()].operator == "aten.add_.Tensor"
        assert str(written[calls.data_ptr()].location).startswith(__file__)
        seen.restore()
        assert [bytes_of(t) for t in (*norm.buffers(), calls)] == before

    assert_fails_under("calls.schema_is_trusted", check, monkeypatch)
    norm.reset_running_stats()
    calls.zero_()
    assert_fails_under("undo.no_clone_before_write", check, monkeypatch)
    assert declared[0] == 4  # each of the four runs; a probe does not touch declared state


def test_writes_to_declared_inputs_are_told_and_put_back() -> None:
    whole = torch.randn(8)
    x, y, z = whole[:4], whole[4:], torch.randn(4)
    before = bytes_of(whole)
    seen = probe(lambda: x.add_(z), [x, y, z], writes=[0, 1])
    assert seen.input_writes == (0, 1)  # they share a storage
    assert seen.writes == () and seen.reads == ()
    seen.restore()
    assert bytes_of(whole) == before
    with pytest.raises(RecordingRefused, match="on input 1"):
        probe(lambda: x.add_(z), [x, y, z], writes=[0])
    assert bytes_of(whole) == before


def test_large_state_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, small = torch.zeros(1024), torch.zeros(8)
    seen: list[int] = []

    def body() -> None:
        small.add_(1)
        try:
            cache.add_(1)
        finally:
            seen.append(cache._version)

    def check() -> None:
        with pytest.raises(RecordingRefused) as caught:
            probe(body, [], max_state_bytes=4096 + 31)
        assert caught.value.rule == "large-state" and "4128 bytes" in str(caught.value)
        assert str(caught.value.location).startswith(__file__)
        assert not cache.any() and not small.any()

    assert_fails_under("rules.large-state", check, monkeypatch)
    assert seen == [0, 1]
    cache.zero_()
    small.zero_()
    probe(body, [], max_state_bytes=4096 + 32).restore()
    assert not cache.any() and not small.any()
    probe(body, [], state=[cache[5:]], max_state_bytes=32)


@pytest.mark.parametrize("inference", [False, True])
def test_an_error_of_the_body_propagates_and_leaves_no_trace(inference: bool) -> None:
    with torch.inference_mode(inference):
        buffer = torch.zeros(3)
    random = torch.get_rng_state()

    def body() -> None:
        with torch.inference_mode():
            buffer.add_(torch.rand(3))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        probe(body, [])
    assert not buffer.any() and torch.equal(torch.get_rng_state(), random)
    assert not state.is_active()


def check_draws_are_given_back() -> None:
    private = torch.Generator().manual_seed(5)
    states = [torch.get_rng_state(), private.get_state()]

    def body() -> None:
        for _ in range(3):
            torch.rand(3)
            torch.rand(3, generator=private)

    seen = probe(body, [])
    assert seen.is_random
    assert [generator_key(g) for g in seen.generators] == [generator_key(private)]
    seen.restore()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(private.get_state(), states[1])


def test_draws_are_told_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("undo.draws_are_kept", check_draws_are_given_back, monkeypatch)


@pytest.mark.parametrize("inference", [False, True])
def test_dropout_that_is_off_draws_nothing(inference: bool) -> None:
    x = torch.randn(1, 2, 4, 8)
    with torch.inference_mode(inference):
        for training in (False, True):
            assert probe(lambda: F.dropout(x, 0.5, training), [x]).is_random is training  # noqa: B023
            layer = nn.Dropout(0.5).train(training)
            assert probe(lambda: layer(x), [x]).is_random is training  # noqa: B023
        assert not probe(lambda: F.scaled_dot_product_attention(x, x, x), [x]).is_random
        assert not probe(lambda: torch.native_dropout(x, 0.5, False), [x]).is_random
        assert not probe(lambda: F.rrelu(x), [x]).is_random
        assert probe(lambda: torch.bernoulli(x.sigmoid()), [x]).is_random


def test_temporary_bytes_is_the_peak_of_what_lives_at_once() -> None:
    x = torch.randn(256)

    def body() -> T:
        y = x + 1
        y = y.view(16, 16) * 2  # two alive here
        y = y.t().contiguous()  # two again
        z = torch.cat([y, y])  # 3 x
        del y
        return z[:1].clone()

    seen = probe(body, [x])
    assert seen.temporary_bytes == 3 * 1024
    assert seen.num_operations == 8


def test_own_tensors_may_be_written_and_reshaped() -> None:
    x = torch.randn(4, 4)

    def body() -> T:
        own = torch.empty(0)
        torch.add(x, 1, out=own)
        own.t_()
        view = x.view(16)
        view.unsqueeze_(0)
        return own + view.view(4, 4)

    seen = probe(body, [x])
    assert seen.input_writes == () and seen.writes == () and seen.reads == ()


def test_a_resized_tensor_from_outside_is_refused_and_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check() -> None:
        out = torch.empty(0)
        x = torch.randn(3)
        with pytest.raises(RecordingRefused, match="rebind"):
            probe(lambda: torch.add(x, 1, out=out), [x])
        assert out.shape == (0,) and out.untyped_storage().nbytes() == 0

    assert_fails_under("undo.shapes_stay", check, monkeypatch)


def test_a_direct_call_may_do_what_a_recording_may_not() -> None:
    x, log = torch.ones(3), torch.zeros(3)

    def lookup(value: T) -> T:
        log.add_(1)
        return value * float(value.sum())

    seen = probe(lambda: direct(lookup, x + 1) - 1, [x])
    assert seen.result.tolist() == [11.0] * 3
    seen.restore()
    assert not log.any()


def test_a_probe_is_a_warm_up() -> None:
    phases: list[Any] = []
    probe(lambda: phases.append(state.current()), [])
    assert phases[0].phase is state.Phase.WARM_UP and not state.is_active()


def test_findings_are_collected_on_fake_tensors_of_a_gpu() -> None:
    found: list[Finding] = []
    with FakeTensorMode(), torch.inference_mode():
        x = torch.empty(4, 4, device="cuda")
        host = torch.empty(4)

        def body() -> None:
            torch.cuda.synchronize()
            y = x.clone()
            y.index_put_((y > 0,), y.sum())
            y.to("cpu")
            y.mul_(host.sum())

        with Observer(found.append):
            body()
    rules = list(dict.fromkeys(finding.rule.name for finding in found))
    assert rules == ["device-wait", "boolean-write", "device-move", "host-operand"]
    assert all(str(finding.location).startswith(__file__) for finding in found)


@settings(max_examples=30, deadline=None)
@given(st.lists(steps, min_size=1, max_size=8), st.booleans())
def test_random_programs_are_seen_through_and_put_back(program: Any, inference: bool) -> None:
    with torch.inference_mode(inference):
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        mine, theirs = Buffers(), Buffers()
        random = torch.get_rng_state()
        seen = probe(lambda: run(program, x, y, mine), [x, y])
        result = [bytes_of(t) for t in seen.result]
        after = [bytes_of(t) for t in mine.tensors()]
        seen.restore()
        assert [bytes_of(t) for t in mine.tensors()] == [bytes_of(t) for t in Buffers().tensors()]
        assert torch.equal(torch.get_rng_state(), random)
        assert result == [bytes_of(t) for t in run(program, x, y, theirs)]
        assert after == [bytes_of(t) for t in theirs.tensors()]
        names = {step[0] for step in program}
        assert seen.is_random == bool(names & {"dropout", "noise", "draw_in_place"})
        written = 2 * ("batch_norm" in names) + ("history" in names)
        assert len(seen.writes) == written


def test_probes_of_several_threads_do_not_meet() -> None:
    errors: list[str] = []

    def worker(seed: int) -> None:
        x = torch.full((8,), float(seed))
        for _ in range(10):
            if probe(lambda: x + 1, [x]).num_operations != 1:
                errors.append("operations of another thread")
            try:
                probe(x.tolist, [x])
                errors.append("not refused")
            except RecordingRefused:
                pass

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_an_operators_own_checks_are_not_the_regions() -> None:
    x = torch.ones(2)

    def waiting() -> torch.Tensor:
        gc.collect()
        return x * 2

    def checked() -> torch.Tensor:
        with state.checking():
            return waiting()

    assert torch.equal(checked(), x * 2)
    probe(checked, [x])
    with pytest.raises(RecordingRefused, match="allocator"):
        probe(waiting, [x])
