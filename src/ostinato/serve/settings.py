"""What a server needs to know, resolved: no ``auto`` and no environment in here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MediaPolicy:
    """What a server may read besides the request itself: by default nothing.

    ``directory``: ``file://`` URLs below it are read. ``hosts``: names from which ``http(s)://``
    URLs are fetched, without following redirects; ``port`` only the scheme's own unless the entry
    says ``name:port``.
    """

    directory: Path | None = None
    hosts: frozenset[str] = frozenset()
    max_bytes: int = 64 * 2**20
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Bounds and access of one server. ``api_key`` is asked for on everything but health.

    ``max_body_bytes`` holds for a websocket message too. Pings go out every ``ping_interval_s``; a
    client that answers none for ``ping_timeout_s`` is gone.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    max_queued: int = 256
    max_queued_bytes: int = 4 * 2**30
    max_batch: int = 32
    max_items: int = 64
    max_body_bytes: int = 64 * 2**20
    num_workers: int = 8
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    media: MediaPolicy = field(default_factory=MediaPolicy)
