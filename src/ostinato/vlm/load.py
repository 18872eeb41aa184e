"""``load_chat``: a checkpoint or a shipped tiny model to a ``Chat``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ostinato.errors import ConfigError, DeviceError, WeightsError
from ostinato.kernels.gate import Numerics
from ostinato.lm.backends import Compiler
from ostinato.lm.backends import Name as PrefillName
from ostinato.lm.build import (
    EngineSizes,
    build_engine,
    largest_recordings_bytes,
    page_bytes,
)
from ostinato.lm.contract import SamplingParams
from ostinato.lm.fastest import choose_backend
from ostinato.lm.load import load_decoder
from ostinato.lm.models.qwen import Qwen
from ostinato.recording.config import GraphConfig
from ostinato.vision.encoder import load_encoder
from ostinato.vision.preprocess import Limits
from ostinato.vision.rungs import top_patches_of
from ostinato.vlm.chat import Chat, ChatConfig, encode_media
from ostinato.vlm.defaults import sampling_defaults
from ostinato.vlm.prompt import Assembler, PromptConfig
from ostinato.weights.chat_tokenizer import (
    ByteChatTokenizer,
    ChatTokenizer,
    PublishedChatTokenizer,
)
from ostinato.weights.config import read_config, read_json
from ostinato.weights.device import find_device
from ostinato.weights.files import find_shipped, open_files
from ostinato.weights.loaded import module_config

CPU_LENGTH = 2048
"""Without a GPU attention is dense over the longest sequence's pages: they are kept few."""
CPU_SEQUENCES = 4
CPU_RUNGS = (32, 128)
CHUNK = 2048
WHOLE = -1
"""As ``max_chunk``: prompts are not cut."""
INVARIANT_CHUNK = 512
"""Prompts are cut at its multiples, and share their beginnings in such units."""


