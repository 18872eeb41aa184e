"""Threads, streams and lanes (contract 10)."""

from __future__ import annotations

import pytest
import torch

import ostinato
from bench import concurrency
from ostinato import GraphConfig
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner
from tests.gpu.gpu_mutations import assert_fails_under
from tests.gpu.regions import DEVICE, T, same, tensor

pytestmark = pytest.mark.device


def long(x: T) -> T:
    """120 elementwise kernels."""
    total = x
    for _ in range(60):
        total = torch.sin(total + x)
    return total


def test_two_streams_of_one_lane_never_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long replays on two streams in turn; without the join they share inputs and temporaries."""

    def check() -> None:
        runner = Runner.on(DEVICE, GraphConfig())
        served = runner.serve(Region(name="long", fn=long), GraphConfig(min_hits=1))
        pair = [torch.cuda.Stream(), torch.cuda.Stream()]
        inputs = [tensor(seed, 1 << 22) for seed in range(8)]
        torch.cuda.synchronize()
        held = []
        try:
            with ostinato.route("exact"):
                served.call((inputs[0],), {})
                torch.cuda.synchronize()
                for x, stream in zip(inputs, pair * 4, strict=True):
                    with torch.cuda.stream(stream):
                        held.append(served.call((x,), {}))
            torch.cuda.synchronize()
            assert all(same(got, long(x)) for got, x in zip(held, inputs, strict=True))
        finally:
            torch.cuda.synchronize()
            runner.close()

    assert_fails_under("cuda.streams_are_not_joined", check, monkeypatch)


def test_a_recording_comes_after_replays_that_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It uses their temporaries; the stream it is asked for from knows nothing of them."""

    def check() -> None:
        runner = Runner.on(DEVICE, GraphConfig())
        served = runner.serve(Region(name="long", fn=long), GraphConfig(min_hits=1))
        busy, other = torch.cuda.Stream(), torch.cuda.Stream()
        inputs = [tensor(seed, 1 << 24) for seed in range(6)] * 10  # some 300 ms of work
        smaller = tensor(99, (1 << 24) - 4096)
        torch.cuda.synchronize()
        try:
            with ostinato.route("exact"):
                served.call((inputs[0],), {})
                torch.cuda.synchronize()
                with torch.cuda.stream(busy):
                    held = [served.call((x,), {}) for x in inputs]
                with torch.cuda.stream(other):
                    small = served.call((smaller,), {})
            torch.cuda.synchronize()
            assert same(small, long(smaller))
            assert all(same(got, long(x)) for got, x in zip(held, inputs, strict=True))
        finally:
            torch.cuda.synchronize()
            runner.close()

    assert_fails_under("lane.jobs_join_nothing", check, monkeypatch)


def check_shares(figures: dict[str, object]) -> None:
    assert figures["num_wrong"] == 0, figures
    assert figures["num_uncounted"] == 0, figures
    assert figures["exact_share"] >= 0.3 and figures["rung_share"] >= 0.3, figures  # type: ignore[operator]


def test_four_threads_while_another_allocates_pins_collects_and_records() -> None:
    figures = concurrency.threads_on_one_lane(4, 1000)
    assert figures["num_calls"] == 4000 and figures["noise_turns"] > 10
    check_shares(figures)


def test_threads_that_live_shortly() -> None:
    figures = concurrency.short_lived_threads(60, 10)
    assert figures["num_calls"] == 600
    check_shares(figures)


def test_two_lanes_overlap_and_are_right() -> None:
    figures = concurrency.two_lanes(100)
    assert figures["num_wrong"] == 0, figures
    assert figures["num_exact"] == 2 * (100 + 100 + 2), figures


def test_random_draws_of_two_lanes_do_not_mix() -> None:
    """Up to torch 2.11 all graphs of one generator share their seed and offset in device memory."""

    def noise(x: T) -> T:
        for _ in range(10):
            x = torch.sin(x) + torch.randn_like(x)
        return x

    runners = [Runner.on(DEVICE, GraphConfig()) for _ in range(2)]
    lanes = [r.serve(Region(name="noise", fn=noise), GraphConfig(min_hits=1)) for r in runners]
    pair, x = [torch.cuda.Stream(), torch.cuda.Stream()], tensor(0, 1 << 18)
    torch.cuda.synchronize()
    with ostinato.route("exact"):
        for lane in lanes:
            lane.call((x,), {})
        torch.cuda.synchronize()
        torch.manual_seed(2)
        got = []
        for turn in range(20):
            with torch.cuda.stream(pair[turn % 2]):
                got.append(lanes[turn % 2].call((x,), {}))
    torch.cuda.synchronize()
    torch.manual_seed(2)
    assert all(same(result, noise(x)) for result in got)
    for runner in runners:
        runner.close()
