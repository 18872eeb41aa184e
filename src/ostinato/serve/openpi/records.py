"""``--record DIR``: the newest requests and replies, one file each, in the wire's own encoding.

Importable without torch; nothing here can be executed when it is read. A file is written whole
under another name first. Requests never wait: what the disk cannot take in time is left out and
counted.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ostinato.errors import ConfigError
from ostinato.serve.openpi.codec import CodecError, CodecLimits, packb, read_map

logger = logging.getLogger(__name__)

FORMAT = 1
SUFFIX = ".exchange"
MAX_WAITING = 64
_LIMITS = CodecLimits(max_bytes=2**28)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its reply as they went over the wire. ``when_s``: Unix time of the reply.

    ``dialect``: how the request is read. ``content_type``: of both, for a generation. ``server``:
    plain values that the answer depends on besides the request.
    """

    dialect: str
    content_type: str
    request: bytes
    reply: bytes
    stage_ms: dict[str, float]
    when_s: float
    server: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """A ring of files: the oldest goes when ``max_bytes`` are exceeded. One thread writes."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        *,
        server: dict[str, Any],
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"record {str(directory)!r}: {error.strerror}") from None
        self._directory = directory
        self._max_bytes = max_bytes
        self._server = server
        self._on_drop = on_drop
        self._held = deque((path, path.stat().st_size) for path in list_records(directory))
        self._num_bytes = sum(size for _, size in self._held)
        self._next = int(self._held[-1][0].stem) + 1 if self._held else 0
        self._waiting: queue.Queue[Exchange | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="ostinato-recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, exchange: Exchange) -> None:
        """Hand an exchange over; never waits."""
        try:
            self._waiting.put_nowait(exchange)
        except queue.Full:
            self._on_drop()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Write what waits and end."""
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (exchange := self._waiting.get()) is not None:
            try:
                self._write(exchange)
            except OSError as error:
                self._on_drop()
                logger.error("not recorded: %s", error)

    def _write(self, exchange: Exchange) -> None:
        fields = asdict(exchange) | {"format": FORMAT, "server": self._server}
        data = packb(fields)
        path = self._directory / f"{self._next:010d}{SUFFIX}"
        partial = path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.rename(path)
        self._next += 1
        self._held.append((path, len(data)))
        self._num_bytes += len(data)
        while self._num_bytes > self._max_bytes and len(self._held) > 1:
            oldest, size = self._held.popleft()
            oldest.unlink(missing_ok=True)
            self._num_bytes -= size


def list_records(directory: Path) -> list[Path]:
    """The files of a ring, oldest first."""
    return sorted(path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdigit())


def read_record(path: Path) -> Exchange:
    """One file. Raises ``ConfigError`` naming the file and what is wrong with it."""
    names = set(Exchange.__slots__)
    try:
        found = read_map(path.read_bytes(), _LIMITS)
    except (OSError, CodecError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if found.pop("format", None) != FORMAT or set(found) != names:
        raise ConfigError(f"{path}: {sorted(found)}; expected format {FORMAT} with {sorted(names)}")
    return Exchange(**found)


def read_records(directory: Path) -> Iterator[Exchange]:
    """All of a ring, oldest first. Raises ``ConfigError`` where there is none."""
    paths = list_records(directory) if directory.is_dir() else []
    if not paths:
        raise ConfigError(f"replay {str(directory)!r}: expected a directory with *{SUFFIX} files")
    return map(read_record, paths)
