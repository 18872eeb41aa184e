"""Options: where they come from, and what they may not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.policy.contract import Options, read_options


def test_given_options_win_over_the_observations_own() -> None:
    observation = {"seed": 3, "num_inference_steps": np.int64(2), "state": 0}
    options = read_options(observation, {"seed": 4, "action_horizon": None})
    assert (options.seed, options.num_inference_steps, options.action_horizon) == (4, 2, None)


def test_null_is_the_default() -> None:
    assert read_options({"inference_delay": None, "guidance_scale": None}, {}) == Options()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_inference_steps": 0}, "num_inference_steps is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": [1, 2]}, r"seed is \[1, 2\]"),
        ({"seed": True}, "seed is True"),
        ({"guidance_scale": -0.5}, "guidance_scale is -0.5"),
        ({"guidance_scale": "4"}, "guidance_scale is '4'"),
        ({"guidance_scale_action": float("nan")}, "guidance_scale_action is nan"),
        ({"sampler_shift": 0}, "sampler_shift is 0"),
        ({"action_horizon": 0}, "action_horizon is 0"),
        ({"enable_cuda_graph": "no"}, "enable_cuda_graph is 'no'"),
        ({"inference_delay": -1}, "inference_delay is -1"),
        ({"stepz": 1}, "unknown options stepz"),
    ],
)
def test_refusals_name_the_option(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_options({}, given)
