"""Puts an engine together: how large everything is, the cache, the recordings.

The first page of a cache belongs to nobody: warm-up and gate write there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.kernels.gate import Numerics
from ostinato.lm.backends import FULL, PrefillBackend
from ostinato.lm.contract import LmConfig
from ostinato.lm.decode import Decode
from ostinato.lm.engine import EncodeMedia, Engine
from ostinato.lm.kv_cache import PagePool
from ostinato.lm.models.qwen import Qwen
from ostinato.lm.prefill import Prefill
from ostinato.lm.scheduler import Scheduler
from ostinato.lm.slots import Slots
from ostinato.lm.step import RecordedStep, Step
from ostinato.recording.config import GraphConfig
from ostinato.recording.graphed import shared_runner
from ostinato.recording.ladder import Ladder
from ostinato.recording.runner import Runner

SCRATCH_PAGES = 1
SMALLEST_CHUNK = 32


@dataclass(frozen=True)
class EngineSizes:
    """``max_batch``: sequences at once; ``max_chunk``: tokens of one prefill step, shared by up to
    ``max_chunks`` sequences; ``max_length``: tokens of a prompt and its reply; ``max_waiting``:
    requests in the queue. ``decode_rungs`` and ``prefill_rungs``: sizes to record instead of the
    ladder's own; they reach ``max_batch`` and ``max_chunk``. Without ``cuts_prompts`` a prompt is
    prefilled in one step, so ``max_chunk`` is ``max_length`` at least.
    """

    num_pages: int
    max_length: int
    page_size: int = 16
    max_batch: int = 32
    max_chunk: int = 2048
    max_chunks: int = 4
    max_waiting: int = 256
    decode_rungs: tuple[int, ...] | None = None
    prefill_rungs: tuple[int, ...] | None = None
    cuts_prompts: bool = True

    def __post_init__(self) -> None:
        for name in ("num_pages", "max_length", "page_size", "max_batch", "max_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 1 <= self.max_chunks <= self.max_chunk:
            raise ConfigError(
                f"max_chunks is {self.max_chunks}; expected 1 to max_chunk, {self.max_chunk}"
            )
        if not self.cuts_prompts and self.max_chunk < self.max_length:
            raise ConfigError(
                f"max_chunk is {self.max_chunk}; expected max_length, {self.max_length}, or more "
                "where prompts are not cut"
            )
        if self.max_length > self.num_pages * self.page_size:
            raise ConfigError(
                f"max_length is {self.max_length}; expected at most the {self.num_pages} pages' "
                f"{self.num_pages * self.page_size} tokens, or one request could wait for ever"
            )
        for name, top in (("decode_rungs", self.max_batch), ("prefill_rungs", self.max_chunk)):
            rungs = getattr(self, name)
            if rungs is not None and Ladder(rungs).top != top:
                raise ConfigError(f"{name} ends at {rungs[-1]}; expected its top, {top}")

    @property
    def max_pages(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.max_length // self.page_size)

    @property
    def decode_ladder(self) -> Ladder:
        if self.decode_rungs is not None:
            return Ladder(self.decode_rungs)
        return Ladder.geometric(top=self.max_batch, ratio=1.5)

    @property
    def prefill_ladder(self) -> Ladder:
        if self.prefill_rungs is not None:
            return Ladder(self.prefill_rungs)
        bottom = min(SMALLEST_CHUNK, self.max_chunk)
        return Ladder.geometric(bottom=bottom, top=self.max_chunk, ratio=1.5, multiple=16)


def invariant_sizes(sizes: EngineSizes) -> EngineSizes:
    """One decode rung, and prompts cut at multiples of ``max_chunk``, a chunk to a step.

    A chunk runs on the smallest rung that holds it, which its own place in its prompt decides.
    """
    if sizes.max_chunk % sizes.page_size:
        raise ConfigError(
            f"max_chunk is {sizes.max_chunk}; expected a multiple of page_size, {sizes.page_size}, "
            "for numerics 'invariant'"
        )
    return replace(sizes, decode_rungs=(sizes.max_batch,), max_chunks=1)


def page_bytes(config: LmConfig, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page in all layers, keys and values."""
    return (
        2 * config.num_layers * page_size * config.num_kv_heads * config.head_dim * dtype.itemsize
    )


def make_cache(config: LmConfig, num_pages: int, page_size: int, like: Tensor) -> Tensor:
    """(layers, 2, pages, page_size, kv_heads, head_dim) of zeros: what padding reads is finite."""
    return torch.zeros(
        (
            config.num_layers,
            2,
            SCRATCH_PAGES + num_pages,
            page_size,
            config.num_kv_heads,
            config.head_dim,
        ),
        dtype=like.dtype,
        device=like.device,
    )


def make_slots(model: Qwen, sizes: EngineSizes) -> Slots:
    """One for each sequence that runs at once."""
    return Slots(sizes.max_batch, model.config.num_tokens, model.table.device)


