"""Rotation and attention in one kernel under the interpreter; the choice between one and two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ostinato import state
from ostinato.errors import ConfigError
from ostinato.kernels import rotary_attention as subject
from ostinato.kernels.gate import first_wrong_answer, signature_of, using_numerics
from ostinato.kernels.rotary_attention import choice, reference
from ostinato.kernels.segment_attention.availability import hiding
from ostinato.kernels.select import Selector
from tests.kernels.agreement import interprets_loops, operator
from tests.kernels.segment_attention.test_segment_attention import formula, offsets_of
from tests.kernels.test_select import RECORDING

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]
HEADS = 2


def drawn(
    lengths: list[int], head_dim: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """qkv, cosines, sines, offsets."""
    generator = torch.Generator().manual_seed(seed)
    rows = sum(lengths)
    qkv = torch.randn(rows, 3 * HEADS * head_dim, generator=generator)
    angles = 6 * torch.rand(rows, head_dim // 2, generator=generator)
    return qkv, angles.cos(), angles.sin(), offsets_of(lengths)


def turned_in_double(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair (i, i + half) as a complex number times its angle's."""
    first, second = x.double().chunk(2, dim=-1)
    product = torch.complex(first, second) * torch.complex(cos.double(), sin.double())[:, None]
    return torch.cat((product.real, product.imag), dim=-1)


def expected(qkv: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor, scale: float) -> Tensor:
    q, k, v = qkv.unflatten(1, (3, HEADS, -1)).unbind(1)
    q, k = turned_in_double(q, cos, sin), turned_in_double(k, cos, sin)
    return formula(q, k, v.double(), offsets, scale).flatten(1)


def by_kernel(*args: Any) -> Tensor:
    from ostinato.kernels.rotary_attention.triton import rotary_attention

    with np.errstate(all="ignore"):
        result: Tensor = rotary_attention(*args)
    return result


@interprets_loops
@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(sum),
    head_dim=st.sampled_from([8, 64, 72, 80, 128]),
    slack=st.integers(0, 58),
    seed=st.integers(0, 1000),
    members=st.sampled_from([1, HEADS]),
)
def test_close_to_the_formula(
    lengths: list[int], head_dim: int, slack: int, seed: int, members: int
) -> None:
    call = drawn(lengths, head_dim, seed)
    got = by_kernel(*call, max(lengths) + slack, HEADS, 0.2, members)
    torch.testing.assert_close(got.double(), expected(*call, 0.2), rtol=1e-5, atol=1e-5)


@interprets_loops
@pytest.mark.parametrize("lengths", [[64] * 3, [1, 64, 0, 17], [64], [63, 0, 0]])
@pytest.mark.parametrize("members", [1, HEADS])
def test_windows_of_64(lengths: list[int], members: int) -> None:
    call = drawn(lengths, 80)
    got = by_kernel(*call, 64, HEADS, 0.1, members)
    torch.testing.assert_close(got.double(), expected(*call, 0.1), rtol=1e-5, atol=1e-5)


@interprets_loops
@pytest.mark.parametrize("lengths", [[7, 40], [33]])
@pytest.mark.parametrize(("max_length", "members"), [(64, 1), (64, HEADS), (128, 1)])
def test_the_gate_finds_it_right(lengths: list[int], max_length: int, members: int) -> None:
    args = (*drawn(lengths, 72), max_length, HEADS, 0.1, members)
    with np.errstate(all="ignore"):
        reason = first_wrong_answer(operator("rotary_attention"), args)
    assert not reason, reason


@interprets_loops
def test_the_gate_notices_tables_of_another_token(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.kernels.rotary_attention import triton

    right = triton.rotary_attention

    def shifted(qkv: Tensor, cos: Tensor, *rest: Any) -> Tensor:
        result: Tensor = right(qkv, cos.roll(1, 0), *rest)
        return result

    monkeypatch.setattr(triton, "rotary_attention", shifted)
    call = drawn([20, 30], 72)
    with np.errstate(all="ignore"):
        reason = first_wrong_answer(operator("rotary_attention"), (*call, 64, HEADS, 0.1, 1))
    assert "beyond the bound" in reason


def test_on_the_cpu_it_is_the_chain() -> None:
    call = drawn([5, 9, 0, 12], 16)
    got = subject.rotary_attention(*call, 12, heads=HEADS, scale=0.3)
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), expected(*call, 0.3), rtol=1e-5, atol=1e-5)


