"""Replies of a service -> the body that a client asked for. Runs in a worker thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.serve.pooling.codec import (
    Array,
    pack_bytes,
    pack_safetensors,
    to_base64,
    to_lists,
)
from ostinato.serve.pooling.schemas import PoolingRequest, dumps
from ostinato.serve.service import Reply

SAFETENSORS = "application/x-safetensors"


@dataclass(frozen=True, slots=True)
class Body:
    """What goes on the wire."""

    content: bytes
    media_type: str
    headers: Mapping[str, str]


def merge_stages(replies: Sequence[Reply]) -> dict[str, float]:
    """Stages of one request: work on its items adds up, a turn of the device is shared."""
    stages: dict[str, float] = {}
    for reply in replies:
        for stage, value_ms in reply.stage_ms.items():
            so_far = stages.get(stage, 0.0)
            is_own = stage in ("decode", "resize")
            stages[stage] = so_far + value_ms if is_own else max(so_far, value_ms)
    return stages


def item_facts(reply: Reply) -> dict[str, Any]:
    """How one item was served."""
    return {"route": reply.route, "reason": reply.reason, **reply.facts}


def head_of(request_id: str, model: str, replies: Sequence[Reply]) -> dict[str, Any]:
    """vLLM's fields around the data. One token of usage is one row of embeddings."""
    tokens = sum(reply.outputs["embeddings"].shape[0] for reply in replies)
    return {
        "id": f"pool-{request_id}",
        "created": int(time.time()),
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


def encode_body(
    request: PoolingRequest,
    is_file: bool,
    head: Mapping[str, Any],
    replies: Sequence[Reply],
    stage_ms: dict[str, float],
    began_s: float,
) -> Body:
    """The body: a safetensors file, or what ``encoding_format`` says.

    Adds ``reply`` (the time this takes) and ``total`` (since ``began_s``) to ``stage_ms``.
    """
    here_s = time.perf_counter()

    def done() -> dict[str, Any]:
        now_s = time.perf_counter()
        stage_ms.update(reply=(now_s - here_s) * 1e3, total=(now_s - began_s) * 1e3)
        rounded = {stage: round(value, 3) for stage, value in stage_ms.items()}
        return {"stage_ms": rounded} if request.stage_times else {}

    matrices = [reply.outputs["embeddings"] for reply in replies]
    facts = [item_facts(reply) for reply in replies]
    if is_file:
        arrays = _named(replies)
        metadata = {"model": str(head["model"]), "id": str(head["id"])}
        for index, fact in enumerate(facts):
            metadata |= {f"item.{index}.{key}": _text(value) for key, value in fact.items()}
        # the times stand before the data in the file, so the copying itself is not among them
        metadata |= {key: _text(value) for key, value in done().items()}
        content = pack_safetensors(arrays, metadata, request.embed_dtype)
        done()
        return Body(content, SAFETENSORS, {})
    if request.encoding_format == "bytes":
        content, items = pack_bytes(matrices, request.embed_dtype, request.endianness)
        table = {**head, "data": [{**i, **f} for i, f in zip(items, facts, strict=True)], **done()}
        return Body(content, "application/octet-stream", {"metadata": dumps(table).decode()})
    texts = [_matrix(request, matrix) for matrix in matrices]
    data = b",".join(
        b'{"index":%d,"object":"pooling","ostinato":%b,"data":%b}' % (i, dumps(fact), text)
        for i, (fact, text) in enumerate(zip(facts, texts, strict=True))
    )
    frame = dumps({**head, "object": "list", **done()})
    return Body(b'%b,"data":[%b]}' % (frame[:-1], data), "application/json", {})


def _matrix(request: PoolingRequest, matrix: Array) -> bytes:
    if request.encoding_format == "base64":
        return to_base64(matrix, request.embed_dtype, request.endianness)
    return to_lists(matrix)


def _named(replies: Sequence[Reply]) -> dict[str, Array]:
    return {
        f"item.{index}.{name}": array
        for index, reply in enumerate(replies)
        for name, array in reply.outputs.items()
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value).decode()
