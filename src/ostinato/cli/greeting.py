"""What a fresh server is asked first: a photograph, the same at half its size, and a video."""

from __future__ import annotations

import base64
import http.client
import io
import json
import time
from collections.abc import Callable
from typing import Any

from ostinato.assets.photograph import NAME, clip_bytes, photograph_bytes
from ostinato.serve.settings import ServerSettings

Echo = Callable[[str], Any]


class Busy(RuntimeError):
    """Clients have taken every place before the greeting came."""


def half_photograph() -> bytes:
    """The photograph at half its size."""
    from PIL import Image

    target = io.BytesIO()
    with Image.open(io.BytesIO(photograph_bytes())) as image:
        image.reduce(2).save(target, format="PNG")
    return target.getvalue()


def data_url(content: bytes, media_type: str) -> str:
    """``data:image/png;base64,...``"""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def post_pooling(settings: ServerSettings, kind: str, url: str) -> dict[str, Any]:
    """One request over the loopback, as a client would send it; the table of its reply.

    Raises ``Busy`` where the server has no place for it.
    """
    connection = http.client.HTTPConnection(settings.host, settings.port, timeout=60)
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    headers["Content-Type"] = "application/json"
    body = {
        "task": "token_embed",
        "input": [{"type": kind, kind: {"url": url}}],
        "encoding_format": "bytes",
    }
    try:
        connection.request("POST", "/pooling", body=json.dumps(body), headers=headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status == 503:
        raise Busy
    if response.status != 200:
        text = content.decode(errors="replace")
        raise RuntimeError(f"the server answered {response.status}: {text}")
    table: dict[str, Any] = json.loads(response.headers["metadata"])
    return table


def greet(settings: ServerSettings, echo: Echo) -> None:
    """Send photographs and a video, and print how each was served."""
    calls = [
        (NAME, "image_url", data_url(photograph_bytes(), "image/jpeg")),
        (f"{NAME}, half size", "image_url", data_url(half_photograph(), "image/png")),
        (f"a video of {NAME}", "video_url", data_url(clip_bytes(), "video/mp4")),
    ]
    for label, kind, url in calls:
        began_s = time.perf_counter()
        (item,) = post_pooling(settings, kind, url)["data"]
        took_ms = (time.perf_counter() - began_s) * 1e3
        frames, rows, columns = item["grid_thw"]
        tokens, width = item["shape"]
        echo(
            f"{label:<26} {frames} x {rows} x {columns} patches -> {tokens} x {width}  "
            f"{item['route']:<6} {took_ms:6.1f} ms  ({item['reason']})"
        )
