"""Which recordings a tower makes, uses, loses and makes again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ostinato import state
from ostinato.recording import recorder
from ostinato.vision.contract import Grid
from ostinato.vision.encoder import Encoder
from ostinato.vision.load import load_tower
from ostinato.vision.models.qwen3_vl import Qwen3VL
from ostinato.vision.packing import Load
from ostinato.vision.recorded import RecordedTower
from tests.mutations import assert_fails_under
from tests.vision.encoders import MIB, TINY, check, make, patches_for, settle, tower_of


def route(encoder: Encoder, grids: list[Grid], seed: int = 0) -> tuple[str, str]:
    patches = patches_for(encoder, grids, seed)
    got = encoder.encode_patches(patches, grids)
    check(encoder, got, patches, grids)
    (served,) = {e.route for e in got}
    return served.route, served.reason


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(
    "grids", [[(1, 4, 6)], [(1, 2, 2)], [(1, 2, 106)], [(1, 6, 6), (2, 4, 6), (1, 2, 22)]]
)
def test_a_size_that_comes_often_is_recorded_without_padding(
    name: str, grids: list[Grid], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        encoder, recorded = make(tower_of(name), promote_hits=2)
        try:
            for _ in range(2):
                assert route(encoder, grids)[0] != "exact"
                settle(recorded)
            assert route(encoder, grids, 1) == ("exact", "recorded")
        finally:
            encoder.close()

    if name == TINY[2] and grids[0] == (1, 4, 6):
        assert_fails_under("recorded.outside_inference_mode", run, monkeypatch)
    else:
        run()


def test_as_many_segments_as_a_capacity_are_promoted() -> None:
    encoder, recorded = make(tower_of("tiny-qwen2-vl"), promote_hits=1)
    grids: list[Grid] = [(8, 4, 4)]
    for _ in range(2):
        route(encoder, grids)
        settle(recorded)
    assert route(encoder, grids) == ("exact", "recorded")
    encoder.close()


def test_a_ladder_that_was_not_warmed_up_is_recorded_size_by_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> None:
        encoder, recorded = make(tower_of("tiny-qwen3-vl"))
        try:
            assert route(encoder, [(1, 6, 8)]) == ("direct", "not recorded yet")
            for _ in range(2):
                route(encoder, [(1, 6, 8)])
                settle(recorded)
            assert route(encoder, [(1, 6, 8)])[0] == "rung"
            assert encoder.stats().num_recorded == 1
        finally:
            encoder.close()

    assert_fails_under("demand.nothing_is_wanted", run, monkeypatch)


def test_a_rung_costs_a_probe_a_recording_and_two_checked_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_rows: list[int] = []
    forward = Qwen3VL.forward

    def counted(self: Qwen3VL, patches: torch.Tensor, *args: Any, **bounds: int) -> Any:
        num_rows.append(patches.shape[0])
        return forward(self, patches, *args, **bounds)

    monkeypatch.setattr(Qwen3VL, "forward", counted)
    encoder, recorded = make(tower_of("tiny-qwen3-vl"))
    rung = next(rung for rung in recorded._rungs if rung.num_segments == 8)
    recorded.record(rung)
    assert recorded.entry_of(rung) is not None
    *padded, unpadded = num_rows
    assert padded == 3 * [rung.num_patches]
    assert unpadded < rung.num_patches
    encoder.close()


def test_a_tower_is_watched_at_its_first_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    num_probes = 0
    watched = recorder.probe

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal num_probes
        num_probes += 1
        return watched(*args, **more)

    monkeypatch.setattr(recorder, "probe", counted)
    encoder, recorded = make(tower_of("tiny-qwen3-vl"))
    for rung in recorded._rungs[-3:]:
        recorded.record(rung)
        assert recorded.entry_of(rung) is not None
    assert num_probes == 1
    encoder.close()


@pytest.mark.parametrize("capacity", [8, 64])
def test_a_recording_that_has_baked_its_boundaries_is_refused(
    capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    baked: list[torch.Tensor] = []
    forward = Qwen3VL.forward

    def baking(self: Qwen3VL, patches: torch.Tensor, layout: Any, **bounds: int) -> Any:
        if state.is_recording():
            layout = layout._replace(segment_offsets=baked[0])
        elif not baked:
            baked.append(layout.segment_offsets.clone())
        return forward(self, patches, layout, **bounds)

    monkeypatch.setattr(Qwen3VL, "forward", baking)
    encoder, recorded = make(tower_of("tiny-qwen3-vl"))
    rung = next(rung for rung in recorded._rungs if rung.num_segments == capacity)
    recorded.record(rung)
    assert recorded.entry_of(rung) is None
    (reason,) = encoder.stats().refusals.values()
    assert "is not the direct call's" in reason
    encoder.close()


def evicted(name: str = "tiny-qwen3-vl") -> tuple[Encoder, RecordedTower]:
    encoder, recorded = make(tower_of(name))
    recorded.record(recorded._rungs[-1])
    assert route(encoder, [(1, 6, 8)])[0] == "rung"
    for generation in list(recorded._runner.cache):
        recorded._runner.cache.retire(generation)
    return encoder, recorded


def test_packing_never_chooses_an_evicted_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        encoder, recorded = evicted()
        try:
            assert recorded.packer.cheapest(Load(48))[1] is None
            assert route(encoder, [(1, 6, 8)]) == ("direct", "not recorded yet")
        finally:
            encoder.close()

    assert_fails_under("recorded.dead_rungs_stay", run, monkeypatch)


def test_an_evicted_rung_is_recorded_again_off_the_path() -> None:
    encoder, recorded = evicted()
    routes = []
    for _ in range(10):
        routes.append(route(encoder, [(1, 6, 8)])[0])
        settle(recorded)
    assert routes[0] == "direct"
    assert routes[-1] == "rung"
    assert encoder.stats().num_recordings == 1
    encoder.close()


def test_a_budget_that_is_too_small_does_not_record_without_end() -> None:
    encoder, recorded = make(tower_of("tiny-qwen3-vl"), budget_bytes=6 * MIB, promote_hits=1)
    for turn in range(30):
        route(encoder, [[(1, 6, 8)], [(1, 8, 12)], [(1, 14, 16)]][turn % 3])  # type: ignore[arg-type]
        settle(recorded)
    stats = encoder.stats()
    assert stats.num_recorded + stats.num_refused <= 12
    encoder.close()


def test_every_recording_off_gives_the_same_answer() -> None:
    encoder, recorded = make(tower_of("tiny-qwen3-vl"), mode="off")
    encoder.warm_up()
    for _ in range(4):
        assert route(encoder, [(1, 6, 8)]) == ("direct", "recording is off")
        settle(recorded)
    assert encoder.stats().num_recorded == 0
    encoder.close()


def test_exact_mode_records_no_ladder_and_serves_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        encoder, recorded = make(tower_of("tiny-qwen3-vl"), mode="exact")
        try:
            encoder.warm_up()
            assert encoder.stats().num_recorded == 0
            for _ in range(2):
                route(encoder, [(1, 6, 8)])
                settle(recorded)
            assert route(encoder, [(1, 6, 8)]) == ("exact", "recorded")
            assert route(encoder, [(1, 6, 6)])[0] == "direct"
        finally:
            encoder.close()

    assert_fails_under("recorded.every_mode_warms_the_ladder_up", run, monkeypatch)


def test_ladder_mode_never_promotes() -> None:
    encoder, recorded = make(tower_of("tiny-qwen3-vl"), mode="ladder", promote_hits=1)
    for _ in range(6):
        route(encoder, [(1, 6, 8)])
        settle(recorded)
    assert route(encoder, [(1, 6, 8)])[0] == "rung"
    assert encoder.stats().num_recorded == 1
    encoder.close()


def test_an_oversized_input_is_served_directly() -> None:
    encoder, recorded = make(tower_of("tiny-qwen2.5-vl"), promote_hits=1)
    recorded.record(recorded._rungs[-1])
    num_recorded = encoder.stats().num_recorded
    for _ in range(3):
        assert route(encoder, [(1, 18, 18)]) == ("direct", "larger than the largest rung")
        settle(recorded)
    assert encoder.stats().num_recorded == num_recorded
    encoder.close()


def test_large_items_are_not_joined_to_one_direct_call() -> None:
    """Its memory would grow with the number of items."""
    for mode in ("off", "auto"):
        encoder, recorded = make(tower_of("tiny-qwen2-vl"), mode=mode)
        calls = recorded.packer.pack([Load(300, 1)] * 6).calls
        assert len(calls) == 6
        recorded.estimates.add_direct(256, 1000.0)
        assert len(recorded.packer.pack([Load(300, 1)] * 6).calls) == 6
        encoder.close()


def test_new_weights_are_noticed() -> None:
    from ostinato.vision.load import load_tower

    tower = load_tower("tiny-qwen3-vl").eval()
    encoder, recorded = make(tower)
    recorded.record(recorded._rungs[-1])
    assert route(encoder, [(1, 6, 8)])[0] == "rung"
    with torch.no_grad():
        tower.blocks[0].attn.qkv.weight.mul_(1.5)  # type: ignore[union-attr]
    assert route(encoder, [(1, 6, 8)])[0] == "rung"
    tower.blocks[0].attn.qkv.weight = torch.nn.Parameter(  # type: ignore[union-attr]
        tower.blocks[0].attn.qkv.weight * 0.5,  # type: ignore[union-attr]
        requires_grad=False,
    )
    for _ in range(12):
        last = route(encoder, [(1, 6, 8)])[0]
        settle(recorded)
    assert last == "rung"
    encoder.close()


@pytest.mark.parametrize("is_freed", [False, True])
def test_weights_that_move_are_noticed_and_freed_ones_are_not_read(
    is_freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is asked while the replay is under way, but not where its memory may be gone."""
    tower = load_tower("tiny-qwen3-vl").eval()
    encoder, recorded = make(tower)
    for _ in range(3):
        served = route(encoder, [(1, 6, 8)])
        settle(recorded)
    assert served[0] == "rung"
    (entry,) = recorded._entries.values()
    launched: list[object] = []
    replay = entry.recorded.replay

    def counted() -> None:
        launched.append(None)
        replay()

    monkeypatch.setattr(entry.recorded, "replay", counted)
    assert route(encoder, [(1, 6, 8)], 1)[0] == "rung" and len(launched) == 1
    weight = tower.merger.mlp.fc1.weight
    old = weight.untyped_storage()
    weight.data = 2 * weight.data
    if is_freed:
        old.resize_(0)
    assert route(encoder, [(1, 6, 8)], 2) == ("direct", "what the region reads has changed")
    assert len(launched) == (1 if is_freed else 2)
    encoder.close()


