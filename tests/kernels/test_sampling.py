from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.kernels.sampling import sample
from ostinato.kernels.tiles import Tile, trying
from tests.kernels.agreement import assert_agrees


def _draw(
    logits: torch.Tensor, seeds: object = 0, positions: object = 0, **given: float
) -> torch.Tensor:
    rows = logits.shape[0]

    def column(value: object, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(value, dtype=dtype).expand(rows).contiguous()

    return sample(
        logits,
        temperature=column(given.get("temperature", 1.0), torch.float32),
        top_k=column(given.get("top_k", 0), torch.int32),
        top_p=column(given.get("top_p", 1.0), torch.float32),
        min_p=column(given.get("min_p", 0.0), torch.float32),
        seeds=column(seeds, torch.int64),
        positions=column(positions, torch.int64),
    )


def _frequencies(logits: torch.Tensor, **given: float) -> torch.Tensor:
    n = 20_000
    tokens = _draw(logits.expand(n, -1), seeds=7, positions=torch.arange(n), **given)
    return tokens.bincount(minlength=logits.shape[-1]) / n


@pytest.mark.parametrize("vocabulary", [37, 300])
def test_kernel_and_reference_choose_the_same_tokens(vocabulary: int) -> None:
    rows = 10
    floats, integers = torch.ones(rows), torch.zeros(rows, dtype=torch.int64)
    logits = torch.randn(rows, vocabulary)
    assert_agrees("sample", logits, floats, integers, floats, floats, integers, integers)


@settings(max_examples=10, deadline=None)
@given(
    vocabulary=st.integers(1, 40),
    top_k=st.integers(0, 45),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    temperature=st.floats(0, 3),
    seed=st.integers(0, 2**40),
)
def test_any_filters(
    vocabulary: int, top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    from ostinato.kernels.sampling import reference, triton

    # Few distinct values: many ties.
    logits = torch.randint(6, (2, vocabulary)).float()
    logits[1] = -torch.inf
    args = (
        logits,
        *(torch.full((2,), v) for v in (temperature, top_k, top_p, min_p)),
        torch.full((2,), seed),
        torch.tensor([0, 5]),
    )
    want = reference.sample(*args)
    with np.errstate(all="ignore"):
        assert torch.equal(triton.sample(*args), want)
    assert want[1] == 0


def _every_kind_of_row(vocabulary: int, spread: float) -> tuple[torch.Tensor, ...]:
    """Greedy, bare, top-k, top-p, min-p and all of them, over logits of one spread."""
    choices = [
        (0.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.0, 7, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.3, 50, 0.5, 0.02),
        (1.0, vocabulary, 0.97, 0.0),
        (1.0, 0, 1.0, 0.1),
        (1.0, vocabulary - 40, 1.0, 0.0),
    ]
    rows = len(choices)
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, vocabulary, generator=generator) * spread
    logits[:, 5:45] = -torch.inf
    temperature, top_k, top_p, min_p = (torch.tensor(c) for c in zip(*choices, strict=True))
    return logits, temperature, top_k, top_p, min_p, torch.arange(rows) + 3, torch.arange(rows)


@pytest.mark.parametrize(("spread", "high"), [(0.01, 0.0), (3.0, 0.0), (100.0, torch.inf)])
def test_a_row_over_many_programs_answers_as_one_alone(
    spread: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of 64 tokens, and lists that are longer than what ``search`` looks at at a time."""
    from ostinato.kernels.sampling import reference, triton

    monkeypatch.setattr(triton, "TILE", 64)
    args = _every_kind_of_row(200, spread)
    args[0][3:, 150] += high
    want = reference.sample(*args).tolist()
    with np.errstate(all="ignore"), trying(Tile(1, 64, 4)):
        assert triton.sample(*args).tolist() == want
        assert triton.sample(*(a[4:5] for a in args)).tolist() == want[4:5]
    assert len(set(want)) > 3


def test_frequencies_are_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf, torch.nan])
    want = torch.tensor([2.0, 1.0, 0.0, -1.0]).div(0.7).softmax(-1)
    got = _frequencies(logits, temperature=0.7)
    assert (got[:4] - want).abs().max() < 0.015
    assert got[4:].sum() == 0


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"top_k": 2}, 2),
        ({"top_p": 0.6}, 1),
        ({"top_p": 0.7}, 2),
        ({"top_p": 0.0}, 1),
        ({"min_p": 0.3}, 2),
        ({"min_p": 0.1}, 3),
        ({"top_k": 2, "top_p": 0.8}, 2),
        ({"top_k": 1, "top_p": 0.9, "min_p": 0.01}, 1),
    ],
)
def test_filters_keep_what_they_should(given: dict[str, float], kept: int) -> None:
    logits = torch.tensor([0.64, 0.24, 0.09, 0.03]).log()
    want = logits.exp()
    want[kept:] = 0
    assert (_frequencies(logits, **given) - want / want.sum()).abs().max() < 0.015


def test_greedy_ignores_filters_and_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, torch.nan], [torch.inf, 0.0, torch.inf, 1.0]])
    assert _draw(logits, temperature=0.0, top_k=1, top_p=0.1).tolist() == [1, 0]


def test_a_row_depends_on_its_own_seed_and_position_only() -> None:
    logits = torch.zeros(8, 1000)
    together = _draw(logits, seeds=torch.arange(8), positions=torch.arange(8) * 3)
    alone = [_draw(logits[:1], seeds=i, positions=3 * i).item() for i in range(8)]
    assert together.tolist() == alone
    assert len(set(alone)) > 5
    assert _draw(logits, seeds=1, positions=2)[0] != _draw(logits, seeds=2, positions=1)[0]


def test_refuses_a_missing_row() -> None:
    rows = {n: torch.zeros(2) for n in ("temperature", "top_p", "min_p", "seeds", "positions")}
    with pytest.raises(ValueError, match=r"top_k is \(1,\), expected \(2,\)"):
        sample(torch.zeros(2, 4), top_k=torch.zeros(1), **rows)


def test_opcheck() -> None:
    ones, zeros = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    args = (torch.randn(2, 9), ones, zeros, ones, ones * 0, zeros, zeros)
    torch.library.opcheck(torch.ops.ostinato.sample.default, args)
