"""Line 13, routes are visible, can be forced, and are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ostinato
from ostinato import GraphConfig
from ostinato.errors import ConfigError, RouteUnavailable
from ostinato.recording.ladder import Axis
from ostinato.recording.stats import EXACT, Route
from tests.mutations import assert_fails_under
from tests.recording.serving import T, content, graphed, rand, settle

AXIS = Axis("n", top=8, rungs=(4, 8))


def double(x: T) -> T:
    return x * 2


def check_every_route_says_why() -> None:
    served = graphed(double, GraphConfig(promote_hits=100, min_hits=2), grows={"x": {0: AXIS}})
    assert served.why() is None
    why = []

    def call(n: int) -> None:
        assert content(served(rand(n, n))) == content(rand(n, n) * 2)
        why.append(served.why())

    call(3)
    call(3)
    settle(served)
    call(3)
    call(9)
    for route in ("direct", "exact", "rung"):
        with ostinato.route(route):  # type: ignore[arg-type]
            call(3)
    assert why == [
        Route("direct", "not recorded yet"),
        Route("direct", "not recorded yet"),
        Route("rung", "padded", (("n", 4),)),
        Route("direct", "not recorded yet"),
        Route("direct", "forced"),
        EXACT,
        Route("rung", "padded", (("n", 4),)),
    ]
    stats = served.stats()
    assert stats.calls == {"exact": 1, "rung": 2, "direct": 4}
    assert stats.reasons["direct: forced"] == 1 and stats.reasons["exact: recorded"] == 1
    assert (stats.rows_served, stats.rows_padded, stats.waste) == (6, 2, 0.25)
    assert stats.num_recorded == stats.num_recordings == len(served.recordings()) == 2
    assert stats.bytes_held == stats.device_bytes_held > 0
    assert stats.recording_seconds > 0 and stats.num_refused == 0 and not stats.refusals


def check_a_forced_route_that_cannot_serve() -> None:
    served = graphed(lambda x: x * float(x.sum()))
    with ostinato.route("exact"), pytest.raises(RouteUnavailable, match="host-scalar"):
        served(rand(0, 3))
    with ostinato.route("rung"), pytest.raises(RouteUnavailable):
        served(rand(0, 3))
    off = graphed(double, GraphConfig(mode="off"))
    with ostinato.route("exact"), pytest.raises(RouteUnavailable, match="off"):
        off(rand(0, 3))


@pytest.mark.parametrize(
    ("mutation", "check"),
    [
        ("stats.nothing_is_counted", check_every_route_says_why),
        ("routes.never_forced", check_every_route_says_why),
        ("routes.never_forced", check_a_forced_route_that_cannot_serve),
    ],
)
def test_routes(mutation: str, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(mutation, check, monkeypatch)


def test_a_route_ends_with_its_block_and_nests() -> None:
    from ostinato.recording.routes import forced

    with ostinato.route("direct"):
        with pytest.raises(KeyError), ostinato.route("exact"):
            assert forced() == "exact"
            raise KeyError
        assert forced() == "direct"
    assert forced() is None
    with pytest.raises(ConfigError, match="fast"), ostinato.route("fast"):  # type: ignore[arg-type]
        pass


def test_mode_off_gives_the_same_bytes() -> None:
    layer = torch.nn.Linear(5, 5).requires_grad_(False)
    on, off = graphed(layer), graphed(layer, GraphConfig(mode="off"))
    for i in range(4):
        x = rand(i, 2, 5)
        assert content(on(x)) == content(off(x)) == content(layer(x))
    assert on.stats().calls["exact"] == 4 and off.stats().calls["direct"] == 4
    assert off.why() == ("direct", "recording is off", ()) and not off.recordings()


def test_min_hits_and_promotion() -> None:
    served = graphed(double, GraphConfig(min_hits=3))
    routes = []
    for _ in range(5):
        served(rand(0, 3))
        routes.append(served.why().route)
    assert routes == ["direct", "direct", "exact", "exact", "exact"]
    promoted = graphed(double, GraphConfig(min_hits=1, promote_hits=3), grows={"x": {0: AXIS}})
    promoted.record(rand(0, 3))
    for _ in range(3):
        promoted(rand(0, 3))
        assert promoted.why().route == "rung"
    settle(promoted)
    promoted(rand(0, 3))
    assert promoted.why() == EXACT
