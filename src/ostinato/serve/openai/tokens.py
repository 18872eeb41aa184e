"""``/tokenize`` and ``/detokenize``, as vLLM answers them."""

from __future__ import annotations

from typing import Any

from ostinato.errors import InputError
from ostinato.serve.models import check_model
from ostinato.serve.openai.asks import AskReader
from ostinato.serve.openai.contract import ChatService, Prompt
from ostinato.serve.openai.schemas import DetokenizeRequest, TokenizeRequest, parse


class Tokens:
    """Both directions. Called in worker threads; reads no weights and waits for no device."""

    def __init__(self, service: ChatService, reader: AskReader) -> None:
        self._service = service
        self._reader = reader

    def tokenize(self, body: bytes) -> dict[str, Any]:
        """The ids that a completion of the same prompt or messages would see."""
        request = parse(body, TokenizeRequest)
        check_model(request.model, self._service)
        if (request.prompt is None) == (request.messages is None):
            raise InputError("[request] give either prompt or messages")
        prompt: Prompt = request.prompt or ""
        if request.messages is not None:
            prompt = self._reader.conversation(request.messages, request.add_generation_prompt)
        ids = [int(token) for token in self._service.tokenize(prompt)]
        limit = self._service.max_context_tokens
        return {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None}

    def detokenize(self, body: bytes) -> dict[str, Any]:
        """The text of ids."""
        request = parse(body, DetokenizeRequest)
        check_model(request.model, self._service)
        return {"prompt": self._service.detokenize(request.tokens)}