def test_refuses_what_cannot_be() -> None:
    qkv, cos, sin, offsets = drawn([5], 16)

    def attend(*args: Any, heads: int = HEADS) -> None:
        subject.rotary_attention(*args, 5, heads=heads, scale=1.0)

    with pytest.raises(ConfigError, match=r"qkv is \(5, 96\) for 5 heads"):
        attend(qkv, cos, sin, offsets, heads=5)
    with pytest.raises(ConfigError, match=r"sin is \(4, 8\)"):
        attend(qkv, cos, sin[1:], offsets)
    with pytest.raises(ConfigError, match=r"sin is \(5, 8\) torch.float64"):
        attend(qkv, cos, sin.double(), offsets)
    with pytest.raises(ConfigError, match="offsets must be int32"):
        attend(qkv, cos, sin, offsets.long())


def test_fake_tensors_and_opcheck() -> None:
    call = (*drawn([5, 3], 16), 5, HEADS, 0.3, 1)
    torch.library.opcheck(torch.ops.ostinato.rotary_attention.default, call)


# -- the choice: no clock and no GPU are needed ----------------------------------------------------


class Clock:
    """Says how long candidates take, the chain first; ``asked`` counts."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.asked = 0

    def __call__(self, candidates: Any) -> list[float]:
        self.asked += 1
        for candidate in candidates:
            candidate()
        return list(self.seconds[: len(candidates)])


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Any:
    def with_clock(clock: Clock) -> Any:
        selector = Selector(None, "test", timer=clock)
        monkeypatch.setattr(choice, "selector_of", lambda device: selector)
        monkeypatch.setattr(choice, "kernel", reference)  # one that a CPU can run
        return choice.resolve

    return with_clock


def call_of(lengths: list[int], max_length: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    qkv, cos, sin, offsets = drawn(lengths, 16)
    return (qkv.to(dtype), cos, sin, offsets, max_length, HEADS, 0.3, 1)


@pytest.mark.parametrize(("chain", "kernel", "is_kernel"), [(2.0, 1.0, True), (1.0, 2.0, False)])
def test_the_faster_one_serves_its_class(
    choosing: Any, chain: float, kernel: float, is_kernel: bool
) -> None:
    clock = Clock(chain, kernel)
    resolve = choosing(clock)
    for lengths in ([64] * 4, [60] * 4, [64] * 4):
        args = call_of(lengths, 64)
        assert (resolve(args) is not None) == is_kernel
    assert clock.asked == 1


def test_long_segments_wide_rows_and_other_numerics_ask_no_clock(choosing: Any) -> None:
    clock = Clock(2.0, 1.0)
    resolve = choosing(clock)
    assert resolve(call_of([64], 129)) is None
    assert resolve(call_of([64], 64, torch.float32)) is None
    qkv, cos, sin, *rest = call_of([64], 64)
    assert resolve((qkv, cos.double(), sin.double(), *rest)) is None
    assert resolve((qkv[:0], cos[:0], sin[:0], *rest)) is None
    for numerics in ("reference", "invariant"):
        with using_numerics(numerics):  # type: ignore[arg-type]
            assert resolve(call_of([64], 64)) is None
    assert clock.asked == 0


def test_where_own_kernels_are_hidden_the_chain_serves(choosing: Any) -> None:
    resolve = choosing(Clock(2.0, 1.0))
    args = call_of([64], 64)
    assert resolve(args) is not None
    with hiding("triton"):
        assert resolve(args) is None
    assert resolve(args) is not None


def test_bounds_share_a_kernel_up_to_the_next_and_a_verdict(choosing: Any) -> None:
    """Else each number of windows and each bound would be proven anew, in a request."""
    resolve = choosing(Clock(2.0, 1.0))
    seen = set()
    for lengths, bound in (([50] * 4, 50), ([64] * 4, 64), ([40] * 6, 41)):
        args = resolve(call_of(lengths, bound))
        assert args[4] == 64
        seen.add(signature_of(operator("rotary_attention"), args))
    assert len(seen) == 1
    assert resolve(call_of([64] * 4, 65))[4] == 128


def test_many_windows_share_programs(choosing: Any) -> None:
    """The verdict is of that many heads: the gate's own calls have few windows."""
    resolve = choosing(Clock(2.0, 1.0))
    one, two = resolve(call_of([64] * 128, 64)), resolve(call_of([64] * 256, 64))
    assert (one[-1], two[-1]) == (1, 2)
    assert resolve(call_of([64] * 256, 128))[-1] == 1
    signatures = {signature_of(operator("rotary_attention"), args) for args in (one, two)}
    assert len(signatures) == 2