def narrow_module(seed: int) -> torch.nn.Module:
    """A transformers tower whose feed-forward rows have a width that is widened."""
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    config = Qwen3VLVisionConfig(
        depth=2,
        hidden_size=64,
        intermediate_size=100,
        num_heads=2,
        out_hidden_size=64,
        deepstack_visual_indexes=[0],
    )
    module = Qwen3VLVisionModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.1, generator=generator)
    return module


def test_copies_of_a_modules_weights_follow_it() -> None:
    """Widened weights are copies; recordings stay, since copies keep their places."""
    module, other = narrow_module(0), narrow_module(1)
    tower = load_tower(module)
    assert tower.blocks[0].mlp.fc1.weight.shape[0] == 144  # type: ignore[union-attr]
    encoder, recorded = make(tower)
    recorded.record(recorded._rungs[-1])
    grids: list[Grid] = [(1, 6, 8)]
    patches = patches_for(encoder, grids)
    old = encoder.encode_patches(patches, grids)[0]
    assert old.route.route == "rung"
    module.load_state_dict(other.state_dict())
    expected = make(load_tower(other))[0].encode_patches(patches, grids)[0].packed
    late = encoder.encode_patches(patches, grids)[0]
    assert (late.route.route, late.route.reason) == (
        "direct",
        "what the region reads has changed",
    )
    again = encoder.encode_patches(patches, grids)[0]
    assert again.route.route == "rung"
    for result in (late, again):
        torch.testing.assert_close(result.packed, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(old.packed, expected, atol=1e-2)
    encoder.close()
