"""Numbers about robots, on the registry of the app. ``docs/metrics.md`` lists every name."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

from ostinato.serve.metrics import Metrics


class RobotMetrics:
    """What happened to the requests of robots, over websockets and HTTP alike."""

    def __init__(self, shared: Metrics) -> None:
        self._shared = shared
        registry = shared.registry
        self._errors = Counter(
            "ostinato_robot_errors",
            "observations that got no actions, by the rule of the error",
            ["code"],
            registry=registry,
        )
        self._clamped = Counter(
            "ostinato_clamped_values", "action values brought to a bound", registry=registry
        )
        self._warming = Counter(
            "ostinato_keep_warm_calls", "calls that nobody asked for", registry=registry
        )
        self.clients = Gauge(
            "ostinato_robot_connections", "websockets that are open now", registry=registry
        )
        self.dropped_records = Counter(
            "ostinato_records_dropped", "exchanges not written by --record", registry=registry
        )

    def count_answer(self, route: str, stage_ms: Mapping[str, float], num_clamped: int) -> None:
        """Count a chunk that was sent."""
        self._shared.count_routes([route])
        self._shared.count_stages(stage_ms)
        if num_clamped:
            self._clamped.inc(num_clamped)

    def count_error(self, code: str | None) -> None:
        """Count a request that ended without actions."""
        self._errors.labels(code or "other").inc()

    def count_warming(self) -> None:
        self._warming.inc()
