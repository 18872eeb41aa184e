"""Joins a vision encoder to a server: the adapter between the service protocol and torch.

The only place where ``serve`` and the rest of the package meet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

import ostinato
from ostinato.cli.config import Settings
from ostinato.errors import InputError
from ostinato.recording.stats import Stats
from ostinato.serve.service import Reply, Request, Service
from ostinato.vision.content_cache import ContentCache, content_key
from ostinato.vision.contract import VisionConfig
from ostinato.vision.load import tower_config
from ostinato.vision.preprocess import (
    ImageItem,
    ImageOptions,
    Limits,
    Patches,
    PreprocessConfig,
    VideoItem,
    VideoOptions,
    default_config,
)
from ostinato.vision.preprocess import load_config as load_processing
from ostinato.weights.config import read_config, read_json
from ostinato.weights.files import find_shipped, open_files

if TYPE_CHECKING:
    from ostinato.kernels.gate import Numerics

Progress = Callable[[int, int], None]
IMAGE_OPTIONS = frozenset({"min_pixels", "max_pixels"})
VIDEO_OPTIONS = IMAGE_OPTIONS | {"fps", "num_frames", "min_frames", "max_frames"}


def make_item(kind: str, content: Any, options: Mapping[str, Any]) -> ImageItem | VideoItem:
    """An item with the options that concern its kind."""
    if kind == "video":
        chosen = {name: value for name, value in options.items() if name in VIDEO_OPTIONS}
        return VideoItem(content, VideoOptions(**chosen))
    chosen = {name: value for name, value in options.items() if name in IMAGE_OPTIONS}
    return ImageItem(content, ImageOptions(**chosen))


def to_host(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A float32 copy on the host, waited for; refuses what is not finite."""
    array = np.array(tensor.detach().float().cpu().numpy())
    if not np.isfinite(array).all():
        raise RuntimeError("the encoder's result is not finite")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting:
    """A prepared item: its patches, and where its result is kept."""

    patches: Patches
    key: Hashable | None


