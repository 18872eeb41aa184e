"""What is recorded when, where it reads, and what a robot never waits for; on the tape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ostinato
from ostinato.errors import ConfigError
from ostinato.policy.flux3_action import regions
from ostinato.policy.flux3_action.about import why_direct
from ostinato.policy.flux3_action.policy import ActionPolicy
from ostinato.recording import tree
from ostinato.recording.entry import Entry
from tests.policy.flux3_action import orders, tiny


def make(num_caption_buckets: int = 2, **package: Any) -> ActionPolicy:
    made = ActionPolicy(
        tiny.loaded_with(**package),
        enable_cuda_graph=True,
        graph=ostinato.GraphConfig(),
        caption_cache_max_tokens=800,
        offload_text_encoder=False,
        num_caption_buckets=num_caption_buckets,
    )
    made.warm_up()
    return made


@pytest.fixture(scope="module")
def policy() -> Iterator[ActionPolicy]:
    made = make(chunk_size=orders.CHUNK)
    yield made
    made.close()


def test_any_order_of_requests_gives_the_direct_answers(policy: ActionPolicy) -> None:
    orders.assert_any_order_gives_the_direct_answers(policy)


def test_a_chunk_is_two_replays_and_the_second_reads_what_the_first_left(
    policy: ActionPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[Entry] = []
    honest = Entry.launch

    def launch(self: Entry, tensors: Any) -> None:
        replayed.append(self)
        honest(self, tensors)

    policy.infer(tiny.observation())
    policy.wait_idle()
    monkeypatch.setattr(Entry, "launch", launch)
    policy.infer(tiny.observation(seed=5))
    observation, loop = replayed
    left: list[torch.Tensor] = []
    tree.flatten(observation.results.borrow([]), left)
    assert len(left) == regions.NUM_OBSERVED
    assert [t.data_ptr() for t in left] == [
        t.data_ptr() for t in loop.inputs.tensors[: regions.NUM_OBSERVED]
    ]


def test_so_many_buckets_are_recorded_before_the_policy_is_ready() -> None:
    for num in (1, 2, 3):
        made = make(num)
        assert made.stats()["regions"]["loop"].num_recorded == num
        for length in range(num):  # the shortest instructions of each bucket
            prompt = "x" * (80 * length)
            result = made.infer(tiny.observation(prompt=prompt))
            assert result["recording"] == orders.RECORDED
            made.wait_idle()
        made.close()
    with pytest.raises(ConfigError, match="num_caption_buckets is 0"):
        ostinato.load_policy(tiny.NAME, device="cpu", num_caption_buckets=0)


def test_a_longer_instruction_is_served_directly_once_and_recorded_when_idle() -> None:
    made = make(1)
    case = tiny.observation(prompt=orders.LONG)
    first = made.infer(case)
    assert first["recording"]["denoise"] == "direct: not recorded yet"
    made.wait_idle()
    second = made.infer(case)
    assert second["recording"] == orders.RECORDED and orders.same(first, second)
    made.close()


def test_recorded_loops_are_bounded_and_the_rest_is_served_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = make(1)
    monkeypatch.setattr(regions, "MAX_LOOPS", 3)
    served = {}
    for num_steps in (1, 2, 3, 5):
        wishes = {"num_inference_steps": num_steps}
        expected = made.infer(tiny.observation(), **wishes, enable_cuda_graph=False)
        made.infer(tiny.observation(), **wishes)
        made.wait_idle()
        result = made.infer(tiny.observation(), **wishes)
        assert orders.same(result, expected)
        served[num_steps] = result["recording"]["denoise"]
        made.wait_idle()
    stepped = "exact: recorded, step by step"
    recorded = "exact: recorded"
    assert served == {1: recorded, 2: recorded, 3: stepped, 5: stepped}
    assert made.stats()["regions"]["loop"].num_recordings == 3
    made.close()


def test_several_devices_or_processes_are_served_directly_and_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = tiny.loaded_with()
    assert why_direct(loaded.model, is_on=True) == "" and why_direct(loaded.model, is_on=False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    made = make()
    result = made.infer(tiny.observation())
    reason = "2 processes run the model together"
    assert result["recording"] == dict.fromkeys(orders.RECORDED, f"direct: {reason}")
    runtime = made.metadata["runtime"]
    assert not runtime["cuda_graph"] and runtime["cuda_graph_reason"] == reason
    monkeypatch.undo()
    with torch.device("meta"):
        loaded.model.dit.txt_in = torch.nn.Linear(2, 2)
    assert why_direct(loaded.model, is_on=True) == "several devices hold the weights: cpu, meta"
