"""Products with epilogues: every tiling under the interpreter, choices, and the eager chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato import state
from ostinato.errors import ConfigError
from ostinato.kernels import linear as subject
from ostinato.kernels.compare import first_difference
from ostinato.kernels.gate import Numerics, first_wrong_answer, using_numerics
from ostinato.kernels.linear import reference, variants
from ostinato.kernels.op import registered
from tests.kernels.agreement import interprets_loops

# numpy, which multiplies under the interpreter, warns of infinity times zero.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

TILINGS = [variants.Tiling(*tile, splits) for tile in variants.TILES[:2] for splits in (1, 3)]


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operator(name: str):  # type: ignore[no-untyped-def]
    return next(o for o in registered() if o.name == name)


def operands(rows: int, outputs: int, inputs: int) -> tuple[torch.Tensor, ...]:
    return floats(rows, inputs), floats(outputs, inputs, seed=1), floats(outputs, seed=2)


@interprets_loops
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda t: t.name)
@pytest.mark.parametrize("activation", ["", "gelu_tanh", "gelu_erf"])
def test_a_tiling_stays_within_its_bound_on_adversarial_rows(
    tiling: variants.Tiling, activation: str
) -> None:
    x, weight, bias = operands(19, 70, 200)
    reason = first_wrong_answer(operator("linear"), (x, weight, bias, activation, tiling.name))
    assert not reason, reason


@interprets_loops
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda t: t.name)
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf", "silu", "gelu_quick"])
def test_a_sum_beyond_fp16_is_rounded_before_it_is_activated(
    tiling: variants.Tiling, activation: str
) -> None:
    """-71680 is -inf in fp16, whose activation is NaN; that of -71680 itself is -0.0."""
    from ostinato.kernels.linear.triton import multiply

    x, weight = torch.full((3, 280), 256.0).half(), torch.full((5, 280), -1.0).half()
    weight[2:] = 0.5
    bias = torch.zeros(5).half()
    want = reference.linear(x, weight, bias, activation, tiling.name)
    assert want[:, :2].isnan().all()
    with np.errstate(all="ignore"):
        got = multiply(x, weight, bias, activation, tiling)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_the_epilogue_is_not_offered_where_sums_may_overflow() -> None:
    offered = {
        dtype: variants.EPILOGUE
        in variants.candidates(
            196, 1152, 1152, dtype, num_processors=132, has_epilogue=True, is_summed=False
        )
        for dtype in (torch.bfloat16, torch.float16)
    }
    assert offered == {torch.bfloat16: True, torch.float16: False}


@interprets_loops
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda t: t.name)
def test_a_product_with_its_norm_stays_within_its_bound(tiling: variants.Tiling) -> None:
    x, weight, bias = operands(19, 70, 200)
    residual, gain, shift = floats(19, 70, seed=3), floats(70, seed=4), floats(70, seed=5)
    args = (x, weight, bias, residual, gain, shift, 1e-6, tiling.name)
    reason = first_wrong_answer(operator("linear_add_layer_norm"), args)
    assert not reason, reason
    args_rms = (x, weight, None, residual, gain, 1e-6, tiling.name)
    reason = first_wrong_answer(operator("linear_add_rms_norm"), args_rms)
    assert not reason, reason


@interprets_loops
@pytest.mark.parametrize("parts", variants.PARTS)
def test_a_product_by_the_library_in_parts_stays_within_its_bound(parts: int) -> None:
    x, weight, bias = operands(19, 70, 210)
    residual, gain, shift = floats(19, 70, seed=3), floats(70, seed=4), floats(70, seed=5)
    name = f"library/{parts}"
    args = (x, weight, bias, residual, gain, shift, 1e-6, name)
    reason = first_wrong_answer(operator("linear_add_layer_norm"), args)
    assert not reason, reason
    args_rms = (x, weight, None, residual, gain, 1e-6, name)
    reason = first_wrong_answer(operator("linear_add_rms_norm"), args_rms)
    assert not reason, reason


def test_parts_by_the_library_are_those_of_the_inner_dimension() -> None:
    from ostinato.kernels.linear.triton import parts_of_batch

    x, weight, _ = operands(7, 5, 24)
    wider = torch.cat((x, x), dim=1)[:, :24]  # rows that do not lie side by side
    parts = parts_of_batch(wider, weight, 3)
    want = [x[:, i : i + 8] @ weight[:, i : i + 8].T for i in (0, 8, 16)]
    torch.testing.assert_close(parts, torch.stack(want))


@interprets_loops
@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 40),
    outputs=st.integers(1, 90),
    inputs=st.integers(1, 300),
    tiling=st.sampled_from(TILINGS),
)
def test_any_size_is_near_the_product_in_double(
    rows: int, outputs: int, inputs: int, tiling: variants.Tiling
) -> None:
    from ostinato.kernels.linear.triton import multiply

    x, weight, bias = operands(rows, outputs, inputs)
    want = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    got = multiply(x, weight, bias, "", tiling)
    assert (got - want).abs().max() < 1e-5 * (1 + want.abs().max()) * inputs**0.5


def test_a_product_that_loses_a_part_of_the_sum_is_noticed() -> None:
    x, weight, bias = operands(19, 70, 256)
    args = (x.bfloat16(), weight.bfloat16(), bias.bfloat16(), "", "library")
    want = reference.linear(*args)
    lost = reference.linear(args[0][:, :192], args[1][:, :192], *args[2:])
    allowed = reference.linear_tolerance([want], args)
    assert first_difference([want], [lost], allowed)
    assert not first_difference([want], [want], allowed)


def test_the_norm_of_a_product_that_loses_a_part_is_noticed() -> None:
    x, weight, bias = operands(19, 70, 256)
    rest = (floats(19, 70, seed=3), floats(70, seed=4), floats(70, seed=5), 1e-6, "library")
    want = reference.linear_add_layer_norm(x, weight, bias, *rest)
    lost = reference.linear_add_layer_norm(x[:, :192], weight[:, :192], bias, *rest)
    allowed = reference.linear_add_layer_norm_tolerance(want, (x, weight, bias, *rest))
    assert first_difference([want[0]], [lost[0]], [allowed[0]])


def test_values_against_the_eager_chain() -> None:
    x, weight, bias = operands(6, 32, 48)
    got = subject.linear(x.view(2, 3, 48), weight, bias, activation="gelu_erf")
    want = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))
    assert torch.equal(got, want.view(2, 3, 32))
    residual, gain = floats(6, 32, seed=3), floats(32, seed=4)
    y, total = subject.linear_add_layer_norm(x, weight, bias, residual, gain, None, 1e-5)
    assert torch.equal(total, torch.nn.functional.linear(x, weight, bias) + residual)
    assert torch.equal(y, torch.nn.functional.layer_norm(total, (32,), gain, None, 1e-5))


@given(
    rows=st.integers(1, 20_000),
    outputs=st.integers(1, 9000),
    inputs=st.integers(8, 9000),
    is_summed=st.booleans(),
)
def test_every_candidate_has_a_name_that_can_be_read_back(
    rows: int, outputs: int, inputs: int, is_summed: bool
) -> None:
    names = variants.candidates(
        rows,
        outputs,
        inputs,
        torch.bfloat16,
        num_processors=132,
        has_epilogue=True,
        is_summed=is_summed,
    )
    assert names[:2] == [variants.LIBRARY, variants.EPILOGUE]
    assert len(names) == len(set(names)) <= 20
    parts = [variants.num_parts(name) for name in names if variants.num_parts(name)]
    assert all(inputs % (8 * n) == 0 for n in parts)
    assert not parts or (is_summed and rows <= variants.MAX_PART_ROWS)
    tilings = names[2 + len(parts) :]
    assert all(variants.parse(name).name == name for name in tilings)
    assert rows <= variants.MAX_TRITON_ROWS or not tilings


def test_few_rows_of_a_deep_product_are_worth_splitting() -> None:
    def names(dtype: torch.dtype, *, is_summed: bool) -> list[str]:
        how = {"num_processors": 132, "has_epilogue": False, "is_summed": is_summed}
        return variants.candidates(196, 1152, 4320, dtype, **how)

    alone = names(torch.bfloat16, is_summed=False)
    assert any(variants.parse(name).splits > 1 for name in alone[1:])
    assert names(torch.bfloat16, is_summed=True)[:3] == ["library", "library/2", "library/3"]
    assert names(torch.float32, is_summed=True) == [variants.LIBRARY]


@interprets_loops
def test_products_are_timed_with_weights_that_are_not_at_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copies take turns; none is made while recording, when nothing is timed."""
    from ostinato.kernels.linear import choice
    from ostinato.kernels.select import Selector

    seen: list[int] = []

    def timer(candidates: Sequence[Callable[[], object]]) -> list[float]:
        for candidate in candidates * 4:
            candidate()
        return [float(i == 1) for i in range(len(candidates))]

    def computed(operator: str, args: tuple[Any, ...]) -> torch.Tensor:
        seen.append(args[1].data_ptr())
        return args[0]

    monkeypatch.setattr(choice, "cache_bytes_of", lambda device: 4 * 8 * 512 * 2)
    monkeypatch.setattr(choice, "num_processors_of", lambda device: 132)
    monkeypatch.setattr(choice, "compute", computed)
    selector = Selector(None, "test", timer=timer)
    monkeypatch.setattr(choice, "selector_of", lambda device: selector)
    x, weight = torch.ones(4, 512).bfloat16(), torch.ones(8, 512).bfloat16()
    args = (x, weight, torch.ones(8).bfloat16(), "gelu_tanh", "auto")
    with state.entering(state.Activity(state.Phase.RECORDING)):
        choice.resolve("linear", args)
    assert not seen
    choice.resolve("linear", args)
    assert len(set(seen)) == 6  # 5 / 4 of the cache is five copies, and the weight itself
    assert seen[0] == weight.data_ptr()
    assert seen[1] != seen[0]