def load_chat(
    model: str | Path | nn.Module,
    *,
    tokenizer: ChatTokenizer | None = None,
    device: str | torch.device = "auto",
    dtype: torch.dtype | None = None,
    graph: GraphConfig | None = None,
    numerics: Numerics = "fast",
    mem_fraction_static: float = 0.85,
    num_pages: int | None = None,
    page_size: int = 16,
    max_batch: int | None = None,
    max_chunk: int | None = None,
    max_length: int | None = None,
    max_waiting: int = 256,
    decode_rungs: tuple[int, ...] | None = None,
    prefill_rungs: tuple[int, ...] | None = None,
    prefill_backend: PrefillName | None = None,
    prefill_compiler: Compiler = "eager",
    is_prefix_cache_on: bool = True,
    top_patches: int | None = None,
    workers: int = 2,
    limits: Limits | None = None,
    warm_up: bool = True,
    progress: Callable[[str], None] = lambda what: None,
) -> Chat:
    """Load Qwen2.5-VL or Qwen3-VL, put encoder, prefill and decode behind recordings, and serve.

    ``model``: a checkpoint directory, a hub name, a shipped tiny model, or a loaded transformers
    model, with which a ``tokenizer`` must be given (else it is the checkpoint's) and whose weights
    must not change afterwards (they are copied in part). ``num_pages`` of
    ``page_size`` tokens: the cache; ``None`` is what ``mem_fraction_static`` of a GPU leaves after
    weights and recordings, on the CPU enough for four of the longest requests. ``max_batch``:
    sequences at once; ``max_chunk``: tokens of one prefill step, ``-1`` the longest prompt's, so
    that none is cut (with ``max_length``: a prefill as large is recorded); ``max_length``: of a
    request, at most what the checkpoint allows; ``is_prefix_cache_on``: equal beginnings of prompts
    are computed once; ``prefill_backend``: how prefill is recorded (``full``,
    ``breakable``, ``tc_piecewise`` with ``prefill_compiler`` ``eager`` or ``inductor``,
    ``disabled``), ``None`` is the fastest on this machine; ``top_patches``: of the largest recorded
    encoder call. ``warm_up``: record every rung now (else all is direct). ``progress`` is told what
    is being recorded. ``numerics="invariant"``: a request's tokens and log-probabilities are
    bit-exact whatever else is served; it costs joint prefill and smaller decode rungs.
    Raises ``WeightsError``, ``ConfigError`` or ``DeviceError``.
    """
    if numerics not in ("fast", "reference", "invariant"):
        raise ConfigError(f"numerics is {numerics!r}; expected fast, reference or invariant")
    if not 0.0 < mem_fraction_static < 1.0:
        raise ConfigError(f"mem_fraction_static is {mem_fraction_static}; expected 0 to 1")
    where = find_device(device)
    if max_chunk == WHOLE and max_length is None:
        raise ConfigError("max_chunk is -1; expected with max_length: so large a step is recorded")
    graph = graph or GraphConfig()
    config, tokenizer, sampling = _published(model, tokenizer)
    decoder = load_decoder(model, device=where, dtype=dtype)
    encoder = load_encoder(
        model,
        device=where,
        dtype=decoder.table.dtype,
        graph=graph,
        numerics=numerics,
        top_patches=top_patches or top_patches_of(where.type),
        warm_up=False,
        workers=workers,
        limits=limits,
    )
    try:
        if warm_up:
            encoder.warm_up(is_brief=True)
        vision = encoder.config
        if vision.out_width != decoder.config.width:
            raise WeightsError(
                f"the tower's rows are {vision.out_width} wide, the decoder's "
                f"{decoder.config.width}"
            )
        assembler = Assembler(
            prompt_config(config, vision.merge_size), tokenizer, encoder.preprocessor
        )
        num_levels = len(vision.deepstack_blocks)
        is_cpu = where.type == "cpu"
        chunk = INVARIANT_CHUNK if numerics == "invariant" else CHUNK
        most = decoder.config.max_positions
        longest = min(max_length or (CPU_LENGTH if is_cpu else most), most)
        fewest = -(-longest // page_size)
        is_whole = max_chunk == WHOLE
        if is_whole:
            max_chunk = max(fewest * page_size, *(prefill_rungs or (0,)))
            prefill_rungs = prefill_rungs and tuple(sorted({*prefill_rungs, max_chunk}))
        sizes = EngineSizes(
            num_pages=num_pages or (CPU_SEQUENCES * fewest if is_cpu else fewest),
            max_length=min(longest, (num_pages or fewest) * page_size),
            page_size=page_size,
            max_batch=max_batch or (decode_rungs or ((8,) if is_cpu else (32,)))[-1],
            max_chunk=max_chunk or (prefill_rungs or (CPU_RUNGS if is_cpu else (chunk,)))[-1],
            max_chunks=2 if is_cpu else 4,
            max_waiting=max_waiting,
            decode_rungs=decode_rungs,
            prefill_rungs=prefill_rungs or (CPU_RUNGS if is_cpu and max_chunk is None else None),
            cuts_prompts=not is_whole,
        )
        backend = choose_backend(
            prefill_backend,
            decoder,
            sizes,
            graph=graph,
            num_levels=num_levels,
            numerics=numerics,
            compiler=prefill_compiler,
        )
        if num_pages is None and not is_cpu:
            recordings = largest_recordings_bytes(
                decoder,
                sizes,
                graph=graph,
                num_levels=num_levels,
                numerics=numerics,
                backend=backend,
            )
            pages = _pages_left(decoder, page_size, mem_fraction_static, recordings)
            length = min(longest, pages * page_size)
            sizes = replace(sizes, num_pages=pages, max_length=length)
        engine = build_engine(
            decoder,
            sizes,
            graph=graph,
            eos_ids=tokenizer.eos_ids,
            encode=partial(encode_media, encoder),
            num_levels=num_levels,
            numerics=numerics,
            backend=backend,
            is_prefix_cache_on=is_prefix_cache_on,
            warm_up=warm_up,
            progress=progress,
        )
    except BaseException:
        encoder.close()
        raise
    engine.start()
    about = ChatConfig(
        model=type(model).__name__ if isinstance(model, nn.Module) else str(model),
        model_type=decoder.config.model_type,
        max_length=sizes.max_length,
        lm=decoder.config,
        vision=vision,
        eos_ids=tokenizer.eos_ids,
        sampling=sampling,
    )
    return Chat(about, engine, encoder, assembler, tokenizer)


def prompt_config(config: dict[str, Any], merge_size: int) -> PromptConfig:
    """What a published ``config.json`` says about placeholders and time."""
    vision = config.get("vision_config") or {}
    ids = {}
    for name, default in (("image_token_id", 151655), ("video_token_id", 151656)):
        ids[name] = config.get(name, default)
        if type(ids[name]) is not int:
            raise WeightsError(f"{name} is {ids[name]!r}; expected a token id")
    return PromptConfig(
        **ids,
        merge_size=merge_size,
        frame_by_frame=config["model_type"] == "qwen3_vl",
        tokens_per_second=int(vision.get("tokens_per_second", 4)),
    )


def _published(
    model: str | Path | nn.Module, given: ChatTokenizer | None
) -> tuple[dict[str, Any], ChatTokenizer, SamplingParams]:
    if isinstance(model, nn.Module):
        if given is None:
            raise ConfigError("a loaded module has no tokenizer; expected one as tokenizer=")
        return module_config(model), given, SamplingParams()
    shipped = find_shipped(model) if isinstance(model, str) else None
    if shipped is not None:
        return read_json(shipped, str(model)), given or ByteChatTokenizer(), SamplingParams()
    files = open_files(model)
    tokenizer = given or PublishedChatTokenizer(model, files)
    return read_config(files), tokenizer, sampling_defaults(files)


def _pages_left(decoder: Qwen, page_size: int, mem_fraction: float, recordings: int) -> int:
    """Pages for what weights and encoder leave of a GPU's share, and recordings will.

    The ladder's smaller rungs share the largest one's memory but for their inputs and results,
    which shrink with the rung by a third each: altogether twice its own.
    """
    device = decoder.table.device
    free, total = torch.cuda.mem_get_info(device)
    left = free - int((1.0 - mem_fraction) * total) - 3 * recordings
    pages = left // page_bytes(decoder.config, page_size, decoder.table.dtype)
    if pages < 1:
        raise DeviceError(
            f"{free} bytes are free on {device}: with mem_fraction_static {mem_fraction} and "
            f"{3 * recordings} bytes for recordings nothing is left for the cache"
        )
    return pages
