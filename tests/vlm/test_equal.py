"""Whole chats against transformers, on random checkpoints that it saved: fp32, on the CPU.

Ours generates, in chunks and batches; transformers then sees prompt and reply at once and must
agree at every step: with the log-probabilities of the twenty best tokens within ``TOLERANCE``, and
with the choice wherever its own two best differ clearly.
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

TOLERANCE = 1e-4
LENGTH = 64
RNG = np.random.default_rng(0)


def picture(height: int, width: int) -> Any:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def image(height: int, width: int) -> dict[str, Any]:
    return {"type": "image", "image": picture(height, width), "channels": "last"}


def video(frames: int) -> dict[str, Any]:
    held = RNG.integers(0, 256, (frames, 64, 96, 3), dtype=np.uint8)
    options = {"source_fps": 1.0, "fps": 1.0, "channels": "last", "min_frames": 2}
    return {"type": "video", "video": held, **options}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


CHATS: dict[str, list[dict[str, Any]]] = {
    "text": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How are you?"},
    ],
    "image": user(image(90, 130), text("What is this?")),
    "images": user(image(90, 130), image(64, 64), text("Which of them?"), image(200, 70)),
    "video": user(text("Look: "), video(6)),
    "interleaved": [
        *user(text("One "), image(64, 96), text(" two "), video(4), text(" three.")),
        {"role": "assistant", "content": "So it is."},
        *user(text("And "), image(80, 80), text("?")),
    ],
    "long": user(text("A long story. " * 20), image(120, 160), text(" The end. " * 8)),
}


class Pair(NamedTuple):
    reference: Any
    chat: Chat


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: Any, tmp_path_factory: Any) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("checkpoint")
    reference = make_checkpoint(request.param, directory)
    chat = ostinato.load_chat(
        directory,
        graph=ostinato.GraphConfig(mode="off"),
        max_length=1024,
        num_pages=256,
        prefill_rungs=(16, 64),
        max_batch=4,
    )
    yield Pair(reference, chat)
    chat.close()


def generate(chat: Chat, given: Any, count: int = LENGTH) -> ChatResult:
    return chat.generate(given, max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=20)


def media_inputs(prompt: Prompt, vision: Any) -> dict[str, Any]:
    """What transformers' processor would have made."""
    found: dict[str, Any] = {}
    for kind in ("image", "video"):
        media = {id(s.media): s.media for s in prompt.spans if s.media.source.kind == kind}
        if not media:
            continue
        patches = [m.source for m in media.values()]
        name = "pixel_values" if kind == "image" else "pixel_values_videos"
        found[name] = torch.cat([p.tensor for p in patches])
        found[f"{kind}_grid_thw"] = torch.tensor([p.grid_thw for p in patches])
        if kind == "video" and vision.model_type == "qwen2_5_vl":
            found["second_per_grid_ts"] = torch.tensor([p.seconds_per_grid for p in patches])
    return found


def types_of(ids: torch.Tensor) -> torch.Tensor:
    return (ids == 261).int() + 2 * (ids == 262).int()


@torch.inference_mode()
def reference_logprobs(pair: Pair, prompt: Prompt, reply: tuple[int, ...]) -> torch.Tensor:
    """(reply, vocabulary) float64, before each token of the reply."""
    ids = torch.tensor([[*prompt.token_ids, *reply]])
    inputs = media_inputs(prompt, pair.chat.config.vision)
    logits = pair.reference(input_ids=ids, mm_token_type_ids=types_of(ids), **inputs).logits
    start = len(prompt.token_ids) - 1
    return logits[0, start : start + len(reply)].double().log_softmax(-1)


def distances(result: ChatResult, expected: torch.Tensor) -> torch.Tensor:
    """The largest difference at each step."""
    assert result.logprobs is not None
    return torch.tensor(
        [
            max(abs(value - float(row[token])) for token, value in one.top)
            for one, row in zip(result.logprobs, expected, strict=True)
        ]
    )


def check(pair: Pair, given: Any, result: ChatResult) -> None:
    prompt = pair.chat._prompt(given)
    expected = reference_logprobs(pair, prompt, result.token_ids)
    assert len(result.token_ids) == LENGTH
    assert float(distances(result, expected).max()) < TOLERANCE
    best = expected.topk(2).values
    is_clear = best[:, 0] - best[:, 1] > 10 * TOLERANCE
    assert int(is_clear.sum()) > LENGTH * 3 // 4
    assert torch.equal(expected.argmax(-1)[is_clear], torch.tensor(result.token_ids)[is_clear])


@pytest.mark.parametrize("name", CHATS)
def test_every_step_is_close_to_transformers(pair: Pair, name: str) -> None:
    result = generate(pair.chat, CHATS[name])
    check(pair, CHATS[name], result)
    again = generate(pair.chat, CHATS[name])
    check(pair, CHATS[name], again)  # a hit of the prefix cache
    assert again.cached_tokens >= result.prompt_tokens - 16
    assert again.token_ids == result.token_ids


def test_a_batch_that_others_join_and_leave_is_close_to_transformers(pair: Pair) -> None:
    with ThreadPoolExecutor(6) as pool:
        kept = {name: pool.submit(generate, pair.chat, CHATS[name]) for name in CHATS}
        for i in range(4):
            stream = pair.chat.stream(user(image(64, 64 + i), text(f"leave {i}")), max_tokens=200)
            next(iter(stream))
            stream.close()  # type: ignore[attr-defined]
        for name, future in kept.items():
            check(pair, CHATS[name], future.result())
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
    """Another image, shifted positions, no DeepStack: each moves the result by 100 tolerances."""
    given = CHATS["image"]
    prompt = pair.chat._prompt(given)
    result = generate(pair.chat, prompt, 8)
    expected = reference_logprobs(pair, prompt, result.token_ids)
    assert float(distances(result, expected).max()) < TOLERANCE

    def moved(changed: Prompt) -> float:
        other = generate(pair.chat, changed, 1)
        return float(distances(other, expected[:1]).max())

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
                one.rows[:, pair.chat.config.lm.width :] = 0
                one.rows = one.rows.clone()

        fresh = pair.chat._prompt(user(image(91, 131), text("What is this?")))
        whole = reference_logprobs(pair, fresh, (0,))
        pair.chat._engine._encode = without_deepstack
        try:
            flat = generate(pair.chat, fresh, 1)
        finally:
            pair.chat._engine._encode = encode
        assert float(distances(flat, whole).max()) > 100 * TOLERANCE
