"""One request from its bytes to safe actions, whatever it came over.

The event loop only waits here: a message is read and checked in a worker thread and handed to the
device from there, unless it holds so little besides raw images that reading it takes less than
waking a thread for it. A deadline ends the waiting and not the device's work, whose result is then
thrown away: it is never the answer to something newer.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any

from ostinato.errors import DeadlineMissed, Overloaded
from ostinato.serve.device_thread import DeviceThread
from ostinato.serve.guard import ErrorFacts, error_facts
from ostinato.serve.openpi.actions import check_actions
from ostinato.serve.openpi.codec import Buffer, CodecLimits
from ostinato.serve.openpi.contract import PolicyService
from ostinato.serve.openpi.intake import Intake
from ostinato.serve.openpi.messages import Ask
from ostinato.serve.openpi.metadata import metadata_of
from ostinato.serve.openpi.metrics import RobotMetrics
from ostinato.serve.openpi.records import Exchange, Recorder
from ostinato.serve.openpi.replies import Answer
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.openpi.turns import deadline_missed
from ostinato.serve.openpi.wishes import RESERVED, Wishes, read_id, read_wishes
from ostinato.serve.queues import Turn
from ostinato.serve.service import Reply, Request

Reader = Callable[[Buffer, CodecLimits], Ask]

AT_ONCE_VALUES = 128
"""A message of more values is read in a worker; to find that out takes 0.1 ms."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A request on its way; filled as it goes. ``received_s``: ``time.monotonic`` of its last byte.

    ``ask`` is there once the message was read; ``future`` once the device has it; otherwise
    ``error`` says why not.
    """

    body: Buffer
    received_s: float
    client: str
    request_id: str
    ask: Ask | None = None
    wishes: Wishes | None = None
    turn: Turn | None = None
    future: Future[Reply] | None = None
    error: Exception | None = None
    stage_ms: dict[str, float] = field(default_factory=dict)
    is_abandoned: bool = False

    def abandon(self) -> None:
        """Nobody waits for it any longer: its place is free at once."""
        self.is_abandoned = True  # for a worker that has not submitted it yet
        if self.future is not None:
            self.future.cancel()


class Desk:
    """Takes requests, and answers or refuses each of them."""

    def __init__(
        self,
        service: PolicyService,
        device: DeviceThread,
        metrics: RobotMetrics,
        workers: Executor,
        *,
        robots: RobotSettings,
        limits: CodecLimits,
        recorder: Recorder | None,
    ) -> None:
        self.service = service
        self.metrics = metrics
        self.limits = limits
        self._quick_limits = replace(limits, max_values=min(limits.max_values, AT_ONCE_VALUES))
        self._device = device
        self._workers = workers
        self._robots = robots
        self._intake = Intake(service.spec, robots.intake)
        self._recorder = recorder

    def metadata(self) -> dict[str, Any]:
        """What clients get on connecting."""
        return metadata_of(self.service, self._robots)

    async def admit(
        self, body: Buffer, read: Reader, *, client: str, request_id: str | None = None
    ) -> Ticket:
        """Read a message and queue it. Never raises for what the message holds."""
        ticket = Ticket(body, time.monotonic(), client, request_id or uuid.uuid4().hex)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._workers, self._read, ticket, read)
        except asyncio.CancelledError:
            ticket.abandon()
            raise
        return ticket

    def admit_at_once(self, body: Buffer, read: Reader, *, client: str) -> Ticket | None:
        """``admit`` for a message that is quick to read; ``None``: it is not, nothing was done."""
        ticket = Ticket(body, time.monotonic(), client, "")
        try:
            ask = read(body, self._quick_limits)
        except Exception:
            return None  # a worker says what is wrong with it, if something is
        if ask.is_reset or not self._intake.is_quick(ask.entries):
            return None
        ticket.request_id = uuid.uuid4().hex
        self._submit(ticket, ask)
        return ticket

    def _read(self, ticket: Ticket, read: Reader) -> None:
        try:
            ask = read(ticket.body, self.limits)
        except Exception as error:
            ticket.error = error
        else:
            self._submit(ticket, ask)

    def _submit(self, ticket: Ticket, ask: Ask) -> None:
        try:
            ticket.ask = ask
            ticket.request_id = _id_of(ask.entries) or ticket.request_id
            decoded_s = time.monotonic()
            ticket.stage_ms["decode"] = (decoded_s - ticket.received_s) * 1e3
            if ask.is_reset:
                self.service.reset(ask.session_id)
                return
            observation, others = self._intake.read(ask.entries)
            wishes = ticket.wishes = read_wishes(
                others,
                self.service.spec.options,
                request_id=ticket.request_id,
                session_id=ask.session_id,
            )
            request = Request({"observation": observation, "options": wishes.options})
            (prepared,) = self.service.prepare([request])
            if isinstance(prepared, Exception):
                raise prepared
            if isinstance(prepared, Reply):
                raise TypeError("a policy has no answer before it was asked")
            ticket.stage_ms["prepare"] = (time.monotonic() - decoded_s) * 1e3
            turn = ticket.turn = _turn_of(ticket, wishes)
            ticket.future = self._device.submit(prepared, turn)
            if ticket.is_abandoned:
                ticket.future.cancel()
        except Exception as error:
            ticket.error = error

    async def settle(self, ticket: Ticket) -> Answer:
        """Wait for the answer.

        Raises what the request ended with: ``InputError``, ``Overloaded``, ``DeadlineMissed``,
        ``Superseded``, ``UnsafeActions``, or whatever the policy raised.
        """
        if ticket.error is not None:
            raise ticket.error
        assert ticket.future is not None and ticket.turn is not None and ticket.wishes is not None
        reply = await self._wait(ticket.future, ticket.turn)
        actions, num_clamped = check_actions(reply.outputs["actions"], self._robots.bounds)
        stage_ms = {**ticket.stage_ms, **reply.stage_ms}
        return Answer(
            actions,
            reply.outputs.get("actions_model"),
            ticket.wishes,
            reply.route,
            stage_ms,
            num_clamped,
            reply.facts,
        )

    async def _wait(self, future: Future[Reply], turn: Turn) -> Reply:
        left_s = None if turn.deadline_s is None else turn.deadline_s - time.monotonic()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), left_s)
        except DeadlineMissed:
            raise
        except TimeoutError:
            if left_s is None:
                raise  # the policy's own
            # what was waited for is cancelled, and with it its place in the queue
            raise deadline_missed(turn, "the device was busy") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if future.cancelled() and task is not None and not task.cancelling():
                raise Overloaded("the server is stopping", retry_after_s=1) from None
            raise

    def sent(self, ticket: Ticket, answer: Answer, reply: bytes, content_type: str) -> float:
        """Count and record an answer that has left; milliseconds since it was received."""
        total_ms = (time.monotonic() - ticket.received_s) * 1e3
        stage_ms = {**answer.stage_ms, "total": total_ms}
        self.metrics.count_answer(answer.route, stage_ms, answer.num_clamped)
        if self._recorder is not None and ticket.ask is not None:
            self._recorder.put(
                Exchange(
                    ticket.ask.dialect,
                    content_type,
                    bytes(ticket.body),
                    reply,
                    stage_ms,
                    time.time(),
                )
            )
        return total_ms

    def failed(self, ticket: Ticket, error: Exception) -> ErrorFacts:
        """Count an error; the words that a client gets for it."""
        facts = error_facts(error, ticket.request_id)
        self.metrics.count_error(facts.code)
        return facts


def _turn_of(ticket: Ticket, wishes: Wishes) -> Turn:
    """A named session is one robot, over whatever connections it comes."""
    client, session = ticket.client, wishes.session_id
    if session is not None:
        client = f"session {session}"
    deadline_s = None
    if wishes.deadline_ms is not None:
        deadline_s = ticket.received_s + wishes.deadline_ms / 1e3
    return Turn(client, session, ticket.received_s, deadline_s)


def _id_of(entries: Mapping[str, Any]) -> str | None:
    """The id that an error should carry, if the message has a proper one."""
    reserved = entries.get(RESERVED)
    if not isinstance(reserved, Mapping):
        return None
    try:
        return read_id(reserved.get("request_id", reserved.get(b"request_id")), "request_id")
    except ValueError:
        return None
