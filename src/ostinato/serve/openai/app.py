"""Builds the application around a chat model. No global state: two apps share nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from fastapi import FastAPI

from ostinato.serve.app import assemble
from ostinato.serve.metrics import Metrics
from ostinato.serve.models import models_router
from ostinato.serve.openai.asks import AskReader
from ostinato.serve.openai.contract import ChatService
from ostinato.serve.openai.desk import Desk
from ostinato.serve.openai.front import Front
from ostinato.serve.openai.metrics import ChatMetrics
from ostinato.serve.openai.routes import completions_router, tokens_router
from ostinato.serve.openai.settings import ChatSettings
from ostinato.serve.openai.tokens import Tokens
from ostinato.serve.settings import ServerSettings


def build_chat_app(
    service: ChatService, settings: ServerSettings, chat: ChatSettings | None = None
) -> FastAPI:
    """The application; its threads start and stop with it.

    ``app.state.device`` is the ``Front``: what ``run_app`` waits for. ``settings.max_queued``
    bounds the answers under way.
    """
    chat = chat or ChatSettings()
    metrics = Metrics(service)
    chat_metrics = ChatMetrics(metrics, service)
    front = Front(
        service,
        max_open=settings.max_queued,
        max_bytes=settings.max_queued_bytes,
        drain_s=chat.drain_s,
    )
    metrics.watch(front)
    chat_metrics.watch(lambda: front.num_open)
    workers = ThreadPoolExecutor(settings.num_workers, thread_name_prefix="ostinato-request")
    reader = AskReader(service, settings, chat)
    desk = Desk(service, front, chat_metrics, settings, workers)
    routers = [
        models_router(service),
        completions_router(desk, reader),
        tokens_router(front, Tokens(service, reader), workers, settings.max_body_bytes),
    ]
    return assemble(settings, metrics, front, workers, routers)
