"""The adapter between the service protocol and an encoder."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import ostinato
from ostinato.cli.wiring import (
    EncoderService,
    load_service,
    make_item,
    to_host,
    tower_and_processing,
)
from ostinato.errors import InputError, WeightsError
from ostinato.serve.service import Reply, Request
from ostinato.vision.preprocess import ImageOptions, VideoOptions
from tests.cli.encoders import MODEL, SMALL, picture, settings


def item(content: bytes, **options: Any) -> Request:
    inputs = {"kind": "image", "content": content, "options": {**SMALL, **options}}
    return Request(inputs)


def serve(service: EncoderService, *requests: Request) -> list[Reply]:
    prepared = service.prepare(requests)
    waiting = [p for p in prepared if isinstance(p, Request)]
    served = iter(service.serve(waiting))
    replies = [p if isinstance(p, Reply) else next(served) for p in prepared]
    assert all(isinstance(reply, Reply) for reply in replies), replies
    return replies  # type: ignore[return-value]


def expected(encoder: ostinato.Encoder, content: bytes) -> ostinato.Encoded:
    return encoder.encode([content], image_options=ImageOptions(min_pixels=1024))[0]


def test_requests_share_calls_and_get_what_encode_gives(
    recorded: ostinato.Encoder, direct: ostinato.Encoder
) -> None:
    service = EncoderService(MODEL, recorded)
    pictures = [picture(seed, 64 + 32 * seed, 96) for seed in range(4)]
    before = sum(recorded.stats().calls.values())
    replies = serve(service, *map(item, pictures))
    assert sum(recorded.stats().calls.values()) == before + 1  # four pictures, one replay
    for reply, content in zip(replies, pictures, strict=True):
        want = expected(direct, content)
        assert reply.route in ("rung", "exact")
        assert reply.facts == {"kind": "image", "grid_thw": list(want.grid_thw)}
        assert set(reply.outputs) == {"embeddings", *(f"deepstack.{k}" for k in range(3))}
        np.testing.assert_allclose(reply.outputs["embeddings"], want.embeddings, atol=1e-4)
        for k, level in enumerate(want.deepstack):
            np.testing.assert_allclose(reply.outputs[f"deepstack.{k}"], level, atol=1e-4)
        assert set(reply.stage_ms) == {"decode", "resize", "pack", "upload", "replay"}
        assert all(value > 0 for value in reply.stage_ms.values())


def test_a_broken_item_is_refused_and_its_neighbours_prepared(direct: ostinato.Encoder) -> None:
    service = EncoderService(MODEL, direct)
    good = picture(1)
    results = service.prepare([item(good), item(b"no image"), item(good, min_pixels=-1)])
    assert isinstance(results[0], Request)
    assert str(results[1]).startswith("[not-an-image] ")
    assert isinstance(results[2], InputError)


def test_where_a_turn_fails_each_request_gets_its_own(
    direct: ostinato.Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = EncoderService(MODEL, direct)
    pictures = [picture(seed) for seed in range(3)]
    prepared = [p for p in service.prepare([*map(item, pictures)]) if isinstance(p, Request)]
    poisoned = prepared[1].inputs["waiting"].patches
    poisoned.values[0, 0] = np.nan  # the result is not finite
    results = service.serve(prepared)
    assert str(results[1]) == "the encoder's result is not finite"
    for place in (0, 2):
        reply = results[place]
        assert isinstance(reply, Reply)
        want = expected(direct, pictures[place]).embeddings
        np.testing.assert_allclose(reply.outputs["embeddings"], want, atol=1e-4)


def test_the_switch_serves_the_same_directly(direct: ostinato.Encoder) -> None:
    service = EncoderService(MODEL, direct, is_recording_on=False)
    service.warm_up()
    assert service.events() == ["recordings are switched off: every call is served directly"]
    (reply,) = serve(service, item(picture(3)))
    assert (reply.route, reply.reason) == ("direct", "recording is off")
    assert service.snapshot()["num_recordings"] == 0


def test_warm_up_tells_what_was_recorded(recorded: ostinato.Encoder) -> None:
    steps: list[tuple[int, int]] = []
    service = EncoderService(MODEL, recorded, progress=lambda *step: steps.append(step))
    service.warm_up()
    count = recorded.stats().num_recordings
    assert count == 4
    assert steps == [(done, count) for done in range(1, count + 1)]
    assert service.events()[0].startswith(f"recorded {count} sizes in ")
    assert service.events() == []
    assert service.snapshot()["num_recordings"] == count


class TestCache:
    def test_equal_content_is_encoded_once(self, direct: ostinato.Encoder) -> None:
        service = EncoderService(MODEL, direct, cache_bytes=1 << 20)
        first, twin, other = serve(service, *map(item, (picture(1), picture(1), picture(2))))
        assert np.array_equal(first.outputs["embeddings"], twin.outputs["embeddings"])
        assert not np.array_equal(first.outputs["embeddings"], other.outputs["embeddings"])
        calls = sum(direct.stats().calls.values())
        (again,) = serve(service, item(picture(1)))
        assert sum(direct.stats().calls.values()) == calls
        assert (again.route, again.reason) == ("cache", "encoded before by route direct")
        assert np.array_equal(again.outputs["embeddings"], first.outputs["embeddings"])
        assert again.facts == first.facts
        numbers = service.snapshot()
        assert (numbers["cache_hits"], numbers["cache_misses"]) == (1, 2)
        held = 2 * sum(array.nbytes for array in first.outputs.values())
        assert numbers["cache_bytes"] == held

    @pytest.mark.parametrize(
        "change", [{"max_pixels": 4096}, {"min_pixels": 65536}, {"kind": "video"}]
    )
    def test_every_option_and_the_kind_are_part_of_the_key(
        self, direct: ostinato.Encoder, change: dict[str, Any]
    ) -> None:
        service = EncoderService(MODEL, direct, cache_bytes=1 << 20)
        serve(service, item(picture(1)))
        kind = change.pop("kind", "image")
        inputs = {"kind": kind, "content": picture(1), "options": {**SMALL, **change}}
        (result,) = service.prepare([Request(inputs)])
        assert not isinstance(result, Reply)

    def test_the_bound_holds(self, direct: ostinato.Encoder) -> None:
        service = EncoderService(MODEL, direct, cache_bytes=10_000)
        for seed in range(6):
            serve(service, item(picture(seed)))
        numbers = service.snapshot()
        assert 0 < numbers["cache_bytes"] <= 10_000
        assert numbers["cache_evicted"] > 0

    def test_what_is_held_cannot_be_written_to(self, direct: ostinato.Encoder) -> None:
        service = EncoderService(MODEL, direct, cache_bytes=1 << 20)
        (reply,) = serve(service, item(picture(1)))
        with pytest.raises(ValueError, match="read-only"):
            reply.outputs["embeddings"][0, 0] = 1


def test_describe_tells_sizes_and_limits(direct: ostinato.Encoder) -> None:
    facts = EncoderService("mine", direct, facts={"largest_recorded_patches": 256}).describe()
    assert facts == json.loads(json.dumps(facts))
    wanted = {
        "task": "token_embed",
        "model_type": "qwen3_vl",
        "dtype": "float32",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "embedding_width": 64,
        "deepstack_levels": 3,
        "largest_recorded_patches": 256,
    }
    assert facts.items() >= wanted.items()
    assert facts["pixel_limits"]["image"] == {"min_pixels": 65536, "max_pixels": 16777216}


def test_options_go_to_the_kind_that_knows_them() -> None:
    options = {"min_pixels": 1, "max_pixels": 2, "fps": 3.0, "num_frames": 4}
    assert make_item("image", b"", options).options == ImageOptions(1, 2)
    video = VideoOptions(fps=3.0, num_frames=4, min_pixels=1, max_pixels=2)
    assert make_item("video", b"", options).options == video


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_results_are_errors(bad: float) -> None:
    with pytest.raises(RuntimeError, match="not finite"):
        to_host(torch.tensor([[1.0, bad]]))


def test_half_precision_reaches_the_host_unchanged() -> None:
    values = torch.tensor([[1.0, 0.1, -3e38]], dtype=torch.bfloat16)
    assert to_host(values).tolist() == values.double().tolist()


def test_load_service_bounds_decoded_pixels() -> None:
    from ostinato.cli.config import EncoderSettings

    encoder = EncoderSettings(max_image_pixels=100)
    chosen = settings(is_recording_on=False, encoder=encoder, served_name="mine")
    service = load_service(MODEL, chosen, device="cpu")
    try:
        (result,) = service.prepare([item(picture(1))])
        assert service.name == "mine"
        assert str(result).startswith("[max-decoded-pixels] ")
    finally:
        service.close()


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(WeightsError, match=r"huge is no directory, no hub name.*tiny-qwen3-vl"):
        load_service("huge", settings(), device="cpu")


def test_sizes_of_a_model_without_its_weights() -> None:
    tower, processing = tower_and_processing("tiny-qwen2.5-vl")
    assert (tower.model_type, tower.patch_width) == ("qwen2_5_vl", 1176)
    assert processing.image.factor == 28
