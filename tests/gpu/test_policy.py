"""A small FLUX 3 Action policy on the device: recorded equals direct, in both precisions.

Heads are 128 wide and rows 256, so that the fused operators serve.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ostinato import GraphConfig
from ostinato.policy.flux3_action.load import load_seeded
from ostinato.policy.flux3_action.policy import ActionPolicy
from tests.gpu.regions import DEVICE
from tests.policy.flux3_action import tiny

pytestmark = pytest.mark.device
LONG = "take the red cup from the shelf and put it on the table, then close the drawer"


def make(quantization: str | None, **package: Any) -> ActionPolicy:
    raw = tiny.raw(quantization=quantization, **package)
    raw["package"]["dit_config"] |= {
        "hidden_size": 256,
        "num_heads": 2,
        "axes_dim": [32, 32, 32, 32],
    }
    loaded = load_seeded(raw, "test", device=torch.device(DEVICE), dtype=torch.bfloat16)
    policy = ActionPolicy(
        loaded,
        enable_cuda_graph=True,
        graph=GraphConfig(),
        caption_cache_max_tokens=800,
        offload_text_encoder=False,
    )
    policy.warm_up()
    return policy


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[k].tobytes() == b[k].tobytes() for k in ("actions", "model_actions"))


@pytest.mark.parametrize("quantization", [None, "fp8r"])
def test_recorded_answers_equal_direct_ones_bit_exact(quantization: str | None) -> None:
    policy = make(quantization)
    cases = [
        tiny.observation(seed=i, prompt=prompt) | {"seed": i}
        for i, prompt in enumerate(("", "open the drawer", LONG))
    ]
    for case in cases:  # the longer bucket is recorded when the lane is idle
        policy.infer(case)
    policy.wait_idle()
    direct = [policy.infer(case, enable_cuda_graph=False) for case in cases]
    held = [(i, policy.infer(cases[i])) for i in (2, 0, 1, 1, 2, 0)]
    for i, result in held:
        assert result["recording"] == {
            "observation": "exact: recorded",
            "denoise": "exact: recorded",
        }
        assert same(result, direct[i])
    assert policy.metadata["runtime"]["verdict"] == "bit-exact"
    policy.close()


def test_step_by_step_equals_the_loop_bit_exact() -> None:
    policy = make(None)
    wishes = {"num_inference_steps": 3}
    loop = policy.infer(tiny.observation(), **wishes)
    policy.wait_idle()
    policy._regions._known.clear()
    stepped = policy.infer(tiny.observation(), **wishes)
    assert stepped["recording"]["denoise"] == "exact: recorded, step by step"
    assert same(loop, stepped)
    policy.close()
