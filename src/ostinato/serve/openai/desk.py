"""One request from its bytes to the reply, whichever kind of completion it asks for.

The event loop reads sockets, waits and writes chunks. Parsing and the service's ``submit`` run in a
worker thread, tokens are drawn on the service's. The status of a reply is decided with the first
token: what fails before it is a real HTTP error, also where a stream was asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from ostinato.serve.guard import error_facts, read_body
from ostinato.serve.leaving import ClientLeft, unless_left
from ostinato.serve.openai.asks import Ask
from ostinato.serve.openai.contract import ChatService
from ostinato.serve.openai.event_stream import EventStream
from ostinato.serve.openai.front import Front, Place
from ostinato.serve.openai.generation import Arrival, Generation
from ostinato.serve.openai.metrics import ChatMetrics, RequestTimes
from ostinato.serve.openai.wire import DONE, Choice, Shape, dumps, event, head_of, usage
from ostinato.serve.settings import ServerSettings

Reader = Callable[[bytes], Ask]
CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True)
class Job:
    """A request that has a place."""

    shape: Shape
    request_id: str
    place: Place
    generation: Generation
    times: RequestTimes

    def end(self, reason: str) -> None:
        """Cancel what has not ended, count it under ``reason``, give the place back."""
        self.generation.cancel()
        self.times.ended(reason)
        self.place.release()


class Desk:
    """Takes requests, and answers or refuses each of them."""

    def __init__(
        self,
        service: ChatService,
        front: Front,
        metrics: ChatMetrics,
        settings: ServerSettings,
        workers: Executor,
    ) -> None:
        self._service = service
        self._front = front
        self._metrics = metrics
        self._settings = settings
        self._workers = workers

    async def serve(self, request: Request, read: Reader, shape: Shape) -> Response:
        """A reply; raises what the guard turns into an error."""
        self._front.check_room()
        body = await read_body(request, self._settings.max_body_bytes)
        began_s = time.perf_counter()
        place = self._front.take(len(body))
        job = Job(
            shape,
            request.state.request_id,
            place,
            Generation(),
            RequestTimes(self._metrics, began_s),
        )
        try:
            return await unless_left(request, self._answer(request, job, read, body))
        except ClientLeft:
            job.end("abort")
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except BaseException:
            job.end("error")
            raise

    async def _answer(self, request: Request, job: Job, read: Reader, body: bytes) -> Response:
        run = asyncio.get_running_loop().run_in_executor
        ask = await run(self._workers, self._begin, job, read, body)
        job.times.began(ask, job.generation)
        has_logprobs = ask.sampling.logprobs is not None
        num_choices = len(ask.prompts) * ask.num_choices
        choices = [Choice(index, has_logprobs) for index in range(num_choices)]
        arrivals = job.generation.arrivals()
        head = head_of(job.shape, job.request_id, self._service.name, is_stream=ask.is_stream)
        if not ask.is_stream:
            return await self._whole(job, choices, arrivals, head)
        first = await anext(arrivals)
        events = self._events(job, ask, choices, first, arrivals, head)
        return EventStream(request, events, lambda: job.end("abort"))

    def _begin(self, job: Job, read: Reader, body: bytes) -> Ask:
        """In a worker thread."""
        ask = read(body)
        job.place.widen(len(ask.prompts) * ask.num_choices)
        job.generation.begin(self._service, ask)
        return ask

    async def _whole(
        self,
        job: Job,
        choices: list[Choice],
        arrivals: AsyncIterator[Arrival],
        head: dict[str, Any],
    ) -> Response:
        async for arrival in arrivals:
            job.times.arrived(arrival)
            choices[arrival.index].add(arrival.delta, is_kept=True)
        self._metrics.count_routes(job.generation)
        job.end("error")  # nothing is left that could be counted so
        body = dumps(
            {
                **head,
                "choices": [job.shape.whole(choice) for choice in choices],
                "usage": _usage(job, choices),
            }
        )
        return Response(body, media_type="application/json")

    async def _events(
        self,
        job: Job,
        ask: Ask,
        choices: list[Choice],
        first: Arrival,
        arrivals: AsyncIterator[Arrival],
        head: dict[str, Any],
    ) -> AsyncIterator[bytes]:
        """Server-sent events. An error after the first token is an event too, and the last one."""
        no_usage = {"usage": None} if ask.has_usage_chunk else {}
        try:
            async for arrival in _all_of(first, arrivals):
                job.times.arrived(arrival)
                choice = choices[arrival.index]
                choice.add(arrival.delta, is_kept=False)
                for entry in job.shape.chunks(choice, arrival.delta):
                    yield event({**head, "choices": [entry], **no_usage})
            self._metrics.count_routes(job.generation)
            if ask.has_usage_chunk:
                yield event({**head, "choices": [], "usage": _usage(job, choices)})
        except Exception as error:
            job.times.ended("error")
            yield event(error_facts(error, job.request_id).body())
        yield DONE


async def _all_of(first: Arrival, rest: AsyncIterator[Arrival]) -> AsyncIterator[Arrival]:
    yield first
    async for arrival in rest:
        yield arrival


def _usage(job: Job, choices: list[Choice]) -> dict[str, Any]:
    told = job.generation
    drawn = sum(choice.num_tokens for choice in choices)
    return usage(told.prompt_tokens, told.image_tokens, told.cached_tokens, drawn)
