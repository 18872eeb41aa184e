"""Who owns the results, what a shared pool does to them, uploads, and what no call may wait for
(contract 2, 6, 12, 13).
"""

from __future__ import annotations

import time
import warnings

import pytest
import torch

import ostinato
from ostinato import GraphConfig
from ostinato.recording.graphed import warm_up
from ostinato.recording.pieces import direct
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner
from tests.gpu.conftest import Make
from tests.gpu.gpu_mutations import assert_fails_under
from tests.gpu.regions import DEVICE, T, exactly, same, tensor, waves

SLEEP_CYCLES = 200_000_000
"""About a tenth of a second of an H200."""


def test_results_are_the_callers_own(graph: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        graphed = graph(waves)
        calls = [tensor(seed, 1000) for seed in range(50)]
        held = [exactly(graphed, x) for x in calls]
        assert all(same(got, waves(x)) for got, x in zip(held, calls, strict=True))

    assert_fails_under("results.are_borrowed", check, monkeypatch)


def test_a_warm_up_records_the_largest_first(graph: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        graphed = graph(waves)
        assert not warm_up(graphed, [((tensor(0, n),), {}) for n in (64, 512, 1, 4096, 8)])
        sizes = [entry.inputs.tensors[0].numel() for entry in graphed.recordings()]
        assert sizes == [4096, 512, 64, 8, 1]

    assert_fails_under("graphed.callers_order", check, monkeypatch)


def test_a_borrowed_result_is_the_static_one(graph: Make) -> None:
    graphed = graph(waves, config=GraphConfig(min_hits=1))
    exactly(graphed, tensor(0, 100))
    with ostinato.route("exact"):
        borrowed = graphed.borrow(tensor(1, 100))
        assert same(borrowed, waves(tensor(1, 100)))
        graphed(tensor(2, 100))
    assert same(borrowed, waves(tensor(2, 100)))


@pytest.mark.device
def test_results_on_side_streams_are_ordered(graph: Make) -> None:
    graphed, held = graph(waves), []
    exactly(graphed, tensor(0, 1 << 16))
    for seed in range(60):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = tensor(seed, 1 << 16)
            held.append((stream, x, exactly(graphed, x)))
    for stream, x, got in held:
        with torch.cuda.stream(stream):
            assert same(got, waves(x))


def test_temporaries_of_one_recording_do_not_reach_results_of_another(graph: Make) -> None:
    def many_temporaries(x: T) -> T:
        parts = [x * i for i in range(8)]
        return torch.stack(parts).sum(0) + 1

    def late(x: T) -> T:
        return x * 3 + 1

    a, b = graph(many_temporaries), graph(late)
    x = tensor(0, 1 << 20)
    exactly(a, x)
    exactly(b, x)
    with ostinato.route("exact"):
        borrowed = b.borrow(x)
        assert same(a(x), many_temporaries(x))
    assert same(borrowed, late(x))


def test_a_lazily_built_cache_outlives_its_recording(graph: Make) -> None:
    class Tables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table: T | None = None

        def forward(self, x: T) -> T:
            if self.table is None:
                self.table = torch.linspace(0, 1, x.shape[0], device=x.device)
            return waves(x + self.table)

    module, x = Tables(), tensor(0, 1 << 16)
    want = Tables()(x)
    graphed = graph(module, config=GraphConfig(min_hits=1))
    others = [graph(waves) for _ in range(3)]
    assert same(graphed(x), want)
    for _ in range(3):
        for other in others:
            exactly(other, x)
        assert same(graphed(x), want)
        assert same(module(x), want)
    graphed.close()
    scribble = [tensor(i, 1 << 16) for i in range(32)]
    assert len(scribble) == 32 and same(module(x), want)


def gather(x: T, rows: T, scale: T) -> T:
    return waves(x[rows] * scale)


@pytest.mark.device
def test_staging_is_not_overwritten_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads wait behind a busy device; the caller's own host tensors are reused at once."""

    def check() -> None:
        runner = Runner.on(DEVICE, GraphConfig())
        region = Region(name="gather", fn=gather, uploads=frozenset({1, 2}))
        served = runner.serve(region, GraphConfig(min_hits=1))
        x, held = tensor(0, 4096), []
        rows, scale = torch.zeros(512, dtype=torch.int64), torch.zeros(512)
        generator = torch.Generator().manual_seed(1)
        try:
            with ostinato.route("exact"):
                served.call((x, rows, scale), {})
                for turn in range(60):
                    if turn % 20 == 0:
                        torch.cuda._sleep(SLEEP_CYCLES)
                    rows.copy_(torch.randint(4096, (512,), generator=generator))
                    scale.copy_(torch.randn(512, generator=generator))
                    result = served.call((x, rows, scale), {})
                    held.append((rows.clone(), scale.clone(), result))
            for kept_rows, kept_scale, got in held:
                assert same(got, gather(x, kept_rows.to(DEVICE), kept_scale.to(DEVICE)))
        finally:
            runner.close()

    assert_fails_under("upload.slots_are_not_waited_for", check, monkeypatch)


@pytest.mark.device
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_call_waits_for_nothing(graph: Make) -> None:
    graphed, x = graph(waves), tensor(0, 1 << 16)
    exactly(graphed, x)
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(4 * SLEEP_CYCLES)
    busy.record()
    try:
        with warnings.catch_warnings():  # torch calls the mode a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        start = time.perf_counter()
        with ostinato.route("exact"):
            got = graphed(x)
        elapsed = time.perf_counter() - start
        is_busy = not busy.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert is_busy and elapsed < 0.05, elapsed
    assert same(got, waves(x))


def swap_on_host(x: T) -> T:
    return torch.tensor(x.tolist()[::-1], dtype=x.dtype).to(x.device)


def pieces(x: T) -> T:
    y = waves(x)
    z = direct(swap_on_host, y)
    return waves(z) + y


def test_pieces_with_a_direct_call_between_them(graph: Make) -> None:
    graphed = graph(pieces)
    calls = [tensor(seed, 64) for seed in range(6)]
    held = [exactly(graphed, x) for x in calls]
    assert all(same(got, pieces(x)) for got, x in zip(held, calls, strict=True))
    assert graphed.recordings()[0].recorded.num_pieces == 2


def test_routes_are_visible(graph: Make) -> None:
    graphed, x = graph(waves), tensor(0, 64)
    exactly(graphed, x)
    with ostinato.route("direct"):
        graphed(x)
    route = graphed.why()
    assert route is not None and tuple(route) == ("direct", "forced", ())
    stats = graphed.stats()
    assert dict(stats.calls) == {"exact": 1, "rung": 0, "direct": 1}
    assert stats.num_recorded == 1 and stats.bytes_held > 0
