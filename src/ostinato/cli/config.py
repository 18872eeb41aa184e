"""Flags and environment become frozen settings. The only file that reads ``os.environ``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ostinato.errors import ConfigError
from ostinato.serve.openpi.actions import parse_bounds
from ostinato.serve.openpi.intake import IntakeSettings
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.settings import MediaPolicy, ServerSettings

DEVICES = ("auto", "cuda", "cpu")
DTYPES = ("float32", "float16", "bfloat16")
RECORDING_SWITCHES = ("OSTINATO_VIT_CUDA_GRAPH", "SGLANG_VIT_ENABLE_CUDA_GRAPH")
"""Ours first: where both are set, ours decides."""
TOP_PATCHES = {"cuda": 16_384, "cpu": 1024}
"""The largest recorded size where no flag says another; on the CPU a warm-up takes long."""


PORTS = {"encoder": 30000, "chat": 30000, "policy": 8000}
"""Where a server listens unless a flag says otherwise: where its clients look."""


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How an encoder is loaded and recorded. ``None``: as stored, or by device."""

    dtype: str | None = None
    numerics: str = "fast"
    top_patches: int | None = None
    ladder_ratio: float = 1.25
    budget_bytes: int | None = None
    num_workers: int = 2
    max_image_pixels: int = 89_478_485
    quantization: str | None = None

    def top_patches_on(self, device: str) -> int:
        """The largest recorded size on a device."""
        return self.top_patches or TOP_PATCHES[device]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a command runs with. ``device`` may still be ``auto``; ``cli/device.py`` resolves it."""

    server: ServerSettings
    device: str
    is_recording_on: bool
    cuda_visible_devices: str | None
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    served_name: str | None = None
    cache_bytes: int = 0
    cache_dir: Path | None = None

    def cache_on(self, device: str) -> Path | None:
        """Where tables of times are kept, so that a second start is short; a CPU needs none."""
        return self.cache_dir if device == "cuda" else None


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
    port: int | None = None,
    api_key: str | None = None,
    environ: Mapping[str, str] | None = None,
    is_recording_on: bool = True,
    served_name: str | None = None,
    cache_bytes: int = 0,
    allow_files: Path | None = None,
    allow_hosts: Sequence[str] = (),
    encoder: EncoderSettings | None = None,
    **bounds: Any,
) -> Settings:
    """Flags as given, the environment where a flag is absent.

    ``bounds``: further fields of ``ServerSettings``.
    """
    environ = os.environ if environ is None else environ
    encoder = encoder or EncoderSettings()
    _one_of("device", device, DEVICES)
    if encoder.dtype is not None:
        _one_of("dtype", encoder.dtype, DTYPES)
    port = PORTS["encoder"] if port is None else port
    _in_range("port", port, 0, 65535)
    _in_range("cache-bytes", cache_bytes, 0, 1 << 50)
    if encoder.top_patches is not None:
        _in_range("top-patches", encoder.top_patches, 1, 1 << 24)
    _in_range("workers", encoder.num_workers, 1, 1024)
    for name, value in bounds.items():
        _in_range(name.replace("_", "-"), value, 1, 1 << 50)
    if allow_files is not None and not allow_files.is_dir():
        raise ConfigError(f"allow-files {str(allow_files)!r} is no directory")
    media = MediaPolicy(allow_files, frozenset(host.lower() for host in allow_hosts))
    api_key = api_key or environ.get("OSTINATO_API_KEY") or None
    return Settings(
        server=ServerSettings(host=host, port=port, api_key=api_key, media=media, **bounds),
        device=device,
        is_recording_on=is_recording_on and read_switch(environ),
        cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        encoder=encoder,
        served_name=served_name,
        cache_bytes=cache_bytes,
        cache_dir=Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ostinato",
    )


def resolve_robots(
    *,
    rename: Sequence[str] = (),
    resize_cameras: bool = False,
    keep_warm_s: float = 10.0,
    record: Path | None = None,
    record_bytes: int = 2**30,
    action_bounds: str | None = None,
    clamp_actions: bool = False,
) -> RobotSettings:
    """Flags of a policy server; ``rename`` holds ``SENT=DECLARED`` each."""
    pairs = [pair.partition("=") for pair in rename]
    for pair, (sent, _, name) in zip(rename, pairs, strict=True):
        if not sent or not name:
            raise ConfigError(f"rename {pair!r}: expected SENT=DECLARED")
    if not 0 <= keep_warm_s <= 86_400:
        raise ConfigError(f"keep-warm {keep_warm_s}: expected 0 (never) to 86400 seconds")
    _in_range("record-bytes", record_bytes, 1, 1 << 50)
    if clamp_actions and action_bounds is None:
        raise ConfigError("clamp-actions needs action-bounds to clamp to")
    bounds = None
    if action_bounds is not None:
        bounds = parse_bounds(action_bounds, is_clamped=clamp_actions)
    intake = IntakeSettings({sent: name for sent, _, name in pairs}, resize_cameras)
    return RobotSettings(intake, bounds, keep_warm_s, record, record_bytes)


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name} {value!r}: expected one of {', '.join(known)}")


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        what = "0 (any free port)" if name == "port" else str(low)
        raise ConfigError(f"{name} {value}: expected {what} to {high}")
