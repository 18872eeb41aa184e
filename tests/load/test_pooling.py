"""The server under load: no error but the deserved, right results, and a loop that answers."""

from __future__ import annotations

import pytest

from tests.load.clients import BROKEN, metrics, run_clients, server

HEALTH_P99_MS = 250
QUICK_P99_MS = 2000  # a few dozen samples beside other tests: only a blocked loop is found


@pytest.mark.parametrize(
    ("num_clients", "seconds", "flags"),
    [
        pytest.param(16, 2, [], id="quick"),
        pytest.param(64, 10, [], id="full", marks=pytest.mark.load),
        pytest.param(64, 10, ["--cache-bytes", "200000"], id="cache", marks=pytest.mark.load),
    ],
)
def test_many_clients_with_broken_inputs_among_them(
    num_clients: int, seconds: float, flags: list[str]
) -> None:
    with server(*flags) as port:
        outcome = run_clients(port, num_clients=num_clients, seconds=seconds)
        numbers = metrics(port)
    p50_ms, p99_ms = outcome.percentile_ms(50), outcome.percentile_ms(99)
    print(
        f"{outcome.num_served} served, {outcome.num_refused} refused, routes {outcome.routes}, "
        f"health P50 {p50_ms:.0f} P99 {p99_ms:.0f} ms of {len(outcome.health_ms)}"
    )
    assert outcome.wrong == []
    assert outcome.num_served >= num_clients // 2
    assert outcome.num_refused > (len(BROKEN) if seconds >= 10 else 0)
    assert "rung" in outcome.routes
    assert ("cache" in outcome.routes) is bool(flags)
    assert p99_ms <= (HEALTH_P99_MS if seconds >= 10 else QUICK_P99_MS)
    # what arrived together was served together
    assert numbers["ostinato_batch_items_sum"] > 1.5 * numbers["ostinato_batch_items_count"]
    assert numbers["ostinato_queued"] == 0
    assert numbers['ostinato_refusals_total{status="400"}'] == outcome.num_refused
