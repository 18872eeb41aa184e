"""Sampling against formulas written out."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from ostinato.errors import InputError
from ostinato.lm.contract import SamplingParams
from ostinato.lm.sampling import Sampler, choose, choosing, logprobs, penalised

LOGITS = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 3


def sampler(seed: int = 0, counts: dict[int, int] | None = None, **params: float) -> Sampler:
    chosen = SamplingParams(**params)  # type: ignore[arg-type]
    return Sampler(chosen, seed, frozenset({1, 2, 3}), Counter(counts or {}))


def test_penalties_are_those_of_the_formula() -> None:
    by = sampler(
        counts={3: 1, 7: 4}, repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=0.5
    )
    expected = LOGITS[0].clone()
    for token in (1, 2, 3, 7):
        value = float(expected[token])
        expected[token] = value / 1.5 if value > 0 else value * 1.5
    expected[3] -= 0.25 * 1 + 0.5
    expected[7] -= 0.25 * 4 + 0.5
    found = penalised(LOGITS, [by, sampler()])
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(found[1], LOGITS[1])


def test_rows_are_chosen_by_their_own_parameters() -> None:
    rows = LOGITS[:1].expand(4, -1).contiguous()
    greedy = int(LOGITS[0].argmax())
    by = choosing(
        [(sampler(temperature=0.0), 5), (sampler(seed=3, temperature=5.0, top_k=1), 5)], 4
    )
    assert choose(rows, by).tolist() == [greedy] * 4
    draws = [
        int(choose(rows[:1], choosing([(sampler(seed=9, temperature=4.0), place)], 1)))
        for place in range(40)
    ]
    assert len(set(draws)) > 10
    again = [(sampler(seed=9, temperature=4.0), place) for place in range(40)]
    assert choose(LOGITS[:1].expand(40, -1).contiguous(), choosing(again, 40)).tolist() == draws


def test_logprobs_are_those_of_the_models_distribution() -> None:
    table = LOGITS.double().log_softmax(-1)
    found = logprobs(LOGITS, [4, 5, 6], [2, None, 0])
    assert found[1] is None
    assert found[0] is not None
    assert found[2] is not None
    assert found[0].logprob == pytest.approx(float(table[0, 4]), abs=1e-5)
    assert [i for i, _ in found[0].top] == table[0].topk(2).indices.tolist()
    assert found[2].top == ()


def test_equal_logprobs_are_reported_smaller_token_first_in_any_number_of_rows() -> None:
    few = torch.tensor([0.5, -0.0, 2.0, -1.5, 0.0, 2.0, -torch.inf, 0.5, 2.0]).bfloat16()
    rows = few.expand(5, -1).contiguous()
    for logits in (rows[:1], rows):
        for found in logprobs(logits, [2] * len(logits), [9] * len(logits)):
            assert found is not None
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
