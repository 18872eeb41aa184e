"""The thread that owns the device: takes requests, makes steps, hands out tokens.

A step is begun while the one before is under way, and its tokens are read after that: the device
does not wait for the host. So a reply that ends by its tokens (an end token, a stop string) is in
one step more than it needs; what that step chooses is dropped, and its key is never named in the
cache. No request needs the host between two tokens. Media are encoded before the step that shows
them.

A step's failure ends the requests that took part in it, and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from secrets import randbits

import torch

from ostinato.errors import InputError, Overloaded, PromptTooLong
from ostinato.lm.contract import (
    ChatDelta,
    FinishReason,
    Media,
    OnDelta,
    Prompt,
    SamplingParams,
    TokenLogprob,
)
from ostinato.lm.decode import Decode
from ostinato.lm.flight import Flight
from ostinato.lm.kv_cache import chain_of
from ostinato.lm.prefill import Prefill, media_of
from ostinato.lm.sampling import Sampler
from ostinato.lm.scheduler import Chunk, Plan, Scheduler, Sequence
from ostinato.lm.slots import Slots
from ostinato.lm.text import TextStream
from ostinato.recording.stats import Stats

log = logging.getLogger(__name__)
EncodeMedia = Callable[[Ordered[Media]], None]


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. ``finished``: requests by reason, ``"error"`` among them; ``looked_up_tokens``:
    those of prompts whose beginnings were looked for in the cache.
    """

    num_waiting: int
    num_running: int
    num_pages: int
    num_free_pages: int
    prompt_tokens: int
    looked_up_tokens: int
    cached_tokens: int
    generated_tokens: int
    num_preempted: int
    finished: dict[str, int]
    recordings: dict[str, Stats] = field(default_factory=dict)


