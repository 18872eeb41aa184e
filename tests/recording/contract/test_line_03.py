"""Line 3, layout: other boundaries at equal length, a tail of its own, every axis a limit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ostinato
from ostinato import GraphConfig
from ostinato.recording.family import Family, family_key
from ostinato.recording.key import Key, call_of, numeric_modes
from ostinato.recording.spec import TensorSpec
from tests.mutations import assert_fails_under
from tests.recording.segments import SEGMENTS, TOKENS, attend, packed, region
from tests.recording.serving import content, serving

LADDER = GraphConfig(min_hits=1, mode="ladder", ladder_ratio=2.0)


def check_rungs(layouts: list[tuple[int, ...]]) -> None:
    with serving(region(), LADDER) as served, ostinato.route("rung"):
        held, want = [], []
        for seed, lengths in enumerate(layouts):
            call = packed(seed, *lengths)
            held.append(served.call(call, {}))
            want.append(attend(*call))
            assert served.counters.last().route == "rung"  # type: ignore[union-attr]
        for got, expected in zip(held, want, strict=True):
            assert got.shape == expected.shape
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


LAYOUTS = [
    (4, 6),
    (6, 4),
    (3, 3, 4),
    (10,),
    (9, 1),
    (1, 2, 3, 4),
    (7,),
    (8,),
    (2, 6),
    (31,),
    (4, 6),
]


@pytest.mark.parametrize(
    "mutation", ["buffers.padding_keeps_the_last_call", "buffers.offsets_are_not_loaded"]
)
def test_boundaries_are_never_stale(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(mutation, lambda: check_rungs(LAYOUTS), monkeypatch)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.lists(st.integers(1, 9), min_size=1, max_size=6).filter(lambda s: sum(s) < 32),
        min_size=2,
        max_size=6,
    )
)
def test_any_order_of_any_layouts(layouts: list[list[int]]) -> None:
    check_rungs([tuple(lengths) for lengths in layouts])


def family() -> Family:
    structure, tensors = call_of(packed(0, 4, 4), {})
    key = Key(structure, tuple(map(TensorSpec.of, tensors)), numeric_modes("cpu"))
    return Family(region(), family_key(region(), key), 2.0)


def check_every_axis_is_a_limit() -> None:
    made = family()
    for tokens in range(1, 34):
        for segments in range(1, 10):
            sizes = {TOKENS: tokens, SEGMENTS: segments}
            rung = made.fit(sizes)
            if rung is None:
                assert tokens > 32 or segments > 8 or (segments == 8 and tokens not in (8, 16, 32))
                continue
            assert rung[0] >= tokens
            assert rung[1] >= segments + (rung[0] > tokens), (sizes, rung)
            assert made.holds(rung, sizes)


def test_the_tail_has_a_segment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("family.tail_without_segment", check_every_axis_is_a_limit, monkeypatch)


def test_what_fits_no_rung_is_direct() -> None:
    with serving(region(), LADDER) as served:
        for lengths in ((33,), (1,) * 9, (2,) * 9):
            call = packed(1, *lengths)
            assert content(served.call(call, {})) == content(attend(*call))
            assert served.counters.last().route == "direct"  # type: ignore[union-attr]


def test_padding_is_finite_in_service() -> None:
    with serving(region(), LADDER) as served, ostinato.route("rung"):
        served.call(packed(0, 7, 5), {})
        served.call(packed(1, 5, 4), {})
        (entry,) = served.recordings.entries()
        assert all(t.isfinite().all() for t in entry.inputs.tensors if t.is_floating_point())
        assert entry.inputs.tensors[1].tolist() == [0, 5, 9, 16, 16]
