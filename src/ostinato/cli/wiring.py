"""Joins a model to a server: adapters between the service protocol and torch.

The only place where ``serve`` and the rest of the package meet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Protocol

import torch

import ostinato
from ostinato.assets.photograph import NAME, photograph_bytes
from ostinato.assets.tiny import PATCH, make_tiny_encoder, pixels_from_image
from ostinato.cli.config import Settings
from ostinato.errors import ConfigError, InputError
from ostinato.serve.images import decode_image
from ostinato.serve.service import Reply, Request, Service

MODELS = ("tiny-photograph",)


class Why(Protocol):
    """How the last call was served."""

    @property
    def route(self) -> str: ...
    @property
    def reason(self) -> str: ...


class GraphedCall(Protocol):
    """The part of ``ostinato.Graphed`` that the server uses."""

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor: ...
    def record(self, pixels: torch.Tensor) -> Any: ...
    def why(self) -> Why | None: ...
    def stats(self) -> Any: ...
    def close(self) -> None: ...


class GraphFactory(Protocol):
    """Makes a recorded call of a callable."""

    def __call__(
        self, fn: Callable[..., Any], *, name: str, is_recording_on: bool
    ) -> GraphedCall: ...


def public_graph(fn: Callable[..., Any], *, name: str, is_recording_on: bool) -> GraphedCall:
    """``ostinato.graph`` with the one switch that turns recordings off."""
    config = ostinato.GraphConfig(mode="auto" if is_recording_on else "off")
    graphed: GraphedCall = ostinato.graph(fn, name=name, config=config)
    return graphed


class TinyPhotographService:
    """A tiny encoder, recorded for the shipped photograph at start-up; any image is served."""

    name = "tiny-photograph"

    def __init__(self, *, device: str, is_recording_on: bool, graph: GraphFactory) -> None:
        self._device = torch.device(device)
        self._is_recording_on = is_recording_on
        self._graph = graph
        self._call: GraphedCall | None = None
        self._events: list[str] = []
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Build the encoder and record it for the photograph."""
        encoder = make_tiny_encoder(str(self._device))
        self._call = self._graph(encoder, name=self.name, is_recording_on=self._is_recording_on)
        if not self._is_recording_on:
            self._note("recordings are switched off: every call is served directly")
            return
        image = decode_image(photograph_bytes(), max_pixels=2**20)
        pixels = pixels_from_image(image).to(self._device)
        began_s = time.monotonic()
        with torch.inference_mode():
            self._call.record(pixels)
        took_ms = (time.monotonic() - began_s) * 1e3
        self._note(f"recorded {self.name} for {NAME} {tuple(pixels.shape)} in {took_ms:.0f} ms")

    def serve(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        """One call per image; an image that cannot be served does not harm its neighbours."""
        results: list[Reply | Exception] = []
        for request in requests:
            try:
                results.append(self._serve_one(request))
            except Exception as error:
                results.append(error)
        return results

    def _serve_one(self, request: Request) -> Reply:
        assert self._call is not None
        image = request.inputs["image"]
        if min(image.shape[:2]) < PATCH:
            height, width = image.shape[:2]
            raise InputError(f"the image is {width} x {height} pixels, at least {PATCH} are needed")
        began_s = time.monotonic()
        pixels = pixels_from_image(image)
        prepared_s = time.monotonic()
        with torch.inference_mode():
            output = self._call(pixels.to(self._device))
            tokens = output.cpu().numpy()
        stage_ms = {
            "prepare": (prepared_s - began_s) * 1e3,
            "encode": (time.monotonic() - prepared_s) * 1e3,
        }
        why = self._call.why()
        assert why is not None  # this thread has just made a call
        return Reply({"tokens": tokens}, why.route, why.reason, stage_ms)

    def snapshot(self) -> Mapping[str, float]:
        """The runtime's own counters, those that are plain numbers."""
        if self._call is None:
            return {}
        try:
            stats = self._call.stats()
        except ConfigError:  # nothing was called yet, so there is nothing to count
            return {}
        if is_dataclass(stats) and not isinstance(stats, type):
            stats = asdict(stats)
        numbers = dict(stats) if isinstance(stats, Mapping) else {}
        return {k: float(v) for k, v in numbers.items() if isinstance(v, int | float)}

    def events(self) -> list[str]:
        """Sentences since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Free the recordings."""
        if self._call is not None:
            self._call.close()

    def _note(self, sentence: str) -> None:
        with self._lock:
            self._events.append(sentence)


def load_service(
    model: str, settings: Settings, *, device: str, graph: GraphFactory = public_graph
) -> Service:
    """The service for a model name."""
    if model not in MODELS:
        raise ConfigError(f"model {model!r} is not known; this build serves: {', '.join(MODELS)}")
    return TinyPhotographService(
        device=device, is_recording_on=settings.is_recording_on, graph=graph
    )
