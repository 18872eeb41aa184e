"""The library's surface on the shipped tiny models: replies, streams, refusals, recordings."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ostinato
from ostinato.errors import ConfigError, InputError, Overloaded, WeightsError
from ostinato.lm.contract import ChatDelta, SamplingParams
from ostinato.vlm.chat import Chat

OFF = ostinato.GraphConfig(mode="off")
SMALL: dict[str, Any] = {
    "max_length": 160,
    "num_pages": 24,
    "max_batch": 2,
    "prefill_rungs": (48,),
    "top_patches": 64,
}
TINY = ("tiny-qwen3-vl", "tiny-qwen2.5-vl")


def png(color: int = 90) -> bytes:
    pixels = np.full((60, 60, 3), color, np.uint8)
    pixels[20:40, 10:50] = (250, 10, 60)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "png")
    return held.getvalue()


def question(source: Any, words: str = "What?") -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": words}, {"type": "image", "image": source}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with ostinato.load_chat(TINY[0], graph=OFF, **SMALL) as chat:
        yield chat


def test_a_reply_counts_its_tokens(chat: Chat) -> None:
    result = chat.generate(question(png()), max_tokens=9, temperature=0.0, ignore_eos=True)
    ids = chat.tokenize(question(png()))
    assert result.prompt_tokens == len(ids)
    assert result.image_tokens == ids.count(261) > 1
    assert (result.completion_tokens, result.finish_reason) == (9, "length")
    assert result.text == bytes(i for i in result.token_ids if i < 256).decode(errors="replace")


def test_bytes_pixels_and_data_urls_are_one_image(chat: Chat) -> None:
    how: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0, "logprobs": 3}
    first = chat.generate(question(png()), **how)
    url = "data:image/png;base64," + base64.b64encode(png()).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    content = [{"type": "text", "text": "What?"}, part]
    for messages in (
        question(Image.open(io.BytesIO(png()))),
        question(url),
        [{"role": "user", "content": content}],
    ):
        again = chat.generate(messages, **how)
        assert again.token_ids == first.token_ids
        assert again.cached_tokens > 0
    other = chat.generate(question(png(200)), **how)
    assert other.cached_tokens < first.prompt_tokens - 16
    assert other.logprobs != first.logprobs


def test_a_stream_is_the_reply_in_pieces_and_is_cancelled_when_it_is_left(chat: Chat) -> None:
    how: dict[str, Any] = {"max_tokens": 12, "temperature": 0.7, "seed": 5}
    whole = chat.generate("Once upon", **how)
    pieces = list(chat.stream("Once upon", **how))
    assert "".join(p.text for p in pieces) == whole.text
    assert pieces[-1].finish_reason == whole.finish_reason
    before = chat.stats().engine.finished.get("cancelled", 0)
    stream = chat.stream("Once upon", max_tokens=100, ignore_eos=True)
    next(iter(stream))
    stream.close()  # type: ignore[attr-defined]
    chat.generate("hello", max_tokens=1)
    assert chat.stats().engine.finished["cancelled"] == before + 1


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "at least 1"),
        (["hello"], r"messages\[0\]"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "type is 'audio'"),
        ([{"role": "user", "content": "a <|image_pad|> b"}], "stands for media only"),
        ("<|video_pad|>", "stands for media only"),
        ("\ud800", "no Unicode text"),
        ([1, True], "token id True"),
        ([1, 264], "token id 264"),
        (question(b"no image at all"), "image"),
        (question("data:image/png;base64,@@@"), "base64"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "http://a/b"}]}],
            "expected a data URL",
        ),
        ([{"role": "user", "content": "x" * 500}], "length is 160 tokens; you requested 523"),
    ],
)
def test_what_cannot_be_served_is_refused_and_says_why(
    chat: Chat, messages: Any, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        chat.generate(messages, max_tokens=4)
    assert chat.stats().engine.num_running == 0


def test_an_unknown_parameter_is_named(chat: Chat) -> None:
    with pytest.raises(ConfigError, match="topp"):
        chat.generate("hello", topp=0.5)


def test_videos_of_qwen3_vl_say_the_time_of_each_frame(chat: Chat) -> None:
    frames = np.zeros((4, 32, 32, 3), np.uint8)
    video = {"type": "video", "video": frames, "source_fps": 1.0, "fps": 1.0, "channels": "last"}
    ids = chat.tokenize([{"role": "user", "content": [video]}])
    words = bytes(i for i in ids if i < 256).decode()
    assert "user\n<0.5 seconds><2.5 seconds>\n" in words
    assert [ids.count(i) for i in (259, 260)] == [2, 2]


@pytest.mark.parametrize("model", TINY)
def test_recorded_chats_are_bit_exact_to_direct_ones(model: str) -> None:
    """Equal log-probabilities, text and images, one after the other and with a seed."""

    def replies(graph: ostinato.GraphConfig) -> tuple[list[list[ChatDelta]], Any]:
        params = SamplingParams(max_tokens=8, seed=3, logprobs=4, ignore_eos=True)
        with ostinato.load_chat(model, graph=graph, **SMALL) as chat:
            found = []
            for given in (question(png()), question(png(30), "long " * 12), "Hello"):
                how = {f: getattr(params, f) for f in ("max_tokens", "seed", "logprobs")}
                found.append(list(chat.stream(given, ignore_eos=True, **how)))
            return found, chat.stats()

    direct, _ = replies(OFF)
    recorded, stats = replies(ostinato.GraphConfig())
    assert recorded == direct
    for steps in stats.engine.recordings.values():
        assert steps.calls["direct"] == 0
        assert steps.calls["exact"] > 0


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="numerics is 'exact'; expected fast, reference or inv"):
        ostinato.load_chat(TINY[0], numerics="exact")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="mem_fraction_static"):
        ostinato.load_chat(TINY[0], mem_fraction_static=1.5)
    with pytest.raises(WeightsError, match="qwen2_vl"):
        ostinato.load_chat("tiny-qwen2-vl", graph=OFF)
    assert replace(SamplingParams(), stop=("a",)).stop == ("a",)


def test_a_closed_chat_says_so() -> None:
    chat = ostinato.load_chat("tiny-qwen3-vl", graph=OFF, **SMALL)
    chat.close()
    with pytest.raises(Overloaded, match="the chat is closed"):
        chat.generate("Hello", max_tokens=1)
