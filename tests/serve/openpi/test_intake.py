"""Observations in every spelling come out the same; what is malformed says what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.errors import InputError
from ostinato.serve.openpi.intake import Intake, IntakeSettings
from tests.serve.openpi.observations import as_read, droid, encoded, picture, plain
from tests.serve.openpi.stub import HW, SPEC

WRIST = "observation/wrist_image_left"


def read(message: dict[Any, Any], **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return Intake(SPEC, IntakeSettings(**settings)).read(message)


def assert_as_read(found: dict[str, Any], wanted: dict[str, Any] | None = None) -> None:
    wanted = wanted or as_read()
    assert list(found["images"]) == list(wanted["images"])
    for name, image in wanted["images"].items():
        assert found["images"][name].dtype == image.dtype
        assert np.array_equal(found["images"][name], image)
    assert found["state"].dtype == np.float32
    assert found["state"].tobytes() == wanted["state"].tobytes()
    assert found["prompt"] == wanted["prompt"]


STATE = np.append(np.linspace(-1, 1, 7), 0.5)
SPELLINGS: dict[str, dict[Any, Any]] = {
    "droid": droid(),
    "plain": plain(),
    "bytes keys": {key.encode(): value for key, value in droid().items()},
    "lerobot": {
        "observation.images.wrist": picture(0),
        "observation.images.left": picture(1),
        "observation.images.right": picture(2),
        "observation.state": STATE,
        "task": "pick up the cup",
    },
    "nested": {
        "observation": {"images": plain()["images"], "state": STATE},
        "task": [plain()["prompt"]],
    },
    "counted from zero": {
        "observation/exterior_image_0_left": picture(1),
        "observation/exterior_image_1_left": picture(2),
        "observation/wrist_image_left": picture(0),
        "observation/joint_position": STATE[:7],
        "observation/gripper_position": 0.5,
        "prompt": b"pick up the cup",
    },
    "lists": plain(
        state=STATE.tolist(), images={k: v.tolist() for k, v in plain()["images"].items()}
    ),
    "channels first": plain(
        images={k: np.moveaxis(v, -1, 0) for k, v in plain()["images"].items()}, state=STATE[None]
    ),
    "png": plain(images={k: encoded(v, "PNG") for k, v in plain()["images"].items()}),
    "int64": plain(images={k: v.astype(np.int64) for k, v in plain()["images"].items()}),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_one_observation(name: str) -> None:
    observation, others = read(SPELLINGS[name])
    assert_as_read(observation)
    assert others == {}


def test_what_is_no_observation_is_handed_on() -> None:
    _, others = read(droid(seed=3, extra="x", ostinato={"a": 1}))
    assert others == {"seed": 3, "extra": "x", "ostinato": {"a": 1}}


def test_a_rename_wins_over_what_the_name_would_mean() -> None:
    message = plain(
        images={"wrist": picture(9), "top": picture(0), "left": picture(1), "r": picture(2)}
    )
    observation, _ = read(message, rename={"top": "wrist", "images.r": "right", "wrist": "unused"})
    assert_as_read(observation)


def test_floats_stay_what_they_are() -> None:
    images = {k: (v / 255).astype(np.float32) for k, v in plain()["images"].items()}
    observation, _ = read(plain(images=images))
    assert_as_read(observation, {**as_read(), "images": images})


def test_jpeg_is_read_as_pillow_reads_it() -> None:
    import io

    from PIL import Image

    data = encoded(picture(0), "JPEG")
    observation, _ = read(droid(**{WRIST: data}))
    assert np.array_equal(observation["images"]["wrist"], np.asarray(Image.open(io.BytesIO(data))))


def test_composite_instead_of_all() -> None:
    whole = picture(4, (18, 20))
    observation, others = read({"images": {"composite": whole}, "state": STATE})
    assert list(observation["images"]) == ["composite"]
    assert np.array_equal(observation["images"]["composite"], whole)
    assert (observation["prompt"], others) == ("", {})


def test_other_sizes_only_where_the_server_resizes() -> None:
    large = picture(5, (24, 40))
    with pytest.raises(InputError, match=r"wrist .*is 24 x 40 pixels; expected 12 x 20"):
        read(droid(**{WRIST: large}))
    observation, _ = read(droid(**{WRIST: large}), is_resized=True)
    assert observation["images"]["wrist"].shape == (*HW, 3)


JPEG = encoded(picture(0), "JPEG")
MALFORMED: list[tuple[str, dict[Any, Any], str]] = [
    (
        "no camera",
        {"state": STATE},
        r"missing \[left, right, wrist\]; expected .*received \[state\]",
    ),
    (
        "two cameras",
        {k: v for k, v in droid().items() if "image_2" not in k},
        r"missing \[right\]; expected \[left, right, wrist\], received \[.*_left, prompt\]",
    ),
    ("a typo", droid(**{WRIST: None, "observation/wrist": None}), "both mean wrist"),
    ("none", droid(**{WRIST: None}), r"wrist \(.*\) is nothing; expected an array \(H, W, 3\)"),
    ("text", droid(**{WRIST: "image.png"}), "text 'image.png'; expected an array"),
    ("grey", droid(**{WRIST: picture(0)[..., 0]}), r"uint8 \(12, 20\); expected \(H, W, 3\)"),
    ("alpha", droid(**{WRIST: np.zeros((12, 20, 4), np.uint8)}), r"\(12, 20, 4\); expected"),
    ("batched", droid(**{WRIST: picture(0)[None]}), r"\(1, 12, 20, 3\); expected"),
    ("empty", droid(**{WRIST: np.zeros((0, 20, 3), np.uint8)}), r"\(0, 20, 3\); expected"),
    ("size", droid(**{WRIST: picture(0, (20, 12))}), "is 20 x 12 pixels; expected 12 x 20"),
    ("bright", droid(**{WRIST: picture(0) * 1.0}), "values 0.0 to 255.0; expected 0 to 1"),
    ("nan", droid(**{WRIST: np.full((12, 20, 3), np.nan)}), "values nan to nan; expected 0 to 1"),
    (
        "negative",
        droid(**{WRIST: picture(0).astype(np.int16) - 9}),
        "values -9 to .*expected 0 to 255",
    ),
    ("bools", droid(**{WRIST: picture(0) > 9}), "bool .*; expected uint8"),
    ("gif", droid(**{WRIST: b"GIF89a..."}), "begin 47 49 46 .*; expected JPEG"),
    ("cut off", droid(**{WRIST: JPEG[:200]}), "a broken JPEG"),
    (
        "no state",
        {k: v for k, v in droid().items() if "position" not in k},
        "expected state .8 numbers",
    ),
    (
        "no gripper",
        {k: v for k, v in droid().items() if "gripper" not in k},
        "expected state .8 numbers., or joint_position and gripper_position",
    ),
    ("short", plain(state=STATE[:7]), "state 7: 7 numbers; expected 8"),
    (
        "long joints",
        droid(**{"observation/joint_position": np.zeros(8)}),
        "joint_position 8 and gripper_position 1: 9 numbers; expected 8",
    ),
    ("state nan", plain(state=np.full(8, np.nan)), r"holds \[nan.*; expected finite numbers"),
    ("state huge", plain(state=np.full(8, 1e39)), "expected finite numbers"),
    ("state rows", plain(state=np.zeros((2, 4))), r"float64 \(2, 4\); expected one row"),
    ("state text", plain(state=["a"] * 8), "list of 8; expected numbers"),
    ("state uneven", plain(state=[[1], [1, 2]]), "uneven list of 2"),
    ("prompt number", plain(prompt=3), "the prompt is int 3; expected text"),
    ("prompts", plain(prompt=["a", "b"]), "list of 2; expected text"),
    ("prompt bytes", plain(prompt=b"\xff"), "not UTF-8"),
    ("images list", plain(images=[picture(0)] * 3), "images is list of 3; expected a map"),
    ("key", {b"\xff": 1, **droid()}, "the key .* is not UTF-8"),
]


@pytest.mark.parametrize(("name", "message", "reason"), MALFORMED, ids=[m[0] for m in MALFORMED])
def test_malformed_observations(name: str, message: dict[Any, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(message)


@pytest.mark.parametrize(
    ("name", "message", "is_quick"),
    [
        ("raw cameras", droid(), True),
        ("maps", plain(ostinato={"seed": 1}), True),
        ("floats", plain(hw=(12, 20), images={"wrist": np.zeros((64, 64, 3))}), False),
        ("another size", droid((360, 640)), False),
        ("a file", droid(**{WRIST: encoded(picture(0), "PNG")}), False),
        ("a file in a map", {"images": {"wrist": encoded(picture(0), "JPEG")}}, False),
        ("a large array in a list", plain(state=[np.zeros(10**5)]), False),
        ("long text", plain(prompt="a" * 10**5), False),
    ],
)
def test_what_is_read_without_a_thought(name: str, message: dict[Any, Any], is_quick: bool) -> None:
    assert Intake(SPEC, IntakeSettings()).is_quick(message) is is_quick