def build_engine(
    model: Qwen,
    sizes: EngineSizes,
    *,
    graph: GraphConfig,
    eos_ids: frozenset[int],
    encode: EncodeMedia,
    num_levels: int,
    numerics: Numerics = "fast",
    backend: PrefillBackend = FULL,
    is_prefix_cache_on: bool = True,
    warm_up: bool = True,
    progress: Callable[[str], None] = lambda what: None,
) -> Engine:
    """An engine that has not started. ``num_levels``: DeepStack levels of a row of media;
    ``backend``: of prefill. Without ``is_prefix_cache_on`` every prompt is computed whole.

    With ``warm_up`` every rung is recorded now; without, every step is direct. ``progress`` is
    told what is being recorded. ``numerics="invariant"`` works with ``invariant_sizes``, and
    raises ``DeviceError`` where equal rows of a decode get different bytes.
    """
    is_invariant = numerics == "invariant"
    if is_invariant:
        sizes = invariant_sizes(sizes)
    cache = make_cache(model.config, sizes.num_pages, sizes.page_size, model.table)
    slots = make_slots(model, sizes)
    prefill, decode = _steps(model, sizes, cache, slots, graph, num_levels, numerics, backend)
    if warm_up:
        with torch.inference_mode():
            progress("prefill")
            prefill.record()
            progress("decode")
            decode.record()
    if is_invariant:
        with torch.inference_mode():
            decode.check_rows()
    scheduler = Scheduler(
        PagePool(sizes.num_pages, first=SCRATCH_PAGES),
        page_size=sizes.page_size,
        max_batch=sizes.max_batch,
        max_tokens=sizes.max_chunk,
        max_chunks=sizes.max_chunks,
        is_invariant=is_invariant,
        cuts_prompts=sizes.cuts_prompts,
        is_prefix_cache_on=is_prefix_cache_on,
    )
    return Engine(
        scheduler,
        prefill,
        decode,
        slots,
        page_size=sizes.page_size,
        max_length=sizes.max_length,
        max_waiting=sizes.max_waiting,
        eos_ids=eos_ids,
        encode=encode,
    )


def largest_recordings_bytes(
    model: Qwen,
    sizes: EngineSizes,
    *,
    graph: GraphConfig,
    num_levels: int,
    numerics: Numerics = "fast",
    backend: PrefillBackend = FULL,
) -> int:
    """Bytes of the slots, and of the largest prefill and decode recordings, made against a cache of
    scratch alone and dropped again: what must stay free beside the cache.
    """
    slots = make_slots(model, sizes)
    if graph.mode == "off":
        return slots.num_bytes
    if numerics == "invariant":
        sizes = invariant_sizes(sizes)
    budget = shared_runner(model.table.device, graph).budget
    before = budget.held()
    cache = make_cache(model.config, 0, sizes.page_size, model.table)
    prefill, decode = _steps(model, sizes, cache, slots, graph, num_levels, numerics, backend)
    try:
        with torch.inference_mode():
            prefill.record(largest_only=True)
            decode.record(largest_only=True)
        return slots.num_bytes + max(budget.held() - before, 0)
    finally:
        prefill.recorded.close()
        decode.recorded.close()


def make_prefill(
    backend: PrefillBackend,
    model: Qwen,
    sizes: EngineSizes,
    cache: Tensor,
    slots: Slots,
    graph: GraphConfig,
    num_levels: int,
    numerics: Numerics,
) -> Prefill:
    """The prefill of one cache; nothing is recorded yet."""
    like = model.table
    recorded = RecordedStep(
        "prefill",
        Step(model, cache, slots, backend.forward),
        _runner(graph, like) if backend.name != "disabled" else None,
        graph,
        numerics=numerics,
        is_breakable=backend.name == "breakable",
    )
    return Prefill(
        recorded,
        sizes.prefill_ladder,
        page_size=sizes.page_size,
        max_pages=sizes.max_pages,
        max_chunks=sizes.max_chunks,
        features_width=model.config.width * (1 + num_levels),
        device=like.device,
        dtype=like.dtype,
    )


def _steps(
    model: Qwen,
    sizes: EngineSizes,
    cache: Tensor,
    slots: Slots,
    graph: GraphConfig,
    num_levels: int,
    numerics: Numerics,
    backend: PrefillBackend,
) -> tuple[Prefill, Decode]:
    prefill = make_prefill(backend, model, sizes, cache, slots, graph, num_levels, numerics)
    runner = _runner(graph, model.table)
    decode = Decode(
        RecordedStep("decode", Step(model, cache, slots), runner, graph, numerics=numerics),
        sizes.decode_ladder,
        page_size=sizes.page_size,
        max_pages=sizes.max_pages,
    )
    return prefill, decode


def _runner(graph: GraphConfig, like: Tensor) -> Runner | None:
    return None if graph.mode == "off" else shared_runner(like.device, graph)
