"""A chat about images gives the same tokens whichever way its prefill is recorded."""

from __future__ import annotations

from typing import Any

import pytest

import ostinato
from ostinato.errors import ConfigError
from ostinato.lm.backends import NAMES, Name
from tests.vlm.test_chat import SMALL, TINY, png, question

SIZES = SMALL | {"max_length": 200, "num_pages": 32}


@pytest.mark.slow
@pytest.mark.parametrize("model", TINY)
def test_images_and_text_by_every_backend(model: str) -> None:
    """Two images in chunks, then text alone; logprobs as floats, in float32."""
    prompts: list[Any] = [question(png()) + question(png(30), "And this?"), "once upon a time"]

    def answers(backend: Name | None) -> tuple[list[Any], int]:
        with ostinato.load_chat(model, device="cpu", prefill_backend=backend, **SIZES) as chat:
            found = [
                chat.generate(prompt, max_tokens=8, temperature=0.0, ignore_eos=True).token_ids
                for prompt in prompts
            ]
            prefill = chat.stats().engine.recordings.get("prefill")
        if prefill is None:
            return found, 0
        assert prefill.calls["direct"] == 0
        return found, prefill.calls["exact"]

    expected, _ = answers("disabled")
    assert expected[0] != expected[1]
    for backend in (None, *NAMES):
        found, num_recorded = answers(backend)
        assert found == expected, backend
        assert (num_recorded > 0) == (backend != "disabled")


def test_unknown_backends_are_refused_before_anything_is_served() -> None:
    with pytest.raises(ConfigError, match="prefill_backend is 'piecewise'"):
        ostinato.load_chat(TINY[0], device="cpu", prefill_backend="piecewise", **SIZES)  # type: ignore[arg-type]
