"""Which backend serves: by name, by measured time, never timed while recording."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ostinato import state
from ostinato.kernels import gate
from ostinato.kernels.segment_attention import availability, cuda
from ostinato.kernels.segment_attention.backends import BACKENDS, steady
from ostinato.kernels.segment_attention.call import Backend, Call
from ostinato.kernels.segment_attention.choice import Chooser, candidates, made_up_offsets
from ostinato.kernels.segment_attention.classes import layout_class, row_class
from ostinato.kernels.segment_attention.reference import (
    check_offsets,
    segment_attention_reference,
)
from ostinato.kernels.select import Selector
from tests.kernels.segment_attention.test_segment_attention import offsets_of, random_qkv

RECORDING = state.Activity(state.Phase.RECORDING)


def right(call: Call, out: Tensor | None) -> Tensor:
    result = torch.empty_like(call.q, memory_format=torch.contiguous_format)
    segment_attention_reference(*call[:6], result)
    return result


def wrong(call: Call, out: Tensor | None) -> Tensor:
    return right(call, out) * 1.02


def example(lengths: Sequence[int] = (9, 7, 0), dtype: torch.dtype = torch.float32) -> Call:
    q, k, v = (x.to(dtype) for x in random_qkv(sum(lengths), 2, 16))
    return Call(q, k, v, offsets_of(list(lengths)), sum(lengths), 0.25)


class Clock:
    """Times by name of the variant, in the order in which the table asks for them."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.num_asked = 0

    def __call__(self, runs: Sequence[Any]) -> list[float]:
        self.num_asked += 1
        return self.seconds[: len(runs)]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the machine's own: torch's dense kernel, and one that is as right as it."""
    for name in ("triton", "fa3", "cudnn_ragged", "cudnn"):
        monkeypatch.delitem(BACKENDS, name)
    monkeypatch.setitem(BACKENDS, "fake", Backend("fake", right))
    availability.forget_probes()
    yield
    availability.forget_probes()


def chooser(*seconds: float, directory: Path | None = None) -> tuple[Chooser, Clock]:
    clock = Clock(*seconds)
    return Chooser(Selector(directory, "card", timer=clock)), clock


def test_the_fastest_serves_and_is_timed_once() -> None:
    choice, clock = chooser(2.0, 1.0)  # masked, fake
    assert choice.choose(example()).name == "fake"
    assert choice.choose(example((4, 12))).name == "fake"
    assert clock.num_asked == 1
    slow, _ = chooser(1.0, 2.0)
    assert slow.choose(example()).name == "masked"


def test_nothing_is_probed_or_timed_while_recording() -> None:
    choice, clock = chooser(2.0, 1.0)
    with state.entering(RECORDING):
        assert choice.choose(example()).name == "masked"
    assert clock.num_asked == 0
    assert availability._verdicts == {}


def test_a_recording_that_a_later_measurement_contradicts_is_made_anew() -> None:
    choice, _ = chooser(2.0, 1.0)
    with state.entering(RECORDING):
        choice.choose(example())
    before = state.verdicts.number
    assert choice.choose(example()).name == "fake"
    assert state.verdicts.number == before + 1
    with state.entering(RECORDING):
        assert choice.choose(example()).name == "fake"
    assert state.verdicts.number == before + 1


def test_a_recording_that_agrees_stays() -> None:
    choice, _ = chooser(1.0, 2.0)
    before = state.verdicts.number
    with state.entering(RECORDING):
        choice.choose(example())
    choice.choose(example())
    assert state.verdicts.number == before


@pytest.mark.parametrize("numerics", ["reference", "invariant"])
def test_other_numerics_use_torchs_own_kernel_without_a_clock(numerics: gate.Numerics) -> None:
    choice, clock = chooser(2.0, 1.0)
    with gate.using_numerics(numerics):
        assert choice.choose(example(dtype=torch.bfloat16)).name == "varlen"
        assert choice.choose(example((16,), dtype=torch.bfloat16)).name == "varlen"
        assert choice.choose(example((16,))).name == "sdpa"
        assert choice.choose(example()).name == "masked"
    assert clock.num_asked == 0


def test_a_hidden_backend_is_not_there() -> None:
    choice, _ = chooser(2.0, 1.0)
    before = state.verdicts.number
    with availability.hiding("fake"):
        assert choice.choose(example()).name == "masked"
        assert state.verdicts.number == before + 1
        with pytest.raises(ValueError, match="backend fake is hidden"):
            cuda.attend(*example()[:6], "fake")
    assert choice.choose(example()).name == "fake"
    assert state.verdicts.number == before + 2


def test_a_wrong_backend_is_no_candidate_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(BACKENDS, "fake", Backend("fake", wrong))
    with caplog.at_level(logging.WARNING):
        assert [b.name for b in candidates(example())] == ["masked"]
        assert [b.name for b in candidates(example())] == ["masked"]
    [record] = caplog.records
    assert "fake is out" in record.message
    assert "beyond the bound" in record.message


def test_a_backend_that_raises_when_probed_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_image(call: Call, out: Tensor | None) -> Tensor:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setitem(BACKENDS, "fake", Backend("fake", no_image))
    assert [b.name for b in candidates(example())] == ["masked"]
    assert "no kernel image" in str(availability.failure(BACKENDS["fake"], example()))


def test_a_backend_that_fails_in_service_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, _ = chooser(2.0, 1.0)
    monkeypatch.setattr(cuda, "CHOOSER", choice)
    call = example()
    assert choice.choose(call).name == "fake"
    before = state.verdicts.number

    def fail(call: Call, out: Tensor | None) -> Tensor:
        raise RuntimeError("launch failed")

    object.__setattr__(BACKENDS["fake"], "attend", fail)
    torch.testing.assert_close(cuda.attend(*call[:6], "auto"), right(call, None))
    assert state.verdicts.number == before + 1
    assert choice.choose(call).name == "masked"


def test_cards_and_packages_are_asked_for_before_a_probe() -> None:
    device = torch.device("cpu")
    other_card = Backend("a", right, capabilities=frozenset({(9, 0)}))
    assert "compute capability (8, 6)" in availability.absence(other_card, device)
    missing = Backend("b", right, package="no-such-thing", module="no_such_thing")
    assert availability.absence(missing, device) == "needs the package no-such-thing"
    assert availability.label(missing) == "b"
    assert availability.absence(Backend("c", right), device) == ""


def test_two_processes_choose_alike(tmp_path: Path) -> None:
    first, _ = chooser(2.0, 1.0, directory=tmp_path)
    first.choose(example())
    second, clock = chooser(1.0, 2.0, directory=tmp_path)
    assert second.choose(example()).name == "fake"
    assert clock.num_asked == 0


# -- classes --------------------------------------------------------------------------------------


def test_a_recordings_capacity_is_of_its_direct_calls_class() -> None:
    for needed, capacity in ((1, 1), (2, 8), (8, 8), (9, 64), (64, 64)):
        assert layout_class(needed, 784) == layout_class(capacity, 3136)
    assert layout_class(1, 784) != layout_class(2, 784)
    assert layout_class(64, 784) != layout_class(65, 784)
    assert layout_class(3, 64) == layout_class(300, 16)
    assert layout_class(3, 64) != layout_class(3, 65)
    assert layout_class(3, 128) != layout_class(3, 129)


def test_rows_are_rounded_up() -> None:
    sizes = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 196, 3136, 4796, 12544)
    expected = [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 16, 256, 4096, 6144, 16384]
    assert [row_class(n) for n in sizes] == expected
    assert row_class(16_385) == row_class(1 << 20) == row_class(16_384) == 16_384


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=9).filter(sum),
    slack=st.integers(0, 40),
)
def test_made_up_segmentations_keep_the_bounds(lengths: list[int], slack: int) -> None:
    call = example(lengths)._replace(max_length=max(lengths) + slack)
    made = made_up_offsets(call)
    assert 1 <= len(made) <= 2
    for offsets in made:
        assert offsets.shape == call.offsets.shape
        assert offsets.dtype == torch.int32
        check_offsets(offsets.tolist(), sum(lengths), call.max_length)


def test_steady_is_never_a_guess() -> None:
    assert steady(example()).name == "masked"
    assert steady(example(dtype=torch.float64)).name == "masked"
    assert steady(example(dtype=torch.float16)).name == "varlen"
