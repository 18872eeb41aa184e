"""Requests of every kind in any order, for the tape and for a GPU: what must never change.

Two instructions of two lengths, two observations, seeds, and left-over chunks of 0, 4, 10 and 32
steps with delays of 0 to 6, for a chunk of 32 steps. Not a test itself.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from ostinato.policy.flux3_action.policy import ActionPolicy
from tests.policy.flux3_action import tiny

CHUNK = 32
LEFT = np.random.default_rng(7).uniform(-1, 1, (CHUNK, 8)).astype(np.float32)
SHORT = "open the drawer"
LONG = "take the red cup from the shelf and put it on the table, then close the drawer"
NUM_LEFT = (0, 4, 10, 32)
SCHEDULES = ("LINEAR", "EXP", "ONES", "ZEROS")
RECORDED = {"observation": "exact: recorded", "denoise": "exact: recorded"}


def requests() -> list[dict[str, Any]]:
    """Sixteen requests; every delay from 0 to 6 occurs."""
    found: list[dict[str, Any]] = []
    for i, num_left in enumerate(NUM_LEFT * 4):
        found.append(
            {
                "observation": tiny.observation(seed=i // 4 % 2, prompt=(SHORT, LONG)[i // 8]),
                "seed": i % 3,
                "prev_chunk_left_over": LEFT[:num_left] if num_left else None,
                "inference_delay": i % 7,
                "execution_horizon": (CHUNK, 20)[i % 2],
                "prefix_attention_schedule": SCHEDULES[i // 4],
            }
        )
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[k].tobytes() == b[k].tobytes() for k in ("actions", "model_actions"))


def assert_any_order_gives_the_direct_answers(policy: ActionPolicy, *, rounds: int = 2) -> None:
    """Results are held to the end; nothing is recorded meanwhile; everything is served recorded."""
    cases = requests()
    expected = [policy.infer(**case, enable_cuda_graph=False) for case in cases]
    answers = {e["model_actions"].tobytes() for e in expected}
    assert len(answers) == len(cases)  # so that a stale answer would show
    policy.infer(**cases[0])
    policy.wait_idle()  # the first answer has been doubted
    assert policy.metadata["runtime"]["verdict"] == "bit-exact"
    before = {n: s.num_recorded for n, s in policy.stats()["regions"].items()}
    order = [*range(len(cases))] * rounds
    random.Random(0).shuffle(order)
    held = [(i, policy.infer(**cases[i])) for i in order]
    for i, result in held:
        assert result["recording"] == RECORDED, cases[i]
        assert same(result, expected[i]), cases[i]
    policy.wait_idle()
    assert before == {n: s.num_recorded for n, s in policy.stats()["regions"].items()}
