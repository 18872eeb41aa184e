"""State and actions, against values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from ostinato.errors import ConfigError
from ostinato.policy.transforms import ActionSpace, Quantiles, read_prompt, read_state

STATE = torch.tensor([1.0, 2.0, 0.25])


def test_joint_deltas_are_summed_from_the_flipped_state_and_flipped_back() -> None:
    space = ActionSpace(
        dim=3,
        scale=1.0,
        parameterization="joint_delta",
        flip_dims=(-1,),
        absolute_dims=(2,),
    )
    deltas = torch.tensor([[0.1, 0.0, 0.2], [0.1, -1.0, 0.4]])
    expected = torch.tensor([[1.1, 2.0, 0.8], [1.2, 1.0, 0.6]])
    torch.testing.assert_close(space.decode_actions(deltas, STATE), expected)


def test_steps_without_absolute_dims_start_at_the_flipped_state() -> None:
    space = ActionSpace(dim=3, scale=1.0, parameterization="joint_delta", flip_dims=(2,))
    out = space.decode_actions(torch.tensor([[0.0, 0.0, 0.1]]), STATE)
    torch.testing.assert_close(out, torch.tensor([[1.0, 2.0, 1 - (0.75 + 0.1)]]))


def test_absolute_actions_are_unscaled_unnormalised_and_flipped() -> None:
    stats = Quantiles((-1.0, 0.0, 5.0), (3.0, 1.0, 5.0))
    space = ActionSpace(dim=3, scale=2.0, flip_dims=(1,), actions=stats)
    out = space.decode_actions(torch.tensor([[1.0, 1.0, 1.0]]), STATE)
    # 1 / 2 = 0.5; (0.5 + 1) * span / 2 + q01; a span of 0 counts as 1
    torch.testing.assert_close(out, torch.tensor([[2.0, 1 - 0.75, 5.75]]))


def test_the_state_is_flipped_normalised_clipped_and_scaled() -> None:
    stats = Quantiles((0.0, 0.0, 0.0), (2.0, 0.1, 1.0))
    space = ActionSpace(dim=3, scale=2.0, flip_dims=(-1,), state=stats)
    token = space.encode_state(STATE)
    # 2 * 1 / 2 - 1 = 0; 2 * 2 / 0.1 - 1 = 39 clipped to 6; 2 * 0.75 - 1 = 0.5
    torch.testing.assert_close(token, torch.tensor([[0.0, 12.0, 1.0]]))
    plain = ActionSpace(dim=3, scale=2.0).encode_state(STATE)
    torch.testing.assert_close(plain, torch.tensor([[2.0, 4.0, 0.5]]))


@pytest.mark.parametrize("kind", ["absolute", "joint_delta"])
@pytest.mark.parametrize("has_stats", [True, False])
def test_encoding_actions_inverts_decoding(kind: str, has_stats: bool) -> None:
    stats = Quantiles((-1.0, 0.0, -2.0), (3.0, 1.0, 5.0)) if has_stats else None
    space = ActionSpace(
        dim=3,
        parameterization=kind,  # type: ignore[arg-type]
        flip_dims=(-1,),
        absolute_dims=(1,),
        actions=stats,
    )
    chunk = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    commands = space.decode_actions(chunk, STATE)
    torch.testing.assert_close(space.encode_actions(commands, STATE), chunk)


def test_dimensions_and_statistics_must_fit() -> None:
    with pytest.raises(ConfigError, match=r"flip_dims holds \[3\]"):
        ActionSpace(dim=3, flip_dims=(3,))
    with pytest.raises(ConfigError, match="action_normalization has 1 and 1 values; expected 3"):
        ActionSpace(dim=3, actions=Quantiles((0.0,), (1.0,)))


def test_a_state_is_exactly_so_many_finite_numbers() -> None:
    assert read_state({"observation.state": [[1], [2]]}, 2).tolist() == [1.0, 2.0]
    with pytest.raises(KeyError, match="no state"):
        read_state({}, 2)
    with pytest.raises(ValueError, match="3 values; expected 2"):
        read_state({"state": [1, 2, 3]}, 2)
    with pytest.raises(ValueError, match="not finite"):
        read_state({"state": [1, float("nan")]}, 2)
    with pytest.raises(ValueError, match="cannot be read"):
        read_state({"state": ["a", "b"]}, 2)


def test_a_prompt_wins_over_a_task() -> None:
    assert read_prompt({"prompt": "a", "task": "b"}) == "a"
    assert read_prompt({"task": ["b"]}) == "b"
    assert read_prompt({"prompt": b"\xc3\xa9"}) == "é"
    assert read_prompt({}) == ""
    with pytest.raises(ValueError, match="list of 2"):
        read_prompt({"prompt": ["a", "b"]})
    with pytest.raises(ValueError, match="UTF-8"):
        read_prompt({"prompt": b"\xff"})
    with pytest.raises(ValueError, match="int"):
        read_prompt({"prompt": 3})
