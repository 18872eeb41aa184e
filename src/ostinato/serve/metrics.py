"""``/metrics``: one registry per app, none of it global. ``docs/metrics.md`` lists every name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ostinato.serve.device_thread import Phase
from ostinato.serve.lifecycle import Lifecycle
from ostinato.serve.service import Served

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class _SnapshotCollector(Collector):
    """Reads the service's numbers when somebody asks for the page, not before."""

    def __init__(self, service: Served) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        return []  # the names are known only to the service

    def collect(self) -> Iterator[Metric]:
        for name, value in sorted(self._service.snapshot().items()):
            text = f"{name.replace('_', ' ')}, as the model counts it"
            yield GaugeMetricFamily(f"ostinato_service_{name}", text, value=float(value))


class Metrics:
    """What happened to the requests of one app."""

    def __init__(self, service: Served) -> None:
        self.registry = CollectorRegistry()
        self._replies = Counter(
            "ostinato_replies",
            "images, videos and other items answered, by how they were served",
            ["route"],
            registry=self.registry,
        )
        self._refusals = Counter(
            "ostinato_refusals",
            "requests not answered, by the status they got",
            ["status"],
            registry=self.registry,
        )
        self._stages = Histogram(
            "ostinato_stage_seconds",
            "time spent per stage of a request",
            ["stage"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._batches = Histogram(
            "ostinato_batch_items",
            "items that shared one turn of the device",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self._queued = Gauge("ostinato_queued", "items that wait now", registry=self.registry)
        self._ready = Gauge("ostinato_ready", "1 once the warm-up is over", registry=self.registry)
        self.registry.register(_SnapshotCollector(service))

    def watch(self, device: Lifecycle) -> None:
        """Read queue and readiness from there whenever the page is asked for."""
        self._queued.set_function(lambda: device.num_queued)
        self._ready.set_function(lambda: device.phase is Phase.READY)

    def count_batch(self, num_items: int) -> None:
        """Count one turn of the device."""
        self._batches.observe(num_items)

    def count_routes(self, routes: Iterable[str]) -> None:
        """Count items under how they were served."""
        for route in routes:
            self._replies.labels(route).inc()

    def count_stages(self, stage_ms: Mapping[str, float]) -> None:
        """Count the stages of one request."""
        for stage, value_ms in stage_ms.items():
            self._stages.labels(stage).observe(value_ms / 1e3)

    def count_refusal(self, status: int) -> None:
        """Count a request that ended with an error status."""
        self._refusals.labels(str(status)).inc()


def metrics_router(metrics: Metrics) -> APIRouter:
    """The page a scraper reads."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics")
    async def page() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router
