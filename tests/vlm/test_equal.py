"""Whole chats against transformers, on random checkpoints that it saved: fp32, on the CPU.

At every step of a reply all logits are within ``TOLERANCE`` of transformers', and the choice is the
same wherever its own two best differ clearly.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import ostinato
from ostinato.lm.contract import Prompt
from ostinato.vlm.chat import Chat, ChatResult
from tests.lm.checkpoints import FAMILIES
from tests.vlm.checkpoints import make_checkpoint
from tests.vlm.equality import (
    CHATS,
    LENGTH,
    Steps,
    assert_same_choices,
    image,
    kept_steps,
    media_inputs,
    reference_logits,
    text,
    types_of,
    user,
)

TOLERANCE = 1e-4


class Pair(NamedTuple):
    reference: Any
    chat: Chat
    steps: Steps


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: Any, tmp_path_factory: Any) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("checkpoint")
    reference = make_checkpoint(request.param, directory)
    with (
        kept_steps() as steps,
        ostinato.load_chat(
            directory,
            graph=ostinato.GraphConfig(mode="off"),
            max_length=1024,
            num_pages=256,
            prefill_rungs=(16, 64),
            max_batch=4,
        ) as chat,
    ):
        yield Pair(reference, chat, steps)


def expected_logits(pair: Pair, prompt: Prompt, reply: tuple[int, ...]) -> torch.Tensor:
    return reference_logits(pair.reference, pair.chat.config.vision, prompt, reply)


def check(pair: Pair, given: Any, result: ChatResult, name: int) -> None:
    assert len(result.token_ids) == LENGTH
    expected = expected_logits(pair, pair.chat._prompt(given), result.token_ids)
    assert float((pair.steps.of(result, name) - expected).abs().max()) < TOLERANCE
    assert_same_choices(result.token_ids, expected, tolerance=TOLERANCE)


@pytest.mark.parametrize("name", CHATS)
def test_every_step_is_close_to_transformers(pair: Pair, name: str) -> None:
    first, request = pair.steps.generate(pair.chat, CHATS[name])
    check(pair, CHATS[name], first, request)
    again, request = pair.steps.generate(pair.chat, CHATS[name])  # a hit of the prefix cache
    check(pair, CHATS[name], again, request)
    assert again.cached_tokens >= again.prompt_tokens - 16
    assert again.token_ids == first.token_ids


def test_a_batch_that_others_join_and_leave_is_close_to_transformers(pair: Pair) -> None:
    with ThreadPoolExecutor(6) as pool:
        kept = {name: pool.submit(pair.steps.generate, pair.chat, CHATS[name]) for name in CHATS}
        for i in range(4):
            stream = pair.chat.stream(user(image(64, 64 + i), text(f"leave {i}")), max_tokens=200)
            next(iter(stream))
            stream.close()  # type: ignore[attr-defined]
        for name, future in kept.items():
            check(pair, CHATS[name], *future.result())
    engine = pair.chat.stats().engine
    assert engine.num_free_pages == engine.num_pages


@pytest.mark.parametrize("name", CHATS)
def test_positions_are_those_of_transformers(pair: Pair, name: str) -> None:
    prompt = pair.chat._prompt(CHATS[name])
    ids = torch.tensor([prompt.token_ids])
    inputs = media_inputs(prompt, pair.chat.config.vision)
    grids = {k: v for k, v in inputs.items() if not k.startswith("pixel")}
    expected, delta = pair.reference.model.get_rope_index(
        ids, mm_token_type_ids=types_of(ids), **grids
    )
    assert torch.equal(torch.from_numpy(prompt.positions).long(), expected[:, 0])
    assert int(prompt.positions.max()) + 1 - len(prompt.token_ids) == int(delta)


def test_the_comparison_is_sensitive(pair: Pair) -> None:
    """Another image, shifted positions, no DeepStack: each moves the logits by 100 tolerances."""
    given = CHATS["image"]
    prompt = pair.chat._prompt(given)
    result, name = pair.steps.generate(pair.chat, prompt, 8)
    expected = expected_logits(pair, prompt, result.token_ids)
    assert float((pair.steps.of(result, name) - expected).abs().max()) < TOLERANCE

    def moved(changed: Prompt, expected: torch.Tensor = expected) -> float:
        other = pair.steps.of(*pair.steps.generate(pair.chat, changed, 1))
        return float((other - expected[:1]).abs().max())

    swapped = user(image(90, 130), text("What is this?"))
    assert moved(pair.chat._prompt(swapped)) > 100 * TOLERANCE
    positions = prompt.positions.copy()
    positions[1] += np.arange(positions.shape[1], dtype=np.int32) % 3
    shifted = Prompt(prompt.token_ids, positions, prompt.spans)
    assert moved(shifted) > 100 * TOLERANCE
    if pair.chat.config.vision.deepstack_blocks:
        encode = pair.chat._engine._encode

        def without_deepstack(media: Any) -> None:
            encode(media)
            for one in media:
                one.rows = one.rows.clone()
                one.rows[:, pair.chat.config.lm.width :] = 0

        fresh = pair.chat._prompt(user(image(91, 131), text("What is this?")))
        whole = expected_logits(pair, fresh, (0,))
        pair.chat._engine._encode = without_deepstack
        try:
            assert moved(fresh, whole) > 100 * TOLERANCE
        finally:
            pair.chat._engine._encode = encode