def test_room_for_more_windows_changes_no_kernel(choosing: Any) -> None:
    """A recording has it; the direct call of the same rows has not."""
    resolve = choosing(Clock(2.0, 1.0))
    full = resolve(call_of([64] * 250, 64))
    assert resolve(call_of([64] * 250 + [0] * 300, 64))[-1] == full[-1] == 1


@given(num_windows=st.integers(1, 5000), heads=st.integers(1, 64))
def test_heads_of_a_program_divide_all_and_leave_enough(num_windows: int, heads: int) -> None:
    members = choice.heads_per_program(num_windows, heads)
    assert heads % members == 0 and members in (1, 2, 4, 8)
    assert members == 1 or num_windows * heads // members >= 256


@interprets_loops
@pytest.mark.parametrize(("heads", "members"), [(6, 2), (12, 4)])
def test_every_group_of_heads_is_its_own(heads: int, members: int) -> None:
    qkv, cos, sin, offsets = drawn([64, 3], 8 * heads // HEADS)
    q, k, v = qkv.unflatten(1, (3, heads, -1)).unbind(1)
    cos, sin = cos[:, : q.shape[2] // 2].contiguous(), sin[:, : q.shape[2] // 2].contiguous()
    q, k = turned_in_double(q, cos, sin), turned_in_double(k, cos, sin)
    want = formula(q, k, v.double(), offsets, 0.2).flatten(1)
    got = by_kernel(qkv, cos, sin, offsets, 64, heads, 0.2, members)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [[7, 33], [1] * 71])
@pytest.mark.parametrize("bound", [64, 128])
def test_the_gate_proves_the_kernel_that_runs(
    lengths: list[int], bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows under a loose bound, and more segments than a program reads at once."""
    from ostinato.kernels.rotary_attention import triton

    seen: list[Any] = []

    class Noted:
        def __getitem__(self, grid: Any) -> Any:
            names = ("tile_rows", "tile_keys", "block", "heads_per_program", "stages")
            return lambda *args, **options: seen.append(tuple(options[n] for n in names))

    monkeypatch.setattr(triton, "rotary_attention_kernel", Noted())
    args = (*drawn(lengths, 16), bound, HEADS, 0.1, 1)
    triton.rotary_attention(*args)
    (served,), seen = seen, []
    for example in reference.examples(args):
        triton.rotary_attention(*example)
    assert served in seen


def test_a_class_that_is_unknown_while_recording_is_asked_for_later(
    choosing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(2.0, 1.0)
    resolve = choosing(clock)
    args = call_of([64], 64)
    with state.entering(RECORDING), monkeypatch.context() as patched:
        patched.setattr(choice, "made_up_offsets", None)  # a copy from the host
        assert resolve(args) is None
    assert clock.asked == 0
    before = state.verdicts.number
    assert resolve(args) is not None
    assert state.verdicts.number != before  # the recording holds the other one
