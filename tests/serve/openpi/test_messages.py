"""Dialects of a frame, and bodies of generations in JSON and msgpack."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from ostinato.errors import InputError
from ostinato.serve.openpi.codec import CodecLimits, packb
from ostinato.serve.openpi.messages import Form, read_frame, read_generation
from tests.serve.openpi.observations import droid, encoded, picture


def test_a_frame_is_openpi_unless_it_says_otherwise() -> None:
    ask = read_frame(packb(droid()))
    assert (ask.dialect, ask.session_id, ask.is_reset) == ("openpi", None, False)
    assert set(ask.entries) == set(droid())


@pytest.mark.parametrize(
    ("fields", "session_id", "is_reset"),
    [
        ({"endpoint": "infer", "session_id": "a"}, "a", False),
        ({"endpoint": "reset"}, None, True),
        ({"session_id": 4}, "4", False),
        ({"session_id": None, "endpoint": None}, None, False),
    ],
)
def test_roboarena(fields: dict[str, Any], session_id: str | None, is_reset: bool) -> None:
    ask = read_frame(packb(droid(**fields)))
    assert (ask.dialect, ask.session_id, ask.is_reset) == ("roboarena", session_id, is_reset)
    assert set(ask.entries) == set(droid())


def test_another_endpoint_is_refused() -> None:
    with pytest.raises(InputError, match="endpoint is text 'stop'; expected infer or reset"):
        read_frame(packb({"endpoint": "stop"}))


def generation(body: Any, *, is_msgpack: bool = False, is_numpy: bool = False) -> Any:
    data = packb(body) if is_msgpack else json.dumps(body).encode()
    return read_generation(data, is_msgpack=is_msgpack, is_numpy=is_numpy)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_an_enveloped_body() -> None:
    body = {
        "model": "m",
        "input": {"task": "go", "observation": {"state": [1, 2], "images": {}}},
        "parameters": {"seed": 3, "guidance_scale": None, "n": 1},
        "runtime": {
            "prefix_cache": False,
            "cuda_graph": "auto",
            "response_format": "raw",
            "return_timing": False,
        },
        "ostinato": {"deadline_ms": 9},
    }
    ask = generation(body)
    assert ask.entries == {
        "state": [1, 2],
        "images": {},
        "task": "go",
        "seed": 3,
        "enable_prefix_cache": False,
        "enable_cuda_graph": "auto",
        "ostinato": {"deadline_ms": 9},
    }
    assert ask.form == Form(is_raw=True, is_numpy=False, has_timings=False)
    assert generation({**body, "input": [body["input"]]}).entries == ask.entries


def test_a_body_without_input_is_the_observation() -> None:
    ask = generation({"state": [1], "prompt": "go", "model": "m"}, is_msgpack=True, is_numpy=True)
    assert ask.entries == {"state": [1], "prompt": "go"}
    assert ask.form == Form(is_raw=False, is_numpy=True, has_timings=True)


def test_stand_ins_for_bytes_and_arrays_in_json() -> None:
    image = picture(0)
    jpeg = encoded(image, "JPEG")
    shape = list(image.shape)
    images = {
        "a": {"b64_json": b64(jpeg)},
        "b": {"base64": f"data:image/jpeg;base64,{b64(jpeg)}"},
        "c": {"data": b64(image.tobytes()), "dtype": "uint8", "shape": shape},
        "d": {"values": image.reshape(-1).tolist(), "shape": shape},
        "e": {"values": [[0.5]], "dtype": "float32"},
    }
    found = generation({"images": images}).entries["images"]
    assert (found["a"], found["b"]) == (jpeg, jpeg)
    assert np.array_equal(found["c"], image) and np.array_equal(found["d"], image)
    assert (found["d"].dtype, found["e"].dtype, found["e"].tolist()) == (
        "uint8",
        "float32",
        [[0.5]],
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([1], "the body is list of 1; expected an object"),
        ({"input": [{}, {}]}, "input is list of 2; expected one observation"),
        ({"input": 3}, "input is int 3; expected a map"),
        ({"input": {"observation": 3}}, "input.observation is int 3; expected a map"),
        ({"input": {"observations": {}}}, r"input holds \[observations\]; expected"),
        ({"parameters": {"steps": 3}}, r"unknown 'steps'; expected some of \[action_horizon"),
        ({"parameters": {"n": 2}}, "n is not 1; expected one output"),
        ({"parameters": 3}, "parameters is int 3; expected a map"),
        ({"runtime": {"response_format": "x"}}, "expected envelope or raw"),
        ({"runtime": {"output_format": "x"}}, "expected numpy or list"),
        ({"runtime": {"output_format": "numpy"}}, "needs a reply in application/msgpack"),
        ({"runtime": {"return_timing": 1}}, "expected true or false"),
        ({"a": {"base64": "#"}}, "base64"),
        ({"a": {"values": [300], "dtype": "uint8"}}, "list of 1 as dtype text 'uint8'"),
        ({"a": {"values": [1.5], "dtype": "uint8"}}, "these are no integers"),
        ({"a": {"values": ["x"], "dtype": "O"}}, "holds no numbers"),
        ({"a": {"data": "AAAA", "dtype": "float64"}}, "bytes of 3 as dtype"),
        ({"a": {"values": [1, 2], "shape": [3]}}, "cannot reshape"),
    ],
)
def test_bodies_that_cannot_be(body: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        generation(body)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "json"),
        (b"\xff", "json"),
        (b"[" * 100_000, "too-many-values"),
        (b"[" * 60_000, "json"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "json|too-deep"),
        (b'{"a":' + b"9" * 5000 + b"}", "json"),
        (b'{"images":[' + b"0," * 70_000 + b"0]}", "send images as"),
    ],
)
def test_json_that_is_hostile_or_wasteful(data: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_generation(data, is_msgpack=False, is_numpy=False)


def test_limits_hold_for_msgpack_too() -> None:
    with pytest.raises(InputError, match="too-large"):
        read_generation(
            packb({"a": b"12345678"}),
            is_msgpack=True,
            is_numpy=True,
            limits=CodecLimits(max_bytes=8),
        )
