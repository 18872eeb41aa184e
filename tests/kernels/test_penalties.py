"""penalise: the formulas written out, and the kernel against its reference."""

from __future__ import annotations

import pytest
import torch

from ostinato.kernels.penalties import IN_PROMPT, penalise
from tests.kernels.agreement import assert_agrees

LOGITS = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 3


def _rows(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def _seen() -> torch.Tensor:
    seen = torch.zeros(4, 50, dtype=torch.int32)
    seen[2, [1, 2, 3]] = IN_PROMPT
    seen[2, 3] += 1
    seen[2, 7] = 4
    return seen


def test_each_row_has_the_penalties_of_its_own_slot() -> None:
    want = LOGITS[1].clone()
    for token in (1, 2, 3, 7):
        value = float(want[token])
        want[token] = value / 1.5 if value > 0 else value * 1.5
    want[3] -= 0.25 * 1 + 0.5
    want[7] -= 0.25 * 4 + 0.5
    found = penalise(
        LOGITS,
        _seen(),
        slots=torch.tensor([0, 2, 2]),
        repetition=_rows(1.5, 1.5, 1.0),
        frequency=_rows(0.25, 0.25, 0.0),
        presence=_rows(0.5, 0.5, 0.0),
    )
    torch.testing.assert_close(found[1], want, rtol=1e-6, atol=1e-6)
    assert (found[1] != LOGITS[1]).sum() == 4
    assert torch.equal(found[0], LOGITS[0])  # nothing was seen there
    assert torch.equal(found[2], LOGITS[2])  # its penalties are off


@pytest.mark.parametrize(("vocabulary", "slots"), [(37, 3), (2100, 2)])
def test_kernel_and_reference_are_bit_exact(vocabulary: int, slots: int) -> None:
    rows = 10
    floats, integers = torch.ones(rows), torch.zeros(rows, dtype=torch.int64)
    seen = torch.zeros(slots, vocabulary, dtype=torch.int32)
    assert_agrees("penalise", torch.randn(rows, vocabulary), seen, integers, floats, floats, floats)


def test_refuses_what_does_not_fit() -> None:
    columns = dict.fromkeys(("repetition", "frequency", "presence"), torch.ones(3))
    with pytest.raises(ValueError, match=r"slots is \(2,\), expected \(3,\)"):
        penalise(LOGITS, _seen(), slots=torch.zeros(2, dtype=torch.int64), **columns)
    with pytest.raises(ValueError, match="int64, expected contiguous int32"):
        penalise(LOGITS, _seen().long(), slots=torch.zeros(3, dtype=torch.int64), **columns)


def test_opcheck() -> None:
    ones, slots = torch.ones(3), torch.tensor([2, 0, 2])
    args = (LOGITS, _seen(), slots, ones * 1.5, ones, ones)
    torch.library.opcheck(torch.ops.ostinato.penalise.default, args)
