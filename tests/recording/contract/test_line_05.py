"""Line 5, the gate: what does not answer like the direct call is refused, loudly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ostinato
from ostinato import GraphConfig
from ostinato.errors import GateFailed, RouteUnavailable
from ostinato.recording import gate
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.region import Region
from tests.mutations import assert_fails_under
from tests.recording.serving import AT_ONCE, T, content, graphed, rand, serving


def check_padding_reaches_real_rows() -> None:
    axis = Axis("n", top=16, rungs=(16,))
    region = Region("mean", lambda x: x - x.mean(0), grows={0: {0: Grows(axis)}})
    with serving(region, GraphConfig(mode="ladder", min_hits=1)) as served:
        with pytest.raises(RouteUnavailable, match="gate"), ostinato.route("rung"):
            served.call((rand(0, 5, 2),), {})
        x = rand(1, 5, 2)
        assert content(served.call((x,), {})) == content(x - x.mean(0))


def check_gate_inputs_are_used() -> None:
    def fn(x: T, n: T) -> T:
        return x / n

    served = graphed(fn, gate_inputs=[((rand(0, 3), torch.tensor(0)), {})])
    served(rand(1, 3), torch.tensor(2))
    assert "gate-not-finite" in served.why().reason
    served = graphed(fn, gate_inputs=lambda sizes: [((rand(0, 3), torch.tensor(3)), {})])
    served(rand(1, 3), torch.tensor(2))
    assert served.why().route == "exact"


def check_wrong_replays_are_noticed() -> None:
    """A backend that forgets its last operator, checked by the gate alone."""
    from ostinato.recording.tape import Tape

    original = Tape.__init__

    def init(self: Any, backend: Any, recorder: Any) -> None:
        recorder.entries = recorder.entries[:1] + recorder.entries[2:]
        original(self, backend, recorder)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tape, "__init__", init)
        served = graphed(lambda x: (x + 1) * 2 - 3)
        x = rand(0, 5)
        assert content(served(x)) == content((x + 1) * 2 - 3)
        assert "[gate" in served.why().reason


def check_not_finite_does_not_count() -> None:
    served = graphed(lambda x: x / 0.0)
    assert served(torch.ones(3)).isinf().all()
    assert "gate-not-finite" in served.why().reason


@pytest.mark.parametrize(
    ("mutation", "check"),
    [
        ("gate.accepts_all", check_wrong_replays_are_noticed),
        ("gate.accepts_all", check_not_finite_does_not_count),
        ("gate.accepts_all", check_padding_reaches_real_rows),
        ("gate.callers_inputs_are_ignored", check_gate_inputs_are_used),
    ],
)
def test_gate(mutation: str, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(mutation, check, monkeypatch)


def test_a_direct_call_that_does_not_repeat_itself() -> None:
    """Its own spread is the tolerance, and the verdict says so."""
    with torch.library._scoped_library("ostinato_test_spread", "DEF") as library:
        library.define("shaky(Tensor x) -> Tensor")
        noise = torch.Generator().manual_seed(0)

        def shaky(x: T) -> T:
            return x * (1 + 1e-6 * torch.rand(1, generator=noise))

        library.impl("shaky", shaky, "CPU")
        served = graphed(torch.ops.ostinato_test_spread.shaky)
        x = rand(0, 5)
        torch.testing.assert_close(served(x), x, rtol=1e-5, atol=1e-5)
        (entry,) = served.recordings()
        assert not entry.verdict.is_exact and "spread" in entry.verdict.note
        assert 0 < entry.verdict.worst < 1e-5


def test_verdicts_of_equal_bytes() -> None:
    served = graphed(lambda x: x * 2)
    served(rand(0, 5))
    assert served.recordings()[0].verdict == gate.Verdict(True, 0.0)


def test_integers_keep_the_examples_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong index would be an illegal address."""
    table = rand(0, 4, 3)
    served = graphed(lambda x, index: table[index] + x)
    index = torch.tensor([0, 3, 1])
    served(rand(1, 3), index)
    assert served.why().route == "exact"
    assert content(served(rand(2, 3), index + 0)) == content(table[index] + rand(2, 3))


def test_paranoid_notices_a_recording_that_goes_wrong_later() -> None:
    config = GraphConfig(min_hits=1, verify="paranoid")
    served = graphed(lambda x: x * 2, config)
    x = rand(0, 3)
    served(x)
    assert served.why().route == "exact"
    (entry,) = served.recordings()
    entry.recorded.replay = lambda: None  # type: ignore[method-assign]
    assert content(served(x + 1)) == content((x + 1) * 2)
    assert not entry.is_alive and served.stats().num_refused == 1
    assert content(served(x)) == content(x * 2) and "refused" in served.why().reason


def test_verify_off_compares_nothing() -> None:
    served = graphed(lambda x: x / 0.0, GraphConfig(min_hits=1, verify="off"))
    served(torch.ones(2))
    assert served.why().route == "exact" and AT_ONCE.verify == "on_record"
    with pytest.raises(GateFailed):
        gate.check_finite([torch.full((3,), float("inf"))], "x")
