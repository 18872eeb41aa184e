"""The adapter between a policy and the robots' contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.cli.config import resolve_settings
from ostinato.cli.policy_wiring import (
    PolicyAdapter,
    fingerprint,
    is_policy,
    load_policy_service,
)
from ostinato.errors import InputError
from ostinato.serve.openpi.contract import PolicyService
from ostinato.serve.openpi.metadata import metadata_of
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.service import Reply, Request
from tests.serve.openpi.observations import as_read

MODEL = "tiny-flux3-action"


class Scripted:
    """A policy that answers what it is told to."""

    def __init__(self) -> None:
        self.verdict: str | None = None
        self.calls: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.is_closed = False

    @property
    def metadata(self) -> dict[str, Any]:
        inputs = {"camera_keys": ["wrist"], "camera_hw": [12, 20], "state_dim": 8}
        return {"input": inputs | {"camera_layout": "droid"}, "runtime": {"verdict": self.verdict}}

    def infer(self, observation: Any, **options: Any) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.calls.append(options)
        return {
            "actions": np.ones((2, 8), np.float32),
            "model_actions": np.ones((4, 8), np.float32),
            "timings": {"denoise_ms": 2.0, "total_ms": 3.0},
            "recording": {"a": "exact: recorded", "b": "exact: recorded"},
        }

    def reset(self) -> None: ...
    def warm_up(self) -> None: ...

    def stats(self) -> dict[str, Any]:
        return {"num_captions": 2, "regions": {}}

    def close(self) -> None:
        self.is_closed = True


def serve(adapter: PolicyAdapter, **options: Any) -> Reply | Exception:
    (result,) = adapter.serve([Request({"observation": as_read(), "options": options})])
    return result


def test_a_reply_has_both_chunks_of_one_shape_and_every_stage() -> None:
    adapter = PolicyAdapter("m", Scripted())
    reply = serve(adapter, seed=1)
    assert isinstance(reply, Reply)
    assert {name: array.shape for name, array in reply.outputs.items()} == {
        "actions": (2, 8),
        "actions_model": (2, 8),
    }
    assert (reply.route, set(reply.stage_ms)) == ("exact", {"infer", "denoise"})
    assert adapter.spec.composite_hw == (540, 640)


def test_the_first_recorded_answer_is_left_to_a_robot() -> None:
    policy = Scripted()
    adapter = PolicyAdapter("m", policy)
    adapter.keep_warm()
    assert policy.calls == [{"enable_cuda_graph": False}]
    policy.verdict = "bit-exact"
    serve(adapter)
    adapter.keep_warm()
    assert policy.calls[-1] == {"enable_cuda_graph": None}
    assert adapter.events() == ["the first answer, recorded against direct: bit-exact"]
    assert adapter.snapshot()["is_bit_exact"] == 1.0


def test_options_are_refused_before_they_wait_and_missing_things_are_the_clients_fault() -> None:
    policy = Scripted()
    adapter = PolicyAdapter("m", policy)
    request = Request({"observation": as_read(), "options": {"seed": "x"}})
    (refused,) = adapter.prepare([request])
    assert isinstance(refused, InputError)
    assert str(refused).startswith("[option] seed is 'x'; expected an integer")
    policy.error = KeyError("missing cameras")
    assert str(serve(adapter)) == "[observation] missing cameras"
    policy.error = RuntimeError("x")
    assert serve(adapter) is policy.error


def test_what_is_a_policy(tmp_path: Path) -> None:
    assert is_policy(MODEL) and not is_policy("tiny-qwen3-vl")
    assert not is_policy(str(tmp_path)) and not is_policy("no such thing")
    (tmp_path / "manifest.json").write_text('{"kind": "policy_export"}')
    assert is_policy(str(tmp_path))
    assert len(fingerprint(str(tmp_path)) or "") == 64


@pytest.fixture(scope="module")
def tiny() -> Iterator[PolicyService]:
    settings = resolve_settings(device="cpu", environ={}, is_recording_on=False)
    service = load_policy_service(MODEL, settings, device="cpu")
    yield service
    service.close()


def plain_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for entry in value.values():
            yield from plain_leaves(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from plain_leaves(entry)
    else:
        yield value


def test_the_metadata_of_the_tiny_model_is_complete_and_plain(tiny: PolicyService) -> None:
    told = metadata_of(tiny, RobotSettings())
    assert {type(leaf) for leaf in plain_leaves(told)} <= {int, float, str, bool, type(None)}
    assert told["normalization"] == {"state": False, "actions": False}
    assert told["real_time_chunking"]["schedules"] == ["ZEROS", "ONES", "LINEAR", "EXP"]
    assert (told["output"]["action_horizon"], told["output"]["action_dim"]) == (8, 8)
    assert told["input"]["camera_aliases"]["wrist_image_left"] == "wrist"
    assert (told["image_resolution"], told["needs_wrist_camera"]) == ([360, 640], True)
    assert told["runtime"]["cuda_graph"] is False
    assert "seed" in told["protocol"]["options"]


def test_a_package_of_one_variant_is_a_policy_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "variants" / "sd"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"kind": "policy_export"}')
    assert is_policy(str(tmp_path), "sd")
    assert not is_policy(str(tmp_path))
    assert fingerprint(str(tmp_path), "sd") is not None