def test_what_is_no_part_of_a_product_has_no_parts() -> None:
    assert variants.num_parts("library/3") == 3
    assert [variants.num_parts(n) for n in ("library", "epilogue", "64x64x3")] == [0, 0, 0]


def test_rows_of_a_class_share_a_choice() -> None:
    assert variants.row_class(196) == variants.row_class(256) != variants.row_class(192)


@pytest.mark.parametrize("name", ["7x7x1", "64x64x0", "64x64", "fast"])
def test_an_unknown_variant_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"tiling|values|literal"):
        variants.parse(name)


def test_refuses_shapes_and_dtypes_that_do_not_fit() -> None:
    x, weight, bias = operands(4, 8, 16)
    with pytest.raises(ConfigError, match=r"weight is \(8, 16\), expected \(outputs, 15\)"):
        subject.linear(x[:, :15], weight, bias)
    with pytest.raises(ConfigError, match=r"expected \(8,\)"):
        subject.linear(x, weight, bias[:7])
    with pytest.raises(ConfigError, match=r"residual is \(3, 8\), expected \(4, 8\)"):
        subject.linear_add_rms_norm(x, weight, None, floats(3, 8), None, 1e-6)
    with pytest.raises(ConfigError, match=r"weight is torch\.float64"):
        subject.linear(x, weight.double())


