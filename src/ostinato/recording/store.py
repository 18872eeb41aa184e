"""What a second start need not find out again: timings, refusals, sizes seen. One file per machine.

The name of the file says GPU, driver and versions; inside, a region's section is named by its
callable and a hash of its code, so that changed code starts afresh. Results are never kept and the
gate is never skipped: weights may differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

MAX_ITEMS = 4096
"""Most items of one section; the oldest go first."""


class Store:
    """A JSON file of sections, each a small mapping. Missing or broken files are empty ones.

    ``put`` writes at once and as a whole, so that a crash leaves the former file.
    """

    def __init__(self, folder: str | Path, device: torch.device) -> None:
        self.path = Path(folder).expanduser() / f"{machine_tag(device)}.json"
        self._lock = threading.Lock()
        self._content: dict[str, dict[str, Any]] = self._read()

    def get(self, section: str) -> dict[str, Any]:
        """A copy of one section."""
        with self._lock:
            return dict(self._content.get(section, {}))

    def put(self, section: str, item: str, value: Any) -> None:
        """Keep one JSON value."""
        with self._lock:
            items = self._content.setdefault(section, {})
            items.pop(item, None)
            items[item] = value
            while len(items) > MAX_ITEMS:
                del items[next(iter(items))]
            self._write()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        is_right = isinstance(content, dict) and all(isinstance(v, dict) for v in content.values())
        return content if is_right else {}

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            json.dump(self._content, file, indent=1)
        os.replace(name, self.path)


def machine_tag(device: torch.device) -> str:
    """A file name that changes with GPU, driver, torch and CUDA version."""
    parts = [f"torch-{torch.__version__}"]
    if device.type == "cuda":
        parts += [
            torch.cuda.get_device_name(device),
            f"cuda-{torch.version.cuda}",
            f"driver-{_driver_version()}",
        ]
    else:
        parts.append("cpu")
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", "-".join(parts)).lower()


def _driver_version() -> object:
    return getattr(torch._C, "_cuda_getDriverVersion", lambda: None)()


def short_hash(text: str) -> str:
    """Sixteen hexadecimal digits that name a key in the store."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Section:
    """What is remembered of one region: measured times and refusals, by printed key."""

    def __init__(self, store: Store | None, name: str) -> None:
        self._store = store
        self._name = name
        self._known = store.get(name) if store is not None else {}

    def times(self, key: object) -> tuple[float, float] | None:
        """Microseconds of a recorded and of a direct call, as measured by an earlier process."""
        found = self._known.get(short_hash(str(key)), {}).get("times_us")
        return (float(found[0]), float(found[1])) if found else None

    def refusal(self, key: object) -> str | None:
        """Why an earlier process could not record this key, with the same code."""
        found = self._known.get(short_hash(str(key)), {}).get("refused")
        return str(found) if found else None

    def used_rungs(self, key: object) -> list[tuple[int, ...]]:
        """Rungs of one family that served calls of an earlier process; empty when none is known."""
        found = self._known.get(f"ladder {short_hash(str(key))}", {}).get("rungs", [])
        return [tuple(int(n) for n in rung) for rung in found]

    def keep_rung(self, key: object, rung: tuple[int, ...]) -> None:
        """A rung has served a call."""
        known = self.used_rungs(key)
        if rung not in known:
            rungs = [list(r) for r in [*known, rung]]
            self._put(f"ladder {short_hash(str(key))}", {"rungs": rungs})

    def keep_times(self, key: object, recorded_us: float | None, direct_us: float | None) -> None:
        if recorded_us is not None and direct_us is not None:
            self._keep(key, {"times_us": [round(recorded_us, 2), round(direct_us, 2)]})

    def keep_refusal(self, key: object, reason: str) -> None:
        self._keep(key, {"refused": reason})

    def _keep(self, key: object, value: dict[str, Any]) -> None:
        self._put(short_hash(str(key)), value)

    def _put(self, item: str, value: dict[str, Any]) -> None:
        if self._store is not None and self._known.get(item) != value:
            self._known[item] = value
            self._store.put(self._name, item, value)
