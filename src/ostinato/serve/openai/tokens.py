"""``/tokenize`` and ``/detokenize``, as vLLM answers them."""

from __future__ import annotations

from typing import Any

from ostinato.errors import InputError, RefusedItem
from ostinato.serve.models import check_model
from ostinato.serve.openai.asks import AskReader
from ostinato.serve.openai.contract import ChatService, Prompt
from ostinato.serve.openai.schemas import DetokenizeRequest, TokenizeRequest, parse

_WHY_NONE = "is true; expected false with messages, whose template writes all special tokens"


class Tokens:
    """Both directions. Called in worker threads; reads no weights and waits for no device."""

    def __init__(self, service: ChatService, reader: AskReader) -> None:
        self._service = service
        self._reader = reader

    def tokenize(self, body: bytes) -> dict[str, Any]:
        """The ids that a completion of the same prompt or messages would see, unless a prompt asks
        for the tokens that the tokenizer puts around a text.
        """
        request = parse(body, TokenizeRequest)
        check_model(request.model, self._service)
        if (request.prompt is None) == (request.messages is None):
            raise InputError("[request] give either prompt or messages")
        prompt: Prompt = request.prompt or ""
        adds_special = bool(request.add_special_tokens)
        if request.messages is not None:
            if adds_special:
                raise RefusedItem("add_special_tokens", InputError(f"[request] {_WHY_NONE}"))
            prompt = self._reader.conversation(request.messages, request.add_generation_prompt)
        ids = [int(token) for token in self._service.tokenize(prompt, adds_special=adds_special)]
        strs = list(self._service.token_strs(ids)) if request.return_token_strs else None
        return {
            "count": len(ids),
            "max_model_len": self._service.max_context_tokens,
            "tokens": ids,
            "token_strs": strs,
        }

    def detokenize(self, body: bytes) -> dict[str, Any]:
        """The text of ids."""
        request = parse(body, DetokenizeRequest)
        check_model(request.model, self._service)
        return {"prompt": self._service.detokenize(request.tokens)}
