"""Nothing that is not finite or out of bounds reaches a robot."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import ConfigError, UnsafeActions
from ostinato.serve.openpi.actions import ActionBounds, check_actions, parse_bounds

ACTIONS = np.array([[0.0, 1.0], [2.0, -3.0]], np.float32)


def test_safe_actions_pass_untouched() -> None:
    found, num_clamped = check_actions(ACTIONS, ActionBounds((-3.0,), (2.0,)))
    assert found is ACTIONS and num_clamped == 0
    assert check_actions(ACTIONS, None) == (ACTIONS, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bounds", [None, ActionBounds((-9.0,), (9.0,), is_clamped=True)])
def test_what_is_not_finite_is_never_sent(value: float, bounds: ActionBounds | None) -> None:
    actions = ACTIONS.copy()
    actions[1, 0] = value
    with pytest.raises(UnsafeActions, match=r"1 of 4 values, the first .* at step 1, dimension 0"):
        check_actions(actions, bounds)


def test_out_of_bounds_names_the_first_and_its_bounds() -> None:
    bounds = parse_bounds("-9:9,-2:1", is_clamped=False)
    with pytest.raises(
        UnsafeActions,
        match=r"the first -3.0 at step 1, dimension 1; dimension 1 lies in -2.0 to 1.0",
    ):
        check_actions(ACTIONS, bounds)


def test_a_clamp_counts_what_it_changed_and_changes_nothing_else() -> None:
    found, num_clamped = check_actions(ACTIONS, parse_bounds("-1:1", is_clamped=True))
    assert (found.tolist(), found.dtype, num_clamped) == ([[0, 1], [1, -1]], np.float32, 2)
    assert ACTIONS[1, 1] == -3


@pytest.mark.parametrize(
    ("text", "reason"),
    [("1", "'1': expected LOW:HIGH"), ("2:1", "LOW below HIGH"), ("0:1,a:b", "'a:b': expected")],
)
def test_bounds_that_are_none(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_bounds(text, is_clamped=False)


def test_as_many_bounds_as_dimensions_or_one() -> None:
    parse_bounds("0:1", is_clamped=False).check(8)
    with pytest.raises(ConfigError, match="2 entries; expected 1 or 8"):
        parse_bounds("0:1,0:1", is_clamped=False).check(8)
