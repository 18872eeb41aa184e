"""Boundaries, padding, empty parts: all that describes a batch (contract 1, 2, 3, 5, 11)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ostinato
from ostinato import GraphConfig
from ostinato.recording.gate import distance
from ostinato.recording.ladder import Axis, Grows
from tests.gpu.conftest import Make
from tests.gpu.gpu_mutations import assert_fails_under
from tests.gpu.regions import (
    DEVICE,
    T,
    check_exact,
    exactly,
    few,
    offsets,
    refused,
    same,
    segments,
    tensor,
    waves,
)

LENGTHS = [(10, 20, 34), (34, 20, 10), (1, 62, 1), (64, 0, 0), (0, 64, 0), (21, 21, 22)]


def test_boundaries_are_data(graph: Make) -> None:
    x = tensor(0, 64, 16)
    check_exact(graph(segments), segments, [(x, offsets(*lengths)) for lengths in LENGTHS])


@pytest.mark.device
def test_boundaries_of_the_built_in_attention_are_data(graph: Make) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")

    def attend(q: T, k: T, v: T, bounds: T) -> T:
        total = q.shape[0]
        result: T = varlen.varlen_attn(q, k, v, bounds, bounds, total, total)
        return result * 2

    heads = [tensor(seed, 256, 4, 64, dtype=torch.bfloat16) for seed in range(3)]
    cases = [(100, 100, 56), (56, 100, 100), (1, 254, 1), (256, 0, 0), (85, 85, 86)]
    calls = [(*heads, offsets(*lengths)) for lengths in cases]
    assert not same(attend(*calls[0]), attend(*calls[1]))
    check_exact(graph(attend), attend, calls)


def test_a_larger_input_moves_no_buffer(graph: Make) -> None:
    graphed = graph(waves)
    sizes = [64, 4096, 64, 1 << 18, 4096, 64]
    check_exact(graphed, waves, [(tensor(i, n),) for i, n in enumerate(sizes)])
    held = {e.key: e.inputs.tensors[0].data_ptr() for e in graphed.recordings()}
    assert len(held) == 3
    check_exact(graphed, waves, [(tensor(i, n),) for i, n in enumerate([1 << 19, 64])])
    after = {e.key: e.inputs.tensors[0].data_ptr() for e in graphed.recordings()}
    assert held.items() <= after.items()


TOKENS = Axis("tokens", top=128, bottom=32, multiple=32)
SEGMENTS = Axis("segments", top=8, bottom=4, multiple=4)
SEGMENT_GROWS = {
    "x": {0: Grows(TOKENS)},
    "bounds": {0: Grows(SEGMENTS, plus=1, fill=TOKENS)},
}


def ladder_of_segments(graph: Make) -> ostinato.Graphed:
    graphed = graph(segments, grows=SEGMENT_GROWS, config=GraphConfig(mode="ladder"))
    graphed.record(tensor(0, 20, 16), offsets(12, 8))
    return graphed


def test_rungs_serve_every_size_and_segmentation(graph: Make) -> None:
    graphed = ladder_of_segments(graph)
    calls = []
    for seed, total in enumerate((128, 1, 33, 128, 64, 20, 95, 32, 127, 7)):
        first = seed * total // 10
        lengths = (first, total - first) if seed % 2 else (total,)
        calls.append((tensor(seed, total, 16), offsets(*lengths)))
    with ostinato.route("rung"):
        held = [graphed(*call) for call in calls]
    for got, call in zip(held, calls, strict=True):
        assert got.shape == call[0].shape
        assert distance(got, segments(*call)) < 1e-4
    assert graphed.stats().calls["rung"] == len(calls)


def test_nothing_of_a_longer_request_reaches_a_shorter_one(graph: Make) -> None:
    graphed = ladder_of_segments(graph)
    short = (tensor(2, 33, 16), offsets(20, 13))
    with ostinato.route("rung"):
        before = graphed(*short)
        graphed(torch.full((64, 16), float("inf"), device=DEVICE), offsets(64))
        graphed(tensor(1, 64, 16) * 1e4, offsets(30, 34))
        assert same(graphed(*short), before)
    served = [entry for entry in graphed.recordings() if entry.hits]
    assert served and all(torch.isfinite(entry.inputs.tensors[0]).all() for entry in served)


def mean_free(x: T) -> T:
    return waves(x) - waves(x).mean(0)


def test_padding_that_reaches_real_rows_is_refused(
    graph: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Axis("rows", top=64, bottom=64)

    def check() -> None:
        graphed = graph(mean_free, grows={"x": {0: rows}}, config=GraphConfig(mode="ladder"))
        with pytest.raises(ostinato.errors.RecordingRefused, match=r"\[gate"):
            graphed.record(tensor(0, 20, 4) + 3)
        assert same(graphed(tensor(1, 20, 4)), mean_free(tensor(1, 20, 4)))

    assert_fails_under("gate.off", check, monkeypatch)


@pytest.mark.parametrize("shape", [(0,), (0, 8), (1,), (1, 1)])
def test_empty_and_single_inputs(graph: Make, shape: tuple[int, ...]) -> None:
    graphed = graph(waves, config=GraphConfig(min_hits=1))
    for seed in range(3):
        assert same(graphed(tensor(seed, *shape)), waves(tensor(seed, *shape)))


def test_every_input_has_a_slot(graph: Make) -> None:
    def joined(batch: dict[str, list[T]], *, scale: T, extra: tuple[T, T | None]) -> T:
        total = batch["image"][0] + batch["image"][1] * 2 + batch["text"][0] * 3
        return few(total * scale) + extra[0]

    graphed = graph(joined)
    for seed in range(5):
        parts = [tensor(seed * 10 + i, 32) for i in range(5)]
        for changed in range(5):
            parts[changed] = parts[changed] + 1
            batch = {"image": [parts[0], parts[1]], "text": [parts[2]]}
            more = {"scale": parts[3], "extra": (parts[4], None)}
            assert same(exactly(graphed, batch, **more), joined(batch, **more))  # type: ignore[arg-type]
    assert len(graphed.recordings()) == 1


def test_a_hook_added_later_is_not_skipped(graph: Make) -> None:
    module = nn.Linear(16, 16).to(DEVICE).requires_grad_(False)
    graphed, x = graph(module), tensor(0, 4, 16)
    assert same(exactly(graphed, x), module(x))
    hook = module.register_forward_hook(lambda _m, _a, result: result * 7)
    assert same(exactly(graphed, x), module(x))
    hook.remove()
    assert same(exactly(graphed, x), module(x))


@pytest.mark.device
def test_a_padded_call_is_never_slower_than_a_direct_one(graph: Make) -> None:
    weight = tensor(1, 2048, 2048)

    def heavy(x: T) -> T:
        for _ in range(4):
            x = x @ weight * 1e-2
        return x

    rows = Axis("rows", top=16384, rungs=(16384,))
    graphed = graph(heavy, grows={"x": {0: rows}}, config=GraphConfig(mode="ladder"))
    graphed.record(tensor(0, 1, 2048))
    result = graphed(tensor(0, 1, 2048))
    route = graphed.why()
    assert route is not None and route.route == "direct", route
    assert "faster" in route.reason
    assert same(result, heavy(tensor(0, 1, 2048)))


def test_results_keep_their_relations(graph: Make) -> None:
    weight = tensor(9, 8, 8)

    def related(x: T) -> tuple[T, T, T, T]:
        y = few(x)
        return x, y, y[1:3], weight

    graphed, x = graph(related), tensor(0, 8, 8)
    given, y, part, held = exactly(graphed, x)
    assert given is x and held is weight
    assert part.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert same(part, few(x)[1:3])


def test_writes_are_declared_and_written_back(graph: Make) -> None:
    def step(x: T, total: T) -> T:
        total.add_(x)
        return few(total)

    with refused("input-write"):
        graph(step).record(tensor(0, 8), tensor(1, 8))
    graphed, mine, theirs = graph(step, writes=("total",)), tensor(1, 8), tensor(1, 8)
    for seed in range(4):
        assert same(exactly(graphed, tensor(seed, 8), mine), step(tensor(seed, 8), theirs))
    assert same(mine, theirs)