def test_fake_tensors_and_opcheck() -> None:
    x, weight, bias = operands(4, 8, 16)
    torch.library.opcheck(torch.ops.ostinato.linear.default, (x, weight, bias, "gelu_tanh", "auto"))
    args = (x, weight, None, floats(4, 8), None, 1e-6, "auto")
    torch.library.opcheck(torch.ops.ostinato.linear_add_rms_norm.default, args)


@pytest.mark.parametrize("numerics", ["invariant", "reference"])
def test_other_numerics_ask_no_clock_and_name_the_library(
    numerics: Numerics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.kernels.linear import choice

    def timed(device: object) -> None:
        raise AssertionError("a choice by time")

    monkeypatch.setattr(choice, "selector_of", timed)
    monkeypatch.setattr(choice, "num_processors_of", lambda device: 8)
    x, weight, bias = (t.bfloat16() for t in operands(19, 512, 512))
    normed = (x, weight, bias, x[:, :512], None, 1e-6, subject.AUTO)
    with using_numerics(numerics):
        assert choice.resolve("linear", (x, weight, bias, "", subject.AUTO)) is None
        named = choice.resolve("linear_add_rms_norm", normed)
        assert named is not None
        assert named[-1] == variants.LIBRARY
    with pytest.raises(AssertionError, match="by time"):
        choice.resolve("linear_add_rms_norm", normed)
