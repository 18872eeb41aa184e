"""Bodies of requests, and reading what comes back."""

from __future__ import annotations

import base64
from typing import Any

from fastapi.testclient import TestClient


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def part(content: bytes, kind: str = "image_url") -> dict[str, Any]:
    return {"type": kind, kind: {"url": data_url(content)}}


def pooling(*contents: bytes, **fields: Any) -> dict[str, Any]:
    return {"task": "token_embed", "input": [part(content) for content in contents], **fields}


def ready(client: TestClient) -> TestClient:
    client.app.state.device.wait_until_settled(60)  # type: ignore[attr-defined]
    return client


def metric(client: TestClient, line: str) -> float:
    page = client.get("/metrics").text
    found = [row for row in page.splitlines() if row.startswith(f"{line} ")]
    assert len(found) == 1, page
    return float(found[0].rpartition(" ")[2])
