"""The reserved map, and the names that other servers' clients send beside the observation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.errors import InputError
from ostinato.serve.openpi.wishes import read_wishes
from tests.serve.openpi.stub import SPEC


def read(**entries: Any) -> Any:
    return read_wishes(entries, SPEC.options)


def test_the_reserved_map() -> None:
    prefix = np.ones((2, 8), ">f4")
    prefix.flags.writeable = False
    rtc = {"prefix": prefix, b"delay": 1, "horizon": 3, "schedule": "EXP"}
    own = {"request_id": "r", "session_id": 7, "deadline_ms": 50, "seed": 3, "num_steps": 2}
    wishes = read(ostinato={**own, "rtc": rtc}, foo=1)
    left_over = wishes.options.pop("prev_chunk_left_over")
    assert wishes.options == {
        "seed": 3,
        "num_inference_steps": 2,
        "inference_delay": 1,
        "execution_horizon": 3,
        "prefix_attention_schedule": "EXP",
    }
    assert left_over.dtype == np.dtype("=f4") and left_over.flags.writeable
    assert left_over.tolist() == [[1] * 8] * 2
    assert (wishes.request_id, wishes.session_id, wishes.deadline_ms) == ("r", "7", 50.0)
    assert wishes.ignored == ("foo",)


def test_names_beside_the_observation() -> None:
    noise = {b"action": np.zeros((1, 2))}
    wishes = read(seed=np.int64(3), enable_cuda_graph=False, noise=noise)
    assert wishes.options["seed"] == 3 and type(wishes.options["seed"]) is int
    assert wishes.options["enable_cuda_graph"] is False
    assert list(wishes.options["noise"]) == ["action"]
    assert (wishes.session_id, wishes.deadline_ms, wishes.ignored) == (None, None, ())
    assert len(wishes.request_id) == 32


def test_ids_of_the_transport_count_where_the_message_has_none() -> None:
    given = {"request_id": "transport", "session_id": "s"}
    found = read_wishes({}, SPEC.options, **given)
    assert (found.request_id, found.session_id) == ("transport", "s")
    own = {"ostinato": {"request_id": "own", "session_id": "t"}}
    found = read_wishes(own, SPEC.options, **given)
    assert (found.request_id, found.session_id) == ("own", "t")


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"ostinato": 3}, "ostinato is int 3; expected a map"),
        ({"ostinato": {"dedline_ms": 1}}, r"holds \[dedline_ms\]; expected some of \[deadline_ms"),
        ({"ostinato": {"rtc": {"delai": 1}}}, r"ostinato.rtc holds \[delai\]; expected some of"),
        ({"ostinato": {"rtc": [1]}}, "ostinato.rtc is list of 1; expected a map"),
        ({"ostinato": {"deadline_ms": 0}}, "deadline_ms is int 0; expected above 0"),
        ({"ostinato": {"deadline_ms": True}}, "deadline_ms is bool True"),
        ({"ostinato": {"deadline_ms": float("nan")}}, "deadline_ms is float nan"),
        ({"ostinato": {"deadline_ms": 1e9}}, "3600000 at most"),
        ({"ostinato": {"deadline_ms": "50"}}, "deadline_ms is text '50'"),
        ({"ostinato": {"session_id": "x" * 129}}, "expected printable text, 128 at most"),
        ({"ostinato": {"request_id": "a\nb"}}, "expected printable text"),
        ({"ostinato": {"request_id": ""}}, "expected printable text"),
        ({"ostinato": {"seed": 1}, "seed": 1}, "seed was given twice"),
        (
            {"ostinato": {"rtc": {"max_guidance_weight": 1}}},
            "this policy has no max_guidance_weight",
        ),
    ],
)
def test_wishes_that_cannot_be(entries: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(**entries)
