"""What chats are compared with: the same prompt and reply through transformers, at every step.

Ours generates; every logit that a step of ours makes is kept. Transformers then sees prompt and
reply at once, so that both have the same tokens before each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from ostinato.lm.contract import Prompt
from ostinato.lm.step import RecordedStep
from ostinato.vlm.chat import Chat, ChatResult

LENGTH = 64
"""Tokens of a reply."""

_RNG = np.random.default_rng(0)
_NAMES = count(1)


def image(height: int, width: int) -> dict[str, Any]:
    pixels = _RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return {"type": "image", "image": pixels, "channels": "last"}


def video(frames: int) -> dict[str, Any]:
    held = _RNG.integers(0, 256, (frames, 64, 96, 3), dtype=np.uint8)
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


class Steps:
    """Logits of ours, by request (its seed names it) and by the place of the token they choose."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], torch.Tensor] = {}

    def keep(self, inputs: Any, logits: torch.Tensor) -> None:
        rows = logits.float().cpu()
        places = zip(inputs.by.seeds.tolist(), inputs.by.positions.tolist(), strict=True)
        for row, key in zip(rows, places, strict=True):
            self._rows[key] = row.clone()

    def generate(self, chat: Chat, given: Any, length: int = LENGTH) -> tuple[ChatResult, int]:
        """A greedy reply, and the name of its request."""
        how = {"max_tokens": length, "temperature": 0.0, "ignore_eos": True, "logprobs": 5}
        name = next(_NAMES)
        return chat.generate(given, seed=name, **how), name

    def of(self, result: ChatResult, name: int) -> torch.Tensor:
        """(reply, vocabulary) float32: what each token of the reply was chosen from."""
        first = result.prompt_tokens
        return torch.stack([self._rows[name, first + i] for i in range(len(result.token_ids))])


@contextmanager
def kept_steps() -> Iterator[Steps]:
    steps = Steps()
    run = RecordedStep.__call__

    def call(self: RecordedStep, inputs: Any, *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, logits = run(self, inputs, *how)
        steps.keep(inputs, logits)
        return tokens, logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedStep, "__call__", call)
        yield steps


def media_inputs(prompt: Prompt, vision: Any, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What transformers' processor would have made."""
    found: dict[str, Any] = {}
    for kind in ("image", "video"):
        media = {id(s.media): s.media for s in prompt.spans if s.media.source.kind == kind}
        if not media:
            continue
        patches = [m.source for m in media.values()]
        name = "pixel_values" if kind == "image" else "pixel_values_videos"
        found[name] = torch.cat([p.tensor for p in patches]).to(device)
        found[f"{kind}_grid_thw"] = torch.tensor([p.grid_thw for p in patches], device=device)
        if kind == "video" and vision.model_type == "qwen2_5_vl":
            seconds = [p.seconds_per_grid for p in patches]
            found["second_per_grid_ts"] = torch.tensor(seconds, device=device)
    return found


def types_of(ids: torch.Tensor) -> torch.Tensor:
    return (ids == 261).int() + 2 * (ids == 262).int()


@torch.inference_mode()
def reference_logits(
    reference: Any, vision: Any, prompt: Prompt, reply: tuple[int, ...]
) -> torch.Tensor:
    """(reply, vocabulary) on the CPU, before each token of the reply."""
    device = next(reference.parameters()).device
    ids = torch.tensor([[*prompt.token_ids, *reply]], device=device)
    inputs: Mapping[str, Any] = media_inputs(prompt, vision, device)
    logits = reference(input_ids=ids, mm_token_type_ids=types_of(ids), **inputs).logits
    start = len(prompt.token_ids) - 1
    found: torch.Tensor = logits[0, start : start + len(reply)].float().cpu()
    return found


def assert_same_choices(
    tokens: tuple[int, ...], expected: torch.Tensor, *, tolerance: float
) -> None:
    """The reference's token wherever its two best differ by more than ten times the tolerance."""
    best = expected.topk(2).values
    is_clear = best[:, 0] - best[:, 1] > 10 * tolerance
    assert int(is_clear.sum()) > len(tokens) * 3 // 4
    assert torch.equal(expected.argmax(-1)[is_clear], torch.tensor(tokens)[is_clear])
