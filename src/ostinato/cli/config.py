"""Flags and environment become frozen settings. The only file that reads ``os.environ``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.errors import ConfigError
from ostinato.serve.settings import ServerSettings

DEVICES = ("auto", "cuda", "cpu")
RECORDING_SWITCHES = ("OSTINATO_VIT_CUDA_GRAPH", "SGLANG_VIT_ENABLE_CUDA_GRAPH")
"""Ours first: where both are set, ours decides."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a command runs with. ``device`` may still be ``auto``; ``cli/device.py`` resolves it."""

    server: ServerSettings
    device: str
    is_recording_on: bool
    cuda_visible_devices: str | None


def read_switch(environ: Mapping[str, str]) -> bool:
    """Whether recordings are made at all; on unless a switch says ``0``."""
    for name in RECORDING_SWITCHES:
        value = environ.get(name)
        if value is None:
            continue
        if value.strip().lower() in {"0", "false"}:
            return False
        if value.strip().lower() in {"1", "true"}:
            return True
        raise ConfigError(f"{name}={value!r}: expected 0 or 1")
    return True


def resolve_settings(
    *,
    device: str = "auto",
    host: str = "127.0.0.1",
    port: int = 30000,
    api_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Flags as given, the environment where a flag is absent."""
    environ = os.environ if environ is None else environ
    if device not in DEVICES:
        raise ConfigError(f"device {device!r}: expected one of {', '.join(DEVICES)}")
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port}: expected 0 (any free port) to 65535")
    api_key = api_key or environ.get("OSTINATO_API_KEY") or None
    return Settings(
        server=ServerSettings(host=host, port=port, api_key=api_key),
        device=device,
        is_recording_on=read_switch(environ),
        cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
    )
