"""Sampling against formulas written out."""

from __future__ import annotations

import pytest
import torch

from ostinato.errors import InputError
from ostinato.lm.contract import SamplingParams
from ostinato.lm.sampling import (
    SCRATCH,
    Draw,
    Sampler,
    choose,
    choosing,
    likely,
    logprob_of,
)
from ostinato.lm.slots import Slots

LOGITS = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 3


def draw(place: int = 5, seed: int = 0, **params: float) -> Draw:
    return Draw(Sampler(SamplingParams(**params), seed), place, SCRATCH)  # type: ignore[arg-type]


def test_what_a_slot_has_seen_is_its_prompt_and_what_it_was_given() -> None:
    slots = Slots(2, 50, torch.device("cpu"))
    params = {"repetition_penalty": 1.5, "frequency_penalty": 0.25, "presence_penalty": 0.5}
    by = choosing([draw(**params)._replace(slot=2)], 3)
    rows = LOGITS[:1].expand(3, -1).contiguous()
    slots.reset(2, [1, 2, 3], [])
    for token in (7, 3, 7, 7, 7):
        slots.keep(torch.tensor([token, 8, 9]), by)
    expected = LOGITS[0].clone()
    for token in (1, 2, 3, 7):
        value = float(expected[token])
        expected[token] = value / 1.5 if value > 0 else value * 1.5
    expected[3] -= 0.25 * 1 + 0.5
    expected[7] -= 0.25 * 4 + 0.5
    found = slots.penalised(rows, by)
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(found[1:], rows[1:])
    assert slots.known(torch.tensor([-2, 11, 0])).tolist() == [7, 11, 0]
    again = Slots(2, 50, torch.device("cpu"))
    again.reset(2, [1, 2, 3], [7, 3, 7, 7, 7])  # computed again after it gave its pages back
    assert torch.equal(again.penalised(rows, by), found)
    slots.reset(2, [4], [])
    seen = (slots.penalised(rows, by)[0] != rows[0]).nonzero().flatten()
    assert seen.tolist() == [4]


def test_rows_are_chosen_by_their_own_parameters() -> None:
    rows = LOGITS[:1].expand(4, -1).contiguous()
    greedy = int(LOGITS[0].argmax())
    by = choosing([draw(temperature=0.0), draw(seed=3, temperature=5.0, top_k=1)], 4)
    assert choose(rows, by).tolist() == [greedy] * 4
    draws = [
        int(choose(rows[:1], choosing([draw(place, seed=9, temperature=4.0)], 1)))
        for place in range(40)
    ]
    assert len(set(draws)) > 10
    again = [draw(place, seed=9, temperature=4.0) for place in range(40)]
    assert choose(LOGITS[:1].expand(40, -1).contiguous(), choosing(again, 40)).tolist() == draws


def test_logprobs_are_those_of_the_models_distribution() -> None:
    table = LOGITS.double().log_softmax(-1)
    found = likely(LOGITS, torch.tensor([4, 5, 6]), 2)
    first = logprob_of(found, 0, 4, 2)
    assert first.logprob == pytest.approx(float(table[0, 4]), abs=1e-5)
    assert [i for i, _ in first.top] == table[0].topk(2).indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(table[0].topk(2).values.tolist())
    assert logprob_of(found, 2, 6, 0) == (6, pytest.approx(float(table[2, 6])), ())


def test_equal_logprobs_are_reported_smaller_token_first_in_any_number_of_rows() -> None:
    few = torch.tensor([0.5, -0.0, 2.0, -1.5, 0.0, 2.0, -torch.inf, 0.5, 2.0]).bfloat16()
    rows = few.expand(5, -1).contiguous()
    for logits in (rows[:1], rows):
        likeliest = likely(logits, torch.full((len(logits),), 2), 9)
        for row in range(len(logits)):
            found = logprob_of(likeliest, row, 2, 9)
            assert [i for i, _ in found.top] == [2, 5, 8, 0, 7, 1, 4, 3, 6]
            exact = [float(few.double().log_softmax(-1)[i]) for i, _ in found.top]
            assert [value for _, value in found.top] == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"top_p": 0.0}, {"max_tokens": 0}, {"stop": ("",)}, {"logprobs": 21}],
)
def test_a_wrong_parameter_is_named(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        SamplingParams(**wrong)  # type: ignore[arg-type]
