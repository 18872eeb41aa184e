"""A spec says what a static tensor must look like, and makes one."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.recording.buffers import flat, is_dense
from ostinato.recording.spec import TensorSpec, describe

shapes = st.lists(st.integers(0, 4), max_size=4)


@settings(max_examples=60, deadline=None)
@given(shapes, st.data())
def test_empty_has_the_spec_it_was_made_for(shape: list[int], data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.int8, torch.float64, torch.bool]))
    skip = data.draw(st.integers(0, 3))
    base = torch.zeros(400, dtype=dtype)
    given_tensor = base.as_strided(shape, steps, skip)
    spec = TensorSpec.of(given_tensor)
    made = spec.empty()
    assert spec == describe(given_tensor)
    assert made.shape == given_tensor.shape and made.stride() == given_tensor.stride()
    if spec.span:
        assert TensorSpec.of(made) == spec
        elements = torch.arange(400).as_strided(shape, steps, skip)
        assert spec.span == int(elements.max()) - int(elements.min()) + 1
        assert spec.num_bytes == spec.span * dtype.itemsize
        assert is_dense(spec) == (
            len(set(elements.flatten().tolist())) == spec.span == made.numel()
        )
        assert flat(made, spec).shape == (spec.span,)
    else:
        assert made.numel() == 0 and spec.num_bytes == 0


def test_every_property_that_may_choose_another_kernel_is_in_the_spec() -> None:
    base = torch.zeros(4, 4)
    others = [
        torch.zeros(4, 5),
        torch.zeros(4, 4).t(),
        torch.zeros(4, 4, dtype=torch.float64),
        torch.zeros(4, 4, device="meta"),
        torch.zeros(4, 4, requires_grad=True),
        torch.zeros(17)[1:].view(4, 4),
    ]
    specs = {TensorSpec.of(t) for t in (base, *others)}
    assert len(specs) == len(others) + 1
    assert TensorSpec.of(torch.ones(4, 4)) == TensorSpec.of(base)


def test_printing() -> None:
    assert str(TensorSpec.of(torch.zeros(2, 3))) == "float32[2x3] cpu"
    odd = torch.zeros(7, requires_grad=True)[1:].view(2, 3).t()
    assert str(TensorSpec.of(odd)) == "float32[3x2] cpu stride (1, 3) grad unaligned"
    assert str(TensorSpec.of(torch.tensor(1))) == "int64[scalar] cpu"


def test_resized_is_contiguous() -> None:
    spec = TensorSpec.of(torch.zeros(3, 2).t()).resized({1: 5})
    assert spec == TensorSpec.of(torch.zeros(2, 5))
