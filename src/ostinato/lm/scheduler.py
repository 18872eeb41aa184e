"""Which sequences take part in the next step. Plain bookkeeping, used by one thread.

Prefill and decode steps take turns, so that neither waits for the other. Prompts are cut into
chunks; those that are under way share a step's tokens evenly. First come, first served; where
pages run out, the youngest sequence gives its own back and is computed again later.

A step is planned while the one before is under way, so tokens count before they are known.

With ``is_invariant`` what computes a token is a matter of its own sequence alone: prompts are cut
at multiples of the step's tokens, a chunk has a step to itself, only pages of whole chunks serve
others, and a token that was generated is computed again as it was the first time, by a decode.

Without ``cuts_prompts`` a step takes prompts whole, in order, as many as it holds. Without
``is_prefix_cache_on`` no page serves a second sequence, and none is looked up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ostinato.lm.contract import OnDelta, Positions, Prompt
from ostinato.lm.kv_cache import Chain, PagePool
from ostinato.lm.sampling import SCRATCH, Draw, Sampler
from ostinato.lm.text import TextStream


@dataclass(eq=False)
class Sequence:
    """One request on its way. ``num_computed`` tokens have their keys in ``pages``, or will have
    them once the steps under way are done; ``num_pending`` more tokens than ``token_ids`` will be
    there then. ``slot``: where the device keeps what it remembers of a running sequence.
    """

    prompt: Prompt
    sampler: Sampler
    text: TextStream
    on_delta: OnDelta
    max_tokens: int
    chain: Chain
    token_ids: list[int] = field(init=False)
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    """Tokens of the prompt that needed no computing when the sequence was first admitted."""
    num_pending: int = 0
    slot: int = SCRATCH
    is_admitted: bool = False
    is_slot_new: bool = False
    """True until the device has been told whose slot it is."""
    is_cancelled: bool = False
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt.token_ids)
        self._next_position = int(self.prompt.positions.max()) + 1

    @property
    def num_prompt(self) -> int:
        return len(self.prompt.token_ids)

    @property
    def num_generated(self) -> int:
        """Tokens of the reply that are known."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_tokens(self) -> int:
        """Of prompt and reply, those that are not known yet among them."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_left(self) -> int:
        """Tokens without keys: one while decoding."""
        return self.num_tokens - self.num_computed

    @property
    def is_prefilling(self) -> bool:
        return self.num_left > 1 or self.num_tokens == self.num_prompt

    @property
    def is_drawn(self) -> bool:
        """True when steps under way choose its last token: it takes part in no other."""
        return self.num_tokens - self.num_prompt >= self.max_tokens

    def positions(self, start: int, end: int) -> Positions:
        """(3, end - start); generated tokens go on after the prompt's largest position."""
        given = self.prompt.positions[:, start:end]
        first = max(start - self.num_prompt, 0) + self._next_position
        line = np.arange(first, first + end - start - given.shape[1], dtype=np.int32)
        return np.concatenate([given, np.broadcast_to(line, (3, len(line)))], axis=1)


class Chunk(NamedTuple):
    """Tokens ``start`` to ``end`` of a sequence are computed in this step."""

    sequence: Sequence
    start: int
    end: int

    @property
    def draw(self) -> Draw:
        """How the token after the chunk is chosen; one in the middle of a prompt is not kept."""
        sequence = self.sequence
        is_kept = self.end == sequence.num_tokens
        return Draw(sequence.sampler, self.end, sequence.slot if is_kept else SCRATCH)


class Plan(NamedTuple):
    """One step: chunks of prompts, or the newest token of each sequence."""

    is_prefill: bool
    chunks: tuple[Chunk, ...]


