"""What a fresh chat server is asked first: a photograph, a second turn, and a video."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

from ostinato.assets.photograph import NAME, clip_bytes, photograph_bytes
from ostinato.cli.greeting import Busy, Echo, data_url
from ostinato.serve.settings import ServerSettings

MAX_TOKENS = 16


def ask(settings: ServerSettings, messages: list[dict[str, Any]]) -> tuple[str, int, float, float]:
    """One stream over the loopback, as a client would send it: the text, tokens of the prompt,
    milliseconds to the first token and to the last.
    """
    connection = http.client.HTTPConnection(settings.host, settings.port, timeout=300)
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    headers["Content-Type"] = "application/json"
    body = {
        "messages": messages,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began_s = time.perf_counter()
    texts, num_prompt, first_ms = [], 0, 0.0
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            text = response.read().decode(errors="replace")
            if response.status == 503:
                raise Busy
            raise RuntimeError(f"the server answered {response.status}: {text}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            first_ms = first_ms or (time.perf_counter() - began_s) * 1e3
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"the server answered {event['error']['message']}")
            texts += [choice["delta"].get("content", "") for choice in event["choices"]]
            num_prompt = (event["usage"] or {}).get("prompt_tokens", num_prompt)
    finally:
        connection.close()
    return "".join(texts), num_prompt, first_ms, (time.perf_counter() - began_s) * 1e3


def greet_chat(settings: ServerSettings, echo: Echo) -> None:
    """Chat for three turns, and print what was said and how long it took. Raises ``Busy``."""
    photograph = data_url(photograph_bytes(), "image/jpeg")
    clip = data_url(clip_bytes(), "video/mp4")
    turns = [
        (NAME, [_url("image_url", photograph), _text("What is this?")]),
        ("a second turn", [_text("Are you sure?")]),
        (f"a video of {NAME}", [_url("video_url", clip), _text("And this?")]),
    ]
    messages: list[dict[str, Any]] = []
    for label, content in turns:
        messages.append({"role": "user", "content": content})
        text, num_prompt, first_ms, total_ms = ask(settings, messages)
        messages.append({"role": "assistant", "content": text})
        echo(
            f"{label:<26} {num_prompt:5} tokens, first answered after {first_ms:6.1f} ms, "
            f"all after {total_ms:6.1f} ms: {text!r}"
        )


def _url(kind: str, url: str) -> dict[str, Any]:
    return {"type": kind, kind: {"url": url}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
