"""Memory pools that are not needed any more, kept until nobody captures a graph.

torch's allocator ends the process when a ``torch.cuda.MemPool`` is destroyed while any thread
captures, and captures are begun by others too: ``torch.compile(mode="reduce-overhead")`` has been
seen to collect such a pool as garbage in the middle of its own. So a pool is never destroyed where
it is dropped.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

_left: list[Any] = []
_lock = threading.Lock()


def leave(pool: Any) -> None:
    """Take over a pool from whoever does not need it any more."""
    _left.append(pool)


def give_back() -> None:
    """Destroy what was left, unless a graph is being captured: then a later call does."""
    with _lock:
        if not _left:
            return
        try:
            torch._C._cuda_emptyCache()  # refuses as the destructor would, but by an exception
        except RuntimeError:
            return
        _left.clear()