class EncoderService:
    """A loaded encoder behind the service protocol. Items are single images and videos."""

    def __init__(
        self,
        name: str,
        encoder: ostinato.Encoder,
        *,
        is_recording_on: bool = True,
        cache_bytes: int = 0,
        facts: Mapping[str, Any] | None = None,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self._name = name
        self._encoder = encoder
        self._is_recording_on = is_recording_on
        self._cache: ContentCache[Reply] | None = None
        if cache_bytes:
            self._cache = ContentCache(cache_bytes, _reply_bytes)
        self._num_hits = 0
        self._facts = dict(facts or {})
        self._progress = progress
        self._events: list[str] = []
        self._seen_refusals: set[str] = set()
        self._lock = threading.Lock()
        processing = encoder.preprocessor.config
        self._fingerprint = f"{name} {encoder.config} {encoder.dtype} {processing}"

    @property
    def name(self) -> str:
        return self._name

    def describe(self) -> Mapping[str, Any]:
        """Sizes that a client needs to know what it sends and gets."""
        config, processing = self._encoder.config, self._encoder.preprocessor.config
        bounds = {
            kind: {"min_pixels": part.min_pixels, "max_pixels": part.max_pixels}
            for kind, part in (("image", processing.image), ("video", processing.video))
        }
        return {
            "task": "token_embed",
            "model_type": config.model_type,
            "dtype": str(self._encoder.dtype).removeprefix("torch."),
            "patch_size": config.patch_size,
            "temporal_patch_size": config.temporal_patch_size,
            "merge_size": config.merge_size,
            "embedding_width": config.out_width,
            "deepstack_levels": len(config.deepstack_blocks),
            "max_decoded_pixels": self._encoder.preprocessor.limits.max_decoded_pixels,
            "pixel_limits": bounds,
            **self._facts,
        }

    def warm_up(self) -> None:
        """Record the ladder."""
        if not self._is_recording_on:
            self._note("recordings are switched off: every call is served directly")
            return
        began_s = time.monotonic()
        self._encoder.warm_up(self._progress)
        stats, took_s = self._encoder.stats(), time.monotonic() - began_s
        held = f"{stats.device_bytes_held / 2**20:.0f} MiB"
        self._note(f"recorded {stats.num_recordings} sizes in {took_s:.1f} s, {held} held")

    def prepare(self, requests: Sequence[Request]) -> list[Request | Reply | Exception]:
        """Decode and resize in the preprocessor's threads, but for what the cache holds."""
        results: list[Request | Reply | Exception] = []
        missing: list[int] = []
        items: list[ImageItem | VideoItem] = []
        keys: list[Hashable | None] = []
        for request in requests:
            item = make_item(**request.inputs)
            key = self._key(request.inputs["kind"], item)
            held = None if key is None or self._cache is None else self._cache.peek(key)
            if held is not None:
                results.append(held)
                continue
            missing.append(len(results))
            results.append(request)
            items.append(item)
            keys.append(key)
        with self._lock:
            self._num_hits += len(requests) - len(items)
        prepared = self._encoder.preprocessor.batch(items) if items else []
        for place, patches, key in zip(missing, prepared, keys, strict=True):
            if isinstance(patches, InputError):
                results[place] = patches
            else:
                inputs = {"waiting": _Waiting(patches, key), "values": patches.pixel_values}
                results[place] = Request(inputs)
        return results

    def serve(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        """One call of the encoder for all; where it fails, one for each."""
        waiting: list[_Waiting] = [request.inputs["waiting"] for request in requests]
        try:
            return list(self._encode(waiting))
        except Exception as error:
            if len(waiting) == 1:
                return [error]
        results: list[Reply | Exception] = []
        for item in waiting:
            try:
                results += self._encode([item])
            except Exception as error:
                results.append(error)
        return results

    def _encode(self, waiting: Sequence[_Waiting]) -> list[Reply]:
        """Equal keys are encoded once."""
        places: dict[Hashable, int] = {}
        own = [places.setdefault(item.key or id(item), len(places)) for item in waiting]
        unique: dict[int, _Waiting] = {}
        for place, item in zip(own, waiting, strict=True):
            unique.setdefault(place, item)
        stage_ms: dict[str, float] = {}
        encoded = self._encoder.encode_items(
            [item.patches for item in unique.values()], stage_ms=stage_ms
        )
        began_s = time.perf_counter()
        outputs = [_arrays(result) for result in encoded]  # waits for the device
        stage_ms["replay"] += (time.perf_counter() - began_s) * 1e3
        made: list[Reply] = []
        for item, result, arrays in zip(unique.values(), encoded, outputs, strict=True):
            facts = {"kind": item.patches.kind, "grid_thw": list(result.grid_thw)}
            made.append(Reply(arrays, result.route.route, _reason(result), {}, facts))
            self._keep(item.key, made[-1])
        return [
            replace(made[place], stage_ms={**_own_stages(item.patches), **stage_ms})
            for place, item in zip(own, waiting, strict=True)
        ]

    def _key(self, kind: str, item: ImageItem | VideoItem) -> Hashable | None:
        if self._cache is None:
            return None
        return content_key(item.source, kind=kind, options=item.options, model=self._fingerprint)

    def _keep(self, key: Hashable | None, reply: Reply) -> None:
        if self._cache is not None and key is not None:
            held = replace(reply, route="cache", reason=f"encoded before by route {reply.route}")
            self._cache.get(key, lambda: held)

    def snapshot(self) -> Mapping[str, float]:
        """The runtime's counters, those that are plain numbers, and the cache's."""
        numbers = encoder_numbers(self._encoder.stats())
        if self._cache is not None:
            cache = self._cache.stats()
            numbers |= {
                "cache_hits": float(self._num_hits),
                "cache_misses": float(cache.num_misses),
                "cache_evicted": float(cache.num_evicted),
                "cache_oversized": float(cache.num_oversized),
                "cache_bytes": float(cache.num_bytes),
            }
        return numbers

    def events(self) -> list[str]:
        """Sentences since the last call, new refusals among them."""
        with self._lock:
            for key, reason in self._encoder.stats().refusals.items():
                if key not in self._seen_refusals:
                    self._seen_refusals.add(key)
                    self._events.append(f"not recorded, served directly: {key}: {reason}")
            events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Free the recordings and stop the preprocessing threads."""
        self._encoder.close()

    def _note(self, sentence: str) -> None:
        with self._lock:
            self._events.append(sentence)


def encoder_numbers(stats: Stats) -> dict[str, float]:
    """What a tower's recordings count, by the names of ``/metrics``; every server has the same."""
    numbers = {
        name: float(value) for name, value in vars(stats).items() if isinstance(value, int | float)
    }
    numbers |= {f"calls_{route}": float(count) for route, count in stats.calls.items()}
    return numbers | {"waste": stats.waste}


def _arrays(result: ostinato.Encoded) -> dict[str, np.ndarray[Any, Any]]:
    levels = {f"deepstack.{k}": to_host(level) for k, level in enumerate(result.deepstack)}
    return {"embeddings": to_host(result.embeddings), **levels}


def _reason(result: ostinato.Encoded) -> str:
    sizes = ", ".join(f"{size} {axis}" for axis, size in result.route.rung)
    return f"{result.route.reason} ({sizes})" if sizes else result.route.reason


def _own_stages(patches: Patches) -> dict[str, float]:
    return {"decode": patches.decode_ms, "resize": patches.transform_ms}


def _reply_bytes(reply: Reply) -> int:
    return sum(array.nbytes for array in reply.outputs.values())


def load_encoder(
    model: str, settings: Settings, *, device: str, warm_up: bool = True, progress: Progress
) -> ostinato.Encoder:
    """The encoder that the flags and the switches ask for."""
    chosen = settings.encoder
    graph = ostinato.GraphConfig(
        mode="auto" if settings.is_recording_on else "off",
        budget_bytes=chosen.budget_bytes,
        ladder_ratio=chosen.ladder_ratio,
        cache_dir=settings.cache_on(device),
    )
    return ostinato.load_encoder(
        model,
        device=device,
        dtype=None if chosen.dtype is None else getattr(torch, chosen.dtype),
        graph=graph,
        numerics=cast("Numerics", chosen.numerics),  # load_encoder refuses another name
        quantization=chosen.quantization,
        top_patches=chosen.top_patches_on(device),
        warm_up=warm_up,
        workers=chosen.num_workers,
        limits=Limits(max_decoded_pixels=chosen.max_image_pixels),
        progress=progress,
    )


def load_service(
    model: str,
    settings: Settings,
    *,
    device: str,
    progress: Progress = lambda done, total: None,
) -> Service:
    """The service for a model; its weights are loaded, nothing is recorded yet."""
    encoder = load_encoder(model, settings, device=device, warm_up=False, progress=progress)
    return EncoderService(
        settings.served_name or model,
        encoder,
        is_recording_on=settings.is_recording_on,
        cache_bytes=settings.cache_bytes,
        facts={"largest_recorded_patches": settings.encoder.top_patches_on(device)},
        progress=progress,
    )


def tower_and_processing(model: str) -> tuple[VisionConfig, PreprocessConfig]:
    """Sizes and processing of a model, from its configuration alone; no weights are read."""
    shipped = find_shipped(model)
    config = read_json(shipped, model) if shipped else read_config(open_files(model))
    family, fields = tower_config(config)
    tower = family.read_config(fields)
    is_local = shipped is None and Path(model).is_dir()
    kind = tower.model_type
    return tower, load_processing(model, kind) if is_local else default_config(kind)
