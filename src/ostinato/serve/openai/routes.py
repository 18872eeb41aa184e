"""OpenAI's paths, and vLLM's for tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from ostinato.serve.guard import read_body
from ostinato.serve.openai.asks import AskReader
from ostinato.serve.openai.desk import Desk
from ostinato.serve.openai.front import Front
from ostinato.serve.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from ostinato.serve.openai.tokens import Tokens
from ostinato.serve.openai.wire import ChatShape, CompletionShape, dumps


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """``kind`` for ``/openapi.json``: handlers read bodies themselves, off the loop."""
    schema = kind.model_json_schema()
    schema = inlined(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    """References replaced by what they name; a request's parts do not contain themselves."""
    if isinstance(node, list):
        return [inlined(one, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: inlined(value, definitions) for key, value in node.items()}


def completions_router(desk: Desk, reader: AskReader) -> APIRouter:
    """The two kinds of completion."""
    router = APIRouter(tags=["completions"])
    chat, completion = ChatShape(), CompletionShape()

    @router.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await desk.serve(request, reader.read_chat, chat)

    @router.post("/v1/completions", openapi_extra=body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await desk.serve(request, reader.read_completion, completion)

    return router


def tokens_router(
    front: Front, tokens: Tokens, workers: Executor, max_body_bytes: int
) -> APIRouter:
    """Text to ids and back; needs a place like everything that holds a body."""
    router = APIRouter(tags=["tokens"])

    async def answer(request: Request, work: Callable[[bytes], dict[str, Any]]) -> Response:
        front.check_room()
        body = await read_body(request, max_body_bytes)
        place = front.take(len(body))
        try:
            found = await asyncio.get_running_loop().run_in_executor(workers, work, body)
        finally:
            place.release()
        return Response(dumps(found), media_type="application/json")

    @router.post("/tokenize", openapi_extra=body_of(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        return await answer(request, tokens.tokenize)

    @router.post("/detokenize", openapi_extra=body_of(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        return await answer(request, tokens.detokenize)

    return router
