"""Numbers about chat, on the registry of the app; vLLM's names where the meaning is the same.

``docs/metrics.md`` lists every name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ostinato.serve.metrics import Metrics
from ostinato.serve.openai.asks import Ask
from ostinato.serve.openai.contract import ChatService
from ostinato.serve.openai.generation import Arrival, Generation

LABEL = "model_name"
FIRST_TOKEN_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
    40,
)
TOKEN_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1, 5)
REQUEST_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 60, 120, 480)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

GAUGES = {
    "cache_usage": ("vllm:kv_cache_usage_perc", "pages of keys in use, 1 is all"),
}
COUNTERS = {
    "prefix_cache_queries": ("vllm:prefix_cache_queries", "prompt tokens looked up"),
    "prefix_cache_hits": ("vllm:prefix_cache_hits", "prompt tokens found"),
    "num_preemptions": ("vllm:num_preemptions", "answers put back for want of memory"),
}


class _EngineCollector(Collector):
    """The service's own counts, read when somebody asks for the page."""

    def __init__(self, service: ChatService, count_open: Callable[[], int]) -> None:
        self._service = service
        self._count_open = count_open

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        counted = self._service.snapshot()
        waiting = counted.get("num_waiting", 0)
        running = counted.get("num_running", self._count_open() - waiting)
        yield self._gauge("vllm:num_requests_running", "answers being drawn", running)
        yield self._gauge("vllm:num_requests_waiting", "answers not begun", waiting)
        for key, (name, text) in GAUGES.items():
            if key in counted:
                yield self._gauge(name, text, counted[key])
        for key, (name, text) in COUNTERS.items():
            if key in counted:
                counter = CounterMetricFamily(name, text, labels=[LABEL])
                counter.add_metric([self._service.name], float(counted[key]))
                yield counter

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, text, labels=[LABEL])
        gauge.add_metric([self._service.name], float(value))
        return gauge


class ChatMetrics:
    """What happened to the requests of one app."""

    def __init__(self, shared: Metrics, service: ChatService) -> None:
        self._shared = shared
        self._name = service.name
        self._service = service
        self.prompt_tokens = self._counter("prompt_tokens", "prompt tokens of begun requests")
        self.generation_tokens = self._counter("generation_tokens", "tokens drawn")
        self._finished = Counter(
            "vllm:request_success",
            "answers that ended, by how",
            [LABEL, "finished_reason"],
            registry=shared.registry,
        )
        self.first_token_s = self._histogram(
            "time_to_first_token_seconds", "body read to first token", FIRST_TOKEN_S
        )
        self.token_s = self._histogram(
            "inter_token_latency_seconds", "one token to the next", TOKEN_S
        )
        self.mean_token_s = self._histogram(
            "time_per_output_token_seconds", "the same, mean of an answer", TOKEN_S
        )
        self.request_s = self._histogram(
            "e2e_request_latency_seconds", "body read to last token", REQUEST_S
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "prompt tokens of a request", TOKENS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "tokens of an answer", TOKENS
        )

    def watch(self, count_open: Callable[[], int]) -> None:
        """Read what runs and waits whenever the page is asked for."""
        self._shared.registry.register(_EngineCollector(self._service, count_open))

    def count_routes(self, generation: Generation) -> None:
        """Count the images and videos of a request that was answered, by how they were served."""
        self._shared.count_routes(generation.routes)

    def count_finished(self, reason: str) -> None:
        """``stop``, ``length``, ``abort`` (the client left) or ``error``."""
        self._finished.labels(self._name, reason).inc()

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"vllm:{name}", text, [LABEL], registry=self._shared.registry)
        return counter.labels(self._name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}", text, [LABEL], buckets=buckets, registry=self._shared.registry
        )
        return histogram.labels(self._name)


class RequestTimes:
    """Observes one request as its deltas arrive. ``began_s``: ``time.perf_counter``."""

    def __init__(self, metrics: ChatMetrics, began_s: float) -> None:
        self._metrics = metrics
        self._began_s = began_s
        self._num_open = 0
        self._first_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}
        self._tokens: dict[int, int] = {}

    def began(self, ask: Ask, generation: Generation) -> None:
        """The prompts are known and queued."""
        self._num_open = len(ask.prompts) * ask.num_choices
        self._metrics.prompt_tokens.inc(generation.prompt_tokens)
        self._metrics.request_prompt_tokens.observe(generation.prompt_tokens)

    def arrived(self, arrival: Arrival) -> None:
        """A delta is here; counted by when it was given, whenever the loop came to it."""
        for at_s, num_tokens in arrival.steps:
            if num_tokens:
                self._step(arrival.index, at_s, num_tokens)
        if arrival.delta.finish_reason is not None:
            self._num_open -= 1
            self._finish(arrival.index, arrival.delta.finish_reason)

    def _step(self, index: int, at_s: float, num_tokens: int) -> None:
        if index not in self._first_s:
            self._first_s[index] = at_s
            self._metrics.first_token_s.observe(at_s - self._began_s)
        else:
            self._metrics.token_s.observe((at_s - self._last_s[index]) / num_tokens)
        self._last_s[index] = at_s
        self._tokens[index] = self._tokens.get(index, 0) + num_tokens
        self._metrics.generation_tokens.inc(num_tokens)

    def ended(self, reason: str) -> None:
        """The answers that had not finished end with ``reason``; without any this does nothing."""
        for _ in range(self._num_open):
            self._metrics.count_finished(reason)
        self._num_open = 0

    def _finish(self, index: int, reason: str) -> None:
        metrics, count = self._metrics, self._tokens.get(index, 0)
        metrics.count_finished(reason)
        metrics.request_s.observe(time.perf_counter() - self._began_s)
        metrics.request_generation_tokens.observe(count)
        if count > 1:
            took_s = self._last_s[index] - self._first_s[index]
            metrics.mean_token_s.observe(took_s / (count - 1))
