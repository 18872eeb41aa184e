"""What a server needs to know, resolved: no ``auto`` and no environment in here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Bounds and access of one server. ``api_key`` is asked for on everything but health."""

    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    max_queued: int = 64
    max_batch: int = 8
    max_body_bytes: int = 32 * 2**20
    max_image_pixels: int = 64 * 2**20