class Scheduler:
    """``max_batch`` sequences run at once; a prefill takes ``max_chunks`` of them and
    ``max_tokens`` tokens (with ``is_invariant`` one of them; whole pages), which without
    ``cuts_prompts`` are at least those of the longest sequence.
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        page_size: int,
        max_batch: int,
        max_tokens: int,
        max_chunks: int,
        is_invariant: bool = False,
        cuts_prompts: bool = True,
        is_prefix_cache_on: bool = True,
    ) -> None:
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preempted = 0
        self._page_size = page_size
        self._max_batch = max_batch
        self._max_tokens = max_tokens
        self._max_chunks = max_chunks
        self._is_invariant = is_invariant
        self._cuts_prompts = cuts_prompts
        self.is_prefix_cache_on = is_prefix_cache_on
        self._slots = list(range(max_batch, SCRATCH, -1))
        self._was_prefill = False

    def plan(self) -> Plan | None:
        """The next step, its pages taken; ``None`` if there is nothing to do, or nothing before
        the tokens under way are known.
        """
        self._admit()
        prefilling = [s for s in self.running if self._is_prefilling(s)]
        decoding = [s for s in self.running if not (self._is_prefilling(s) or s.is_drawn)]
        if prefilling and not (decoding and self._was_prefill):
            self._was_prefill = True
            if self._is_invariant:
                return Plan(True, (self._own_chunk(prefilling[0]),))
            return Plan(True, (self._shares if self._cuts_prompts else self._whole)(prefilling))
        self._was_prefill = False
        chunks = self._with_pages(decoding)
        if chunks:
            return Plan(False, chunks)
        return self.plan() if decoding else None  # they all gave their pages back

    def _is_prefilling(self, sequence: Sequence) -> bool:
        if self._is_invariant:
            return sequence.num_computed < sequence.num_prompt
        return sequence.is_prefilling

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_batch:
            sequence = self.waiting[0]
            if sequence.num_pending:
                return  # it was preempted while its newest token was under way
            length = len(sequence.token_ids)
            reused = self._reused(sequence)
            need = -(-length // self._page_size) - len(reused)
            # what runs may soon need a page each: admitting into that room would only preempt
            if self.running and need + len(self.running) > self.pool.num_free:
                taken = None
            else:
                taken = self.pool.take(need)
            if taken is None:
                self.pool.release(reused)
                return
            sequence.pages = reused + taken
            sequence.num_computed = len(reused) * self._page_size
            sequence.slot, sequence.is_slot_new = self._slots.pop(), True
            if not sequence.is_admitted:
                sequence.is_admitted, sequence.num_cached = True, sequence.num_computed
            self.running.append(self.waiting.popleft())

    def _reused(self, sequence: Sequence) -> list[int]:
        """Pages of the longest known prefix; the last token is computed always."""
        if not self.is_prefix_cache_on:
            return []
        if not self._is_invariant:
            last = (len(sequence.token_ids) - 1) // self._page_size
            return self.pool.reuse(sequence.chain.digests[:last])
        last = (sequence.num_prompt - 1) // self._page_size
        found = self.pool.reuse(sequence.chain.digests[:last])
        num_whole = len(found) - len(found) % (self._max_tokens // self._page_size)
        self.pool.release(found[num_whole:])
        return found[:num_whole]

    def _own_chunk(self, sequence: Sequence) -> Chunk:
        start = sequence.num_computed
        end = (start // self._max_tokens + 1) * self._max_tokens
        return Chunk(sequence, start, min(end, sequence.num_prompt))

    def _whole(self, prefilling: Ordered[Sequence]) -> tuple[Chunk, ...]:
        """The oldest few, as long as all of them is in the step."""
        chunks, room = [], self._max_tokens
        for sequence in prefilling[: self._max_chunks]:
            room -= sequence.num_left
            if room < 0:
                break
            chunks.append(Chunk(sequence, sequence.num_computed, sequence.num_tokens))
        return tuple(chunks)

    def _shares(self, prefilling: Ordered[Sequence]) -> tuple[Chunk, ...]:
        """The oldest few; what the shorter ones leave of an even share goes to the longer ones."""
        chosen = sorted(prefilling[: self._max_chunks], key=lambda s: s.num_left)
        chunks, room = [], self._max_tokens
        for i, sequence in enumerate(chosen):
            count = min(sequence.num_left, room // (len(chosen) - i))
            if count:
                start = sequence.num_computed
                chunks.append(Chunk(sequence, start, start + count))
                room -= count
        return tuple(chunks)

    def _with_pages(self, decoding: Ordered[Sequence]) -> tuple[Chunk, ...]:
        chunks = []
        for sequence in decoding:  # oldest first: whom they preempt comes later
            if sequence in self.running and self._has_page(sequence):
                start = sequence.num_computed
                chunks.append(Chunk(sequence, start, start + 1))
        return tuple(chunks)

    def _has_page(self, sequence: Sequence) -> bool:
        while len(sequence.pages) * self._page_size < sequence.num_tokens:
            page = self.pool.take(1)
            if page is not None:
                sequence.pages += page
                continue
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preempted += 1
        self.remove(sequence)
        self.waiting.appendleft(sequence)

    def computed(self, chunk: Chunk) -> None:
        """A step writes the keys of a chunk: full pages of known tokens may serve others from now
        on. The device works in order, so whoever finds such a page reads it after it is written.
        """
        sequence = chunk.sequence
        sequence.num_computed = chunk.end
        if not self.is_prefix_cache_on:
            return
        if self._is_invariant and not self._is_whole(chunk):
            return
        known = min(chunk.end, len(sequence.token_ids))
        chain = sequence.chain
        if len(chain.digests) < known // self._page_size:
            chain.extend(sequence.token_ids[:known], sequence.positions(0, known))
        # the token before the chunk may have been unknown when its keys were written
        first = max(chunk.start - 1, 0) // self._page_size
        for i in range(first, known // self._page_size):
            self.pool.name(sequence.pages[i], chain.digests[i])

    def _is_whole(self, chunk: Chunk) -> bool:
        is_prompt = chunk.end <= chunk.sequence.num_prompt
        return is_prompt and chunk.end - chunk.start == self._max_tokens

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, its pages and its slot back, wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.release(sequence.pages)
        sequence.pages, sequence.num_computed = [], 0
        if sequence.slot != SCRATCH:
            self._slots.append(sequence.slot)
            sequence.slot = SCRATCH