class Ticket:
    """A request that was taken. ``cancel`` may be called from any thread, more than once."""

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence
        self.prompt_tokens = sequence.num_prompt
        self.image_tokens = sum(span.length for span in sequence.prompt.spans)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were served from the cache; 0 until the first delta."""
        return self._sequence.num_cached

    @property
    def routes(self) -> tuple[str, ...]:
        """How each image and video was served: the encoder's route, or ``"cache"`` where the keys
        were there already. Final once the request has ended.
        """
        media = {id(span.media): span.media for span in self._sequence.prompt.spans}
        return tuple(one.route or "cache" for one in media.values())

    def cancel(self) -> None:
        """End the request; its last delta says ``"cancelled"`` unless it has ended already."""
        self._engine.cancel(self._sequence)


class Engine:
    """``max_length``: tokens of a request, prompt and reply; ``encode`` gives media their rows."""

    def __init__(
        self,
        scheduler: Scheduler,
        prefill: Prefill,
        decode: Decode,
        slots: Slots,
        *,
        page_size: int,
        max_length: int,
        max_waiting: int,
        eos_ids: frozenset[int],
        encode: EncodeMedia,
    ) -> None:
        self.max_length = max_length
        self._scheduler = scheduler
        self._prefill = prefill
        self._decode = decode
        self._slots = slots
        self._flight: Flight | None = None
        self._page_size = page_size
        self._max_waiting = max_waiting
        self._eos_ids = eos_ids
        self._encode = encode
        self._counts: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._new: list[Sequence] = []
        self._has_cancelled = False
        self._is_closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="ostinato-lm", daemon=True)

    # -- any thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def submit(
        self, prompt: Prompt, params: SamplingParams, text: TextStream, on_delta: OnDelta
    ) -> Ticket:
        """Take a request; its deltas are handed to ``on_delta`` on the engine's thread.

        Raises ``InputError`` (``PromptTooLong`` for one that does not fit), and ``Overloaded`` when
        the queue is full or the engine closed.
        """
        length, largest = len(prompt.token_ids), self.max_length
        if not length:
            raise InputError("the prompt is empty; expected at least one token")
        reply = params.max_tokens or 1
        if length + reply > largest:
            raise PromptTooLong(
                f"this model's maximum context length is {largest} tokens; you requested "
                f"{length + reply} ({length} in the prompt, {reply} in the completion)"
            )
        seed = randbits(63) if params.seed is None else params.seed
        sequence = Sequence(
            prompt,
            Sampler(params, seed),
            text,
            on_delta,
            params.max_tokens or largest - length,
            chain_of(prompt, self._page_size),
        )
        with self._wake:
            if self._is_closing:
                raise Overloaded("the engine is closed", retry_after_s=1)
            num_waiting = len(self._new) + len(self._scheduler.waiting)
            if num_waiting >= self._max_waiting:
                raise Overloaded(f"{num_waiting} requests are waiting", retry_after_s=1)
            self._new.append(sequence)
            self._wake.notify()
        return Ticket(self, sequence)

    def cancel(self, sequence: Sequence) -> None:
        """See ``Ticket.cancel``."""
        with self._wake:
            sequence.is_cancelled = self._has_cancelled = True
            self._wake.notify()

    @property
    def is_serving(self) -> bool:
        """False before ``start``, after ``close``, and once the thread has failed."""
        return self._thread.is_alive() and not self._is_closing

    def stats(self) -> EngineStats:
        """May be called from any thread; numbers of one moment, more or less."""
        scheduler = self._scheduler
        steps = {"prefill": self._prefill.recorded, "decode": self._decode.recorded}
        found = {name: step.stats() for name, step in steps.items()}
        return EngineStats(
            num_waiting=len(self._new) + len(scheduler.waiting),
            num_running=len(scheduler.running),
            num_pages=scheduler.pool.num_pages,
            num_free_pages=scheduler.pool.num_free,
            prompt_tokens=self._counts["prompt"],
            looked_up_tokens=self._counts["prompt"] if scheduler.is_prefix_cache_on else 0,
            cached_tokens=self._counts["cached"],
            generated_tokens=self._counts["generated"],
            num_preempted=scheduler.num_preempted,
            finished=dict(self._finished),
            recordings={name: stats for name, stats in found.items() if stats is not None},
        )

    def close(self) -> None:
        """Cancel what is under way, end the thread, free recordings and cache. Twice is allowed."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._prefill.recorded.close()
        self._decode.recorded.close()
        self._decode.recorded.free_cache()

    # -- the engine's thread --------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            with torch.inference_mode():
                self._serve()
        except Exception as error:  # a mistake of ours; nobody may wait for ever
            log.exception("the engine has ended")
            with self._wake:
                self._is_closing = True
                left = [*self._all(), *self._new]
                self._new.clear()
            for sequence in left:
                self._fail(sequence, error)

    def _serve(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Wait for work, begin a step, hand out the last one's tokens; false once closed. Nothing
        of a request outlives its turn here.
        """
        with self._wake:
            while not (self._new or self._has_cancelled or self._is_closing or self._is_busy()):
                self._wake.wait()
            self._scheduler.waiting.extend(self._new)
            self._new.clear()
            is_closing, self._has_cancelled = self._is_closing, False
        for sequence in self._all():
            if is_closing or sequence.is_cancelled:
                self._end(sequence, "cancelled")
        if is_closing:
            if self._flight is not None:
                self._flight.wait()  # what it reads and writes is freed next
            return False
        plan = self._scheduler.plan()
        begun = None if plan is None else self._begin(plan)
        landed, self._flight = self._flight, begun
        if landed is not None:
            self._hand_out(landed)
        return True

    def _is_busy(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting or self._flight)

    def _all(self) -> list[Sequence]:
        return [*self._scheduler.running, *self._scheduler.waiting]

    def _begin(self, plan: Plan) -> Flight | None:
        """Enqueue a step; ``None`` where there is none, or it failed."""
        chunks = plan.chunks
        try:
            if plan.is_prefill:
                chunks = self._with_rows(chunks)
            if not chunks:
                return None
            for chunk in chunks:
                self._take_slot(chunk.sequence)
            tokens, logits = (self._prefill if plan.is_prefill else self._decode)(chunks)
            for chunk in chunks:
                self._scheduler.computed(chunk)
            return Flight(chunks, tokens, logits)
        except Exception as error:
            log.exception("a step of %d sequences failed", len(chunks))
            for chunk in chunks:
                self._fail(chunk.sequence, error)
            return None

    def _take_slot(self, sequence: Sequence) -> None:
        if sequence.is_slot_new:
            sequence.is_slot_new = False
            if sequence.sampler.params.has_penalties:  # else nobody reads what it has seen
                count = sequence.num_prompt
                ids = sequence.token_ids
                self._slots.reset(sequence.slot, ids[:count], ids[count:])

    def _with_rows(self, chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
        """Encode what the chunks show, all at once; where that fails, one by one, so that a bad
        item ends its own request only.
        """
        media = media_of(chunks)
        if media:
            try:
                self._encode(media)
            except Exception:
                for chunk in chunks:
                    try:
                        own = media_of([chunk])
                        if own:
                            self._encode(own)
                    except Exception as error:
                        log.exception("media of a request cannot be encoded")
                        self._fail(chunk.sequence, error)
        return tuple(c for c in chunks if not media_of([c]))

    def _hand_out(self, flight: Flight) -> None:
        """Each sequence's next token; what came too late for one that has ended is dropped."""
        try:
            arrivals = list(flight.arrive())
        except Exception as error:
            log.exception("a step of %d sequences failed", len(flight.sequences))
            for sequence in flight.sequences:
                self._fail(sequence, error)
            return
        for sequence, token, logprob in arrivals:
            sequence.num_pending -= 1
            if sequence.has_ended:
                continue
            try:
                self._give(sequence, token, logprob)
            except Exception as error:
                log.exception("a token cannot be handed out")
                self._fail(sequence, error)

    def _give(self, sequence: Sequence, token: int, logprob: TokenLogprob | None) -> None:
        params = sequence.sampler.params
        if not sequence.num_generated:
            self._counts["prompt"] += sequence.num_prompt
            self._counts["cached"] += sequence.num_cached
        self._counts["generated"] += 1
        sequence.token_ids.append(token)
        for span in sequence.prompt.spans:
            span.media.rows = None  # their keys are written; encoded again if they must be
        is_end = token in params.stop_token_ids
        is_end = is_end or (token in self._eos_ids and not params.ignore_eos)
        text = "" if is_end else sequence.text.push(token)
        reason: FinishReason | None = None
        if is_end or sequence.text.is_stopped:
            reason = "stop"
        elif sequence.num_generated >= sequence.max_tokens:
            reason = "length"
        kept = None if logprob is None else (logprob,)
        if reason is not None:
            text += sequence.text.finish()
            self._leave(sequence, reason)
        self._tell(sequence, ChatDelta(text, (token,), kept, reason))

    def _tell(self, sequence: Sequence, delta: ChatDelta) -> None:
        try:
            sequence.on_delta(delta)
        except Exception:
            log.exception("a request's owner failed; the request is cancelled")
            self.cancel(sequence)

    def _leave(self, sequence: Sequence, how: str) -> bool:
        """False where it has left before."""
        if sequence.has_ended:
            return False
        sequence.has_ended = True
        self._finished[how] += 1
        self._scheduler.remove(sequence)
        return True

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        if self._leave(sequence, reason):
            self._tell(sequence, ChatDelta(sequence.text.finish(), (), None, reason))

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        if self._leave(sequence, "error"):
            self._tell(sequence, ChatDelta("", (), None, "cancelled", error))
