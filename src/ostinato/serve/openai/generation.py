"""The submissions of one HTTP request, from worker thread and engine thread to the event loop.

The engine's thread only appends and wakes the loop; deltas that came in the meantime are joined, so
a slow reader gets fewer and larger chunks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial

from ostinato.errors import Overloaded
from ostinato.serve.openai.asks import Ask
from ostinato.serve.openai.contract import ChatService, Delta, Submission


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delta of choice ``index``, and when the engine gave its tokens: pairs of
    ``time.perf_counter`` and number.
    """

    index: int
    delta: Delta
    steps: tuple[tuple[float, int], ...]


class Generation:
    """Answers under way. ``begin`` runs in a worker thread, the rest on the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: list[Arrival] = []
        self._submissions: list[Submission] = []
        self._is_cancelled = False
        self._num_begun = 0
        self._num_prompts = 1

    def begin(self, service: ChatService, ask: Ask) -> None:
        """Submit all choices, or none where one is refused."""
        self._num_prompts = len(ask.prompts)
        try:
            for index, (prompt, sampling) in enumerate(ask.submissions()):
                if self._is_cancelled:
                    break
                submission = service.submit(prompt, sampling, partial(self._take, index))
                with self._lock:
                    self._submissions.append(submission)
                    is_cancelled = self._is_cancelled
                if is_cancelled:  # the client left while this worked
                    submission.cancel()
                    break
        except BaseException:
            self.cancel()
            raise
        self._num_begun = len(self._submissions)

    def cancel(self) -> None:
        """End what has not ended; again does nothing."""
        with self._lock:
            self._is_cancelled = True
            submissions = list(self._submissions)
        for submission in submissions:
            submission.cancel()

    async def arrivals(self) -> AsyncIterator[Arrival]:
        """Deltas of all choices until each has ended. Raises the error that ended one."""
        num_left = self._num_begun
        while num_left:
            for arrival in await self._next():
                delta, error = arrival.delta, arrival.delta.error
                if delta.finish_reason == "cancelled":
                    error = Overloaded("the answer was cancelled by the server", retry_after_s=1)
                if error is None:
                    num_left -= delta.finish_reason is not None
                    yield arrival
                    continue
                if delta.token_ids or delta.text:  # it may have been joined with what came before
                    delta = replace(delta, error=None, finish_reason=None)
                    yield replace(arrival, delta=delta)
                raise error

    @property
    def prompt_tokens(self) -> int:
        """Each prompt counts once, however many answers it gets."""
        return sum(submission.prompt_tokens for submission in self._firsts())

    @property
    def image_tokens(self) -> int:
        return sum(submission.image_tokens for submission in self._firsts())

    @property
    def cached_tokens(self) -> int | None:
        """``None`` where the service does not say."""
        known = [submission.cached_tokens for submission in self._firsts()]
        told = [count for count in known if count is not None]
        return sum(told) if len(told) == len(known) else None

    @property
    def routes(self) -> list[str]:
        """How the images and videos of every answer were served."""
        return [route for submission in self._submissions for route in submission.routes]

    def _firsts(self) -> list[Submission]:
        per_prompt = max(1, self._num_begun // self._num_prompts)
        return self._submissions[: self._num_begun : per_prompt]

    def _take(self, index: int, delta: Delta) -> None:
        """Called by the engine's thread."""
        with self._lock:
            is_first = not self._pending
            step = (time.perf_counter(), len(delta.token_ids))
            self._pending.append(Arrival(index, delta, (step,)))
        if is_first and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError:  # the loop closed in between: nobody reads any more
                return

    async def _next(self) -> list[Arrival]:
        await self._arrived.wait()
        with self._lock:
            pending, self._pending = self._pending, []
        # the next delta finds nothing pending and sets it again, through the loop: after this
        self._arrived.clear()
        return joined(pending)


def joined(arrivals: list[Arrival]) -> list[Arrival]:
    """One arrival per choice, in the order of their first."""
    if len(arrivals) == 1:
        return arrivals
    by_index: dict[int, list[Arrival]] = {}
    for arrival in arrivals:
        by_index.setdefault(arrival.index, []).append(arrival)
    return [_joined(several) for several in by_index.values()]


def _joined(several: list[Arrival]) -> Arrival:
    last = several[-1]
    if len(several) == 1:
        return last
    deltas = [arrival.delta for arrival in several]
    delta = Delta(
        "".join(delta.text for delta in deltas),
        tuple(token for delta in deltas for token in delta.token_ids),
        tuple(entry for delta in deltas for entry in delta.logprobs),
        last.delta.finish_reason,
        last.delta.error,
    )
    steps = tuple(step for arrival in several for step in arrival.steps)
    return Arrival(last.index, delta, steps)
