"""Prefills of tiny decoders, and inputs that stay on the page of scratch."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.lm.backends import Name, PrefillBackend
from ostinato.lm.build import EngineSizes, make_cache, make_prefill, make_slots
from ostinato.lm.models.qwen import Qwen
from ostinato.lm.prefill import Prefill
from ostinato.lm.step import Inputs
from ostinato.recording.config import GraphConfig

LEVELS = {"tiny-qwen3-vl": 3, "tiny-qwen2.5-vl": 0}
SIZES = EngineSizes(
    num_pages=16,
    page_size=4,
    max_length=64,
    max_batch=2,
    max_chunk=32,
    max_chunks=2,
    prefill_rungs=(8, 20, 32),
    decode_rungs=(2,),
)
BACKENDS: tuple[Name, ...] = ("full", "breakable", "tc_piecewise")


def prefill_of(model: Qwen, backend: PrefillBackend, graph: GraphConfig, levels: int) -> Prefill:
    cache = make_cache(model.config, SIZES.num_pages, SIZES.page_size, model.table)
    slots = make_slots(model, SIZES)
    return make_prefill(backend, model, SIZES, cache, slots, graph, levels, "fast")


def inputs_of(prefill: Prefill, model: Qwen, size: int, levels: int, seed: int) -> Inputs:
    """A prompt of ``size`` tokens on the page of scratch; every third token shows media."""
    generator = torch.Generator().manual_seed(seed)
    inputs = prefill.scratch(size)
    inputs.ids[:] = torch.randint(0, 256, (size,), generator=generator)
    inputs.batch.positions[:] = torch.arange(size)
    inputs.batch.rows[:] = size - 1
    if seed % 2 == 0:
        return inputs
    at = torch.arange(size)
    features = torch.randn(size, model.config.width * (1 + levels), generator=generator)
    features = features.to(model.table)
    return inputs._replace(sources=torch.where(at % 3 == 0, at // 3, -1), features=features)


@torch.inference_mode()
def logits_of(prefill: Prefill, model: Qwen, levels: int) -> list[Tensor]:
    """Of 16 calls, 12 of which differ: text and media, sizes up and down."""
    found = []
    for size in (32, 8, 20, 8):
        for seed in (0, 1, 2, 3):
            inputs = inputs_of(prefill, model, size, levels, seed)
            found.append(prefill.recorded(inputs, size)[1].clone())
    return found


def num_pieces(prefill: Prefill) -> set[int]:
    """Of every recording."""
    return {
        entry.recorded.num_pieces
        for served in prefill.recorded._kinds.values()
        for entry in served.recordings.entries()
    }
