"""The encoder on the tape: each result is its own item's, whatever was encoded before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ostinato
from ostinato.errors import DeviceError, InputError, Overloaded
from ostinato.kernels.gate import Numerics, current_numerics
from ostinato.layers import norm as layers_norm
from ostinato.recording.graphed import shared_runner
from ostinato.vision.contract import Grid
from ostinato.vision.encoder import Encoded, Encoder, load_encoder
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import top_patches_of
from tests.mutations import assert_fails_under
from tests.vision.encoders import (
    MIB,
    NEVER,
    TINY,
    batches,
    check,
    distance,
    make,
    patches_for,
    settle,
    tower_of,
)


@pytest.fixture(scope="module", params=TINY)
def tiny(request: pytest.FixtureRequest) -> Iterator[tuple[Encoder, RecordedTower]]:
    encoder, recorded = make(tower_of(request.param), promote_hits=NEVER)
    encoder.warm_up()
    yield encoder, recorded
    encoder.close()


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=st.lists(batches(), min_size=2, max_size=3), order=st.randoms())
def test_each_batch_equals_its_direct_call_in_any_order(
    tiny: tuple[Encoder, RecordedTower], requests: list[list[Grid]], order: Any
) -> None:
    encoder, _ = tiny
    held: list[tuple[list[Encoded], list[torch.Tensor]]] = []
    seen: dict[tuple[int, Any], list[torch.Tensor]] = {}
    turns = [*range(len(requests)), *range(len(requests))]
    order.shuffle(turns)
    for turn in turns:
        grids = requests[turn]
        patches = patches_for(encoder, grids, turn)
        got = encoder.encode_patches(patches, grids)
        check(encoder, got, patches, grids)
        copies = [e.packed.clone() for e in got]
        former = seen.setdefault((turn, tuple(e.route for e in got)), copies)
        assert all(map(torch.equal, copies, former)), "the same request and route, other bytes"
        held.append((got, copies))
    for got, copies in held:
        for encoded, copied in zip(got, copies, strict=True):
            assert torch.equal(encoded.packed, copied), "a held result changed"


def test_a_small_budget_evicts_and_stays_right() -> None:
    encoder, recorded = make(tower_of("tiny-qwen3-vl"), budget_bytes=10 * MIB, min_hits=1)
    encoder.warm_up()
    routes = set()
    for turn in range(16):
        grids = [[(1, 8, 8)], [(1, 2, 6), (2, 8, 4)], [(1, 14, 18)], [(1, 22, 22)]][turn % 4]
        patches = patches_for(encoder, grids, turn)
        routes.add(check(encoder, encoder.encode_patches(patches, grids), patches, grids))
        settle(recorded)
        assert encoder.stats().device_bytes_held <= 10 * MIB
    assert encoder.stats().num_evicted > 0
    assert "rung" in routes
    encoder.close()


def test_results_come_in_the_callers_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        encoder, recorded = make(tower_of("tiny-qwen2.5-vl"))
        for rung in recorded._rungs[:1]:
            recorded.record(rung)
        grids: list[Grid] = [(1, 14, 14), (1, 2, 2), (1, 10, 14), (1, 4, 4), (1, 14, 16)]
        patches = patches_for(encoder, grids)
        got = encoder.encode_patches(patches, grids)
        assert len({e.route.rung for e in got}) > 1 or len(got) > 1
        check(encoder, got, patches, grids)
        encoder.close()

    assert_fails_under("packing.results_in_the_calls_order", run, monkeypatch)


def test_held_results_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        encoder, recorded = make(tower_of("tiny-qwen3-vl"))
        recorded.record(recorded._rungs[-1])
        first = encoder.encode_patches(patches_for(encoder, [(1, 8, 8)], 0), [(1, 8, 8)])[0]
        copied = first.packed.clone()
        encoder.encode_patches(patches_for(encoder, [(1, 8, 8)], 1), [(1, 8, 8)])
        assert torch.equal(first.packed, copied)
        encoder.close()

    assert_fails_under("served.every_call_borrows", run, monkeypatch)


@contextmanager
def no_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What would wait for a device raises, but in the CPU's attention, which no GPU runs."""

    def guarded(name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename
            if not caller.endswith("segment_attention/reference.py"):
                raise AssertionError(f"Tensor.{name} on the way of a request, in {caller}")
            return original(self, *args, **kwargs)

        return read

    with monkeypatch.context() as patched:
        for name in ("item", "tolist", "cpu", "__bool__", "__int__", "__float__", "nonzero"):
            patched.setattr(torch.Tensor, name, guarded(name))
        yield


@pytest.mark.parametrize("grids", [[(1, 8, 8)], [(1, 6, 6), (2, 4, 6)], [(1, 22, 22)]])
def test_no_request_reads_from_the_device(
    grids: list[Grid], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, recorded = make(tower_of("tiny-qwen3-vl"))
    recorded.record(recorded._rungs[-1])
    patches = patches_for(encoder, grids)

    def run() -> None:
        with no_reads(monkeypatch):
            encoder.encode_patches(patches, grids)

    assert_fails_under("encoder.looks_at_the_patches", run, monkeypatch)
    encoder.close()


def test_what_cannot_be_encoded_is_said() -> None:
    encoder, _ = make(tower_of("tiny-qwen3-vl"), mode="off")
    width = encoder.config.patch_width
    good = torch.zeros(16, width)
    with pytest.raises(InputError, match="shape"):
        encoder.encode_patches(good, [(1, 4, 6)])
    with pytest.raises(InputError, match="multiples of"):
        encoder.encode_patches(good, [(1, 1, 16)])
    with pytest.raises(InputError, match="below 1"):
        encoder.encode_patches(good, [(-1, 4, 4), (2, 4, 4)])
    with pytest.raises(InputError, match="three integers"):
        encoder.encode_patches(good, [(4, 4)])
    with pytest.raises(InputError, match=r"expected \(items, 3\)"):
        encoder.encode_patches(good, torch.tensor([1, 4, 4]))
    with pytest.raises(InputError, match="expected floating"):
        encoder.encode_patches(good[:, :-1], [(1, 4, 4)])
    with pytest.raises(InputError, match=r"int64"):
        encoder.encode_patches(good.long(), [(1, 4, 4)])
    assert encoder.encode_patches(good[:0], []) == []
    encoder.close()


def test_threads_get_their_own_results(tiny: tuple[Encoder, RecordedTower]) -> None:
    encoder, _ = tiny
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(6):
                grids: list[Grid] = [[(1, 8, 8)], [(1, 4, 6), (1, 6, 6)]][(seed + turn) % 2]  # type: ignore[assignment]
                patches = patches_for(encoder, grids, 100 * seed + turn)
                check(encoder, encoder.encode_patches(patches, grids), patches, grids)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_load_encoder_serves_a_tiny_model_and_closes() -> None:
    import ostinato

    encoder = ostinato.load_encoder("tiny-qwen3-vl", device="cpu", top_patches=64)
    patches = patches_for(encoder, [(1, 6, 8)])
    got = encoder.encode_patches(patches, [(1, 6, 8)])
    assert got[0].route.route == "rung"
    encoder.close()
    again = encoder.encode_patches(patches, [(1, 6, 8)])
    assert again[0].route.route == "direct"
    assert distance(got[0].packed, again[0].packed) <= 1e-5
    with pytest.raises(Overloaded, match="the encoder is closed"):
        encoder.encode([torch.zeros(3, 64, 64, dtype=torch.uint8)])
    assert shared_runner(torch.device("cpu"), ostinato.GraphConfig()) is not None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(DeviceError, match="device is cuda; no GPU is visible"):
        ostinato.load_encoder("tiny-qwen3-vl", device="cuda")
    with pytest.raises(DeviceError, match="device is cuda; no GPU is visible"):
        ostinato.load_chat("tiny-qwen3-vl", device="cuda")


def test_a_plan_is_remembered_until_the_recordings_change() -> None:
    encoder = ostinato.load_encoder("tiny-qwen2-vl", top_patches=64, warm_up=False)
    grids = ((1, 4, 4), (1, 2, 6))
    before = encoder._plan(grids)
    assert encoder._plan(grids) is before
    assert all(call.padded is None for call in before.calls)
    encoder.warm_up()
    after = encoder._plan(grids)
    assert after is not before and encoder._plan(grids) is after
    assert sorted(after.packing.order) == [0, 1]
    assert all(call.padded is not None and call.num_bytes > 0 for call in after.calls)
    encoder.close()


@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_recordings_and_direct_calls_know_the_numerics(
    numerics: Numerics, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    norm = layers_norm.layer_norm

    def noting(*args: Any) -> torch.Tensor:
        seen.append(current_numerics())
        return norm(*args)

    monkeypatch.setattr(layers_norm, "layer_norm", noting)
    encoder = ostinato.load_encoder("tiny-qwen3-vl", top_patches=64, numerics=numerics)
    recorded = len(seen)
    large = [(1, 10, 10)]
    assert encoder.encode_patches(patches_for(encoder, large), large)[0].route.route == "direct"
    assert recorded > 0 and len(seen) > recorded and set(seen) == {numerics}
    encoder.close()
    assert current_numerics() == "fast"


@pytest.mark.parametrize("one", ["a.png", b"bytes", Path("a.png")])
@pytest.mark.parametrize("name", ["images", "videos"])
def test_one_item_in_place_of_a_list_is_refused(one: object, name: str) -> None:
    """Else a path would be read letter by letter."""
    encoder = load_encoder("tiny-qwen3-vl", device="cpu", warm_up=False)
    with pytest.raises(InputError, match=f"{name} is a .*; expected a list"):
        encoder.encode(**{name: one})  # type: ignore[arg-type]
    encoder.close()


def test_a_cpus_ladder_is_shorter_where_no_size_is_asked_for() -> None:
    encoder = load_encoder("tiny-qwen3-vl", device="cpu", warm_up=False)
    assert max(rung.num_patches for rung in encoder._recorded._rungs) == 1024
    encoder.close()
    assert (top_patches_of("cpu"), top_patches_of("cuda")) == (1024, 16_384)
