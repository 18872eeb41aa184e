"""The adapter between the service protocol and a recorded encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ostinato.assets.photograph import photograph_bytes
from ostinato.assets.tiny import make_tiny_encoder, pixels_from_image
from ostinato.cli.config import resolve_settings
from ostinato.cli.wiring import load_service
from ostinato.errors import ConfigError, InputError
from ostinato.serve.images import decode_image
from ostinato.serve.service import Reply, Request, Service
from tests.cli.fake_graph import FakeGraph

PHOTOGRAPH = decode_image(photograph_bytes(), max_pixels=2**20)


def warm(graph: FakeGraph, environ: dict[str, str] | None = None) -> Service:
    settings = resolve_settings(environ=environ or {})
    service = load_service("tiny-photograph", settings, device="cpu", graph=graph)
    service.warm_up()
    return service


def test_the_photograph_is_recorded_and_answered_like_the_encoder() -> None:
    graph = FakeGraph()
    service = warm(graph)
    (reply,) = service.serve([Request({"image": PHOTOGRAPH})])
    assert isinstance(reply, Reply)
    with torch.inference_mode():
        expected = make_tiny_encoder()(pixels_from_image(PHOTOGRAPH)).numpy()
    assert np.array_equal(reply.outputs["tokens"], expected)
    assert (reply.route, reply.reason) == ("exact", "recorded")
    assert graph.made[0].recorded == {(3, 368, 320)}
    assert service.events()[0].startswith("recorded tiny-photograph for photograph.jpg")
    assert service.events() == []


def test_an_unrecorded_size_says_so_and_a_bad_one_harms_nobody() -> None:
    service = warm(FakeGraph())
    small, bad = PHOTOGRAPH[:64, :48], PHOTOGRAPH[:15]
    results = service.serve([Request({"image": image}) for image in (small, bad, PHOTOGRAPH)])
    assert isinstance(results[0], Reply)
    assert results[0].route == "direct"
    assert results[0].outputs["tokens"].shape == (12, 96)
    assert isinstance(results[1], InputError)
    assert "320 x 15 pixels, at least 16 are needed" in str(results[1])
    assert isinstance(results[2], Reply)
    assert results[2].route == "exact"


def test_one_switch_turns_recordings_off_and_the_answer_stays() -> None:
    on, off = FakeGraph(), FakeGraph()
    (recorded,) = warm(on).serve([Request({"image": PHOTOGRAPH})])
    service = warm(off, {"OSTINATO_VIT_CUDA_GRAPH": "0"})
    (direct,) = service.serve([Request({"image": PHOTOGRAPH})])
    assert isinstance(recorded, Reply)
    assert isinstance(direct, Reply)
    assert (on.made[0].is_recording_on, off.made[0].is_recording_on) == (True, False)
    assert off.made[0].recorded == set()
    assert direct.route == "direct"
    assert np.array_equal(recorded.outputs["tokens"], direct.outputs["tokens"])


def test_the_snapshot_holds_the_runtimes_numbers_only() -> None:
    settings = resolve_settings(environ={})
    graph = FakeGraph()
    service = load_service("tiny-photograph", settings, device="cpu", graph=graph)
    assert service.snapshot() == {}
    service.warm_up()
    assert service.snapshot() == {"recordings": 1.0, "recorded_bytes": 1000.0}
    service.close()
    assert graph.made[0].is_closed


@pytest.mark.parametrize(("switch", "route"), [("1", "exact"), ("0", "direct")])
def test_the_runtime_itself_serves_the_encoders_bytes(switch: str, route: str) -> None:
    settings = resolve_settings(environ={"OSTINATO_VIT_CUDA_GRAPH": switch})
    service = load_service("tiny-photograph", settings, device="cpu")
    service.warm_up()
    assert (service.snapshot() == {}) is (switch == "0")
    try:
        flipped = np.ascontiguousarray(PHOTOGRAPH[:, ::-1])
        results = service.serve([Request({"image": image}) for image in (PHOTOGRAPH, flipped)])
        for image, reply in zip((PHOTOGRAPH, flipped), results, strict=True):
            assert isinstance(reply, Reply)
            assert reply.route == route
            with torch.inference_mode():
                expected = make_tiny_encoder()(pixels_from_image(image)).numpy()
            assert np.array_equal(reply.outputs["tokens"], expected)
        assert service.snapshot()["num_recordings"] == int(switch)
    finally:
        service.close()


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model 'huge' is not known.*tiny-photograph"):
        load_service("huge", resolve_settings(environ={}), device="cpu", graph=FakeGraph())
