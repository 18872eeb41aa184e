"""Which values of libraries a survey looks into, and which nobody can watch, with the reason."""

from __future__ import annotations

import array
import gc
import io
import os
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ostinato.recording.places import module_of

MAX_ARRAY_BYTES = 65_536
"""Elements of larger buffers are not compared at every call: that would cost more than a replay."""

_STORED = (dict, OrderedDict, list, tuple, set, frozenset, deque)
_BUFFERS = (np.ndarray, bytearray, array.array, memoryview)
_WHOLE = ("torch.optim", "torch.distributions")
_HOLDERS = sys.stdlib_module_names - {
    *("logging", "threading", "_thread", "typing", "concurrent", "asyncio", "unittest", "random"),
    *("multiprocessing", "inspect", "contextlib"),
}
"""Standard modules but for those whose objects change by themselves or hold nothing to compute
with.
"""


def environment() -> Any:
    """The process's environment variables as Python holds them."""
    return vars(os)["environ"]


def is_stored(container: Any) -> bool:
    """False for a container that makes its items when asked (transformers' lazy mappings)."""
    return all(
        getattr(type(container), name, None) in [getattr(base, name, None) for base in _STORED]
        for name in ("__iter__", "__getitem__", "items")
    )


def is_buffer(value: Any) -> bool:
    return isinstance(value, _BUFFERS)


def content_of(buffer: Any) -> tuple[Any, ...]:
    """Everything that reading a small buffer can give."""
    if isinstance(buffer, np.ndarray):
        return buffer.shape, buffer.strides, buffer.dtype, buffer.tobytes()
    return (bytes(buffer),)


def why_no_buffer(value: Any) -> str | None:
    """None for a buffer small enough to compare, "" for one that nobody can write to, else what
    it is and how to change that.
    """
    view = memoryview(value) if not isinstance(value, np.ndarray) else value
    if view.nbytes <= MAX_ARRAY_BYTES:
        return None
    if isinstance(value, np.ndarray):
        owners = [value]
        while isinstance(owners[-1].base, np.ndarray):
            owners.append(owners[-1].base)
        if owners[-1].base is None and not any(o.flags.writeable for o in owners):
            return ""
    elif isinstance(value, memoryview) and isinstance(value.obj, bytes):
        return ""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return (
        f"a {kind} of {view.nbytes} bytes, too many to compare at every call (most "
        f"{MAX_ARRAY_BYTES}; a numpy array with flags.writeable = False may be larger)"
    )


def inner(value: Any) -> Any:
    """What a read-only view or a weak reference refers to; None for other values."""
    if isinstance(value, types.MappingProxyType):
        return gc.get_referents(value)[0]
    if isinstance(value, weakref.ref):
        return value()
    return None


def why_unwatched(value: Any) -> str | None:
    """What a value of a library is, when a call may read another value of it and nothing shows."""
    if isinstance(value, threading.local):
        return "a threading.local: a recording is made on another thread, where it holds nothing"
    if isinstance(value, (weakref.ProxyType, weakref.CallableProxyType)):
        return "a weakref.proxy, which does not tell what it refers to"
    if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
        return f"an iterator ({type(value).__qualname__}), which every call may advance"
    return None


def is_read_whole(value: Any) -> bool:
    """True for containers and records of the standard library, optimizers and distributions."""
    module = module_of(type(value))
    return module.startswith(_WHOLE) or module.partition(".")[0] in _HOLDERS
