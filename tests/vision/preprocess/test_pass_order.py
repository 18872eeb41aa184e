"""The order of Pillow's two passes is known, or known to be unknown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.vision.preprocess import pass_order

sides = st.integers(4, 160)


@settings(max_examples=150, deadline=None)
@given(old=st.tuples(sides, sides), new=st.tuples(sides, sides), seed=st.integers(0, 9))
def test_the_rule_holds(old: tuple[int, int], new: tuple[int, int], seed: int) -> None:
    rule = pass_order.down_first_rule()
    assert rule is not None
    seen = pass_order.observe(old, new, seed)
    if seen is not None:
        assert rule(old, new) == seen


def test_an_unknown_order_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_order.down_first_rule.cache_clear()
    monkeypatch.setattr(pass_order, "observe", lambda old, new, seed: seed % 2 == 0)
    try:
        assert pass_order.down_first_rule() is None
    finally:
        pass_order.down_first_rule.cache_clear()
