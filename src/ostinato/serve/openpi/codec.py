"""openpi's msgpack, byte for byte: numpy arrays as maps of four, numpy scalars as maps of three.

Importable without torch. Never unpickles, builds no object arrays, and copies no image: a decoded
array is a read-only view on the message (``reader.py``).
"""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from ostinato.serve.openpi.describe import describe
from ostinato.serve.openpi.reader import (
    DEFAULT_LIMITS,
    Buffer,
    CodecError,
    CodecLimits,
    Reader,
    settled,
    text_key,
)

__all__ = [
    "DEFAULT_LIMITS",
    "Buffer",
    "CodecError",
    "CodecLimits",
    "packb",
    "read_map",
    "text_key",
    "unpackb",
]


def packb(value: Any) -> bytes:
    """``value`` (maps, lists, plain values, numpy arrays and scalars) as one message.

    Raises ``ValueError`` for arrays and scalars of kind V, O or c, ``TypeError`` for what has no
    encoding (sets, dates), ``OverflowError`` for integers beyond 64 bits.
    """
    packed: bytes = msgpack.packb(value, default=_pack_numpy)
    return packed


def unpackb(data: Buffer, limits: CodecLimits = DEFAULT_LIMITS) -> Any:
    """The value in one message. Arrays are read-only, any shape, numbers, truth or text.

    Keys of the numpy maps may be text or bytes. Raises ``CodecError`` for anything else than one
    whole message within ``limits``.
    """
    if len(data) > limits.max_bytes:
        raise CodecError(f"[too-large] {len(data)} bytes; expected at most {limits.max_bytes}")
    reader = Reader(data, limits)
    value = settled(reader.value(0))
    if reader.at != len(data):
        raise CodecError(f"[msgpack] {len(data) - reader.at} bytes follow the message")
    return value


def read_map(data: Buffer, limits: CodecLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    """``unpackb`` for a message that must be a map; its own keys as text."""
    value = unpackb(data, limits)
    if not isinstance(value, dict):
        raise CodecError(f"[not-a-map] the message is {describe(value)}; expected a map of names")
    return {text_key(key): entry for key, entry in value.items()}


def _pack_numpy(value: Any) -> Any:
    if isinstance(value, int):
        raise OverflowError(f"{describe(value)} has no encoding; expected 64 bits at most")
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{describe(value)} has no encoding; expected plain values or arrays")
    if value.dtype.kind in "VOc":
        raise ValueError(f"Unsupported dtype: {value.dtype}")
    if value.dtype.kind in "mM":
        raise TypeError(f"{value.dtype} has no encoding; expected numbers, truth or text")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {
        b"__ndarray__": True,
        b"data": value.tobytes(),
        b"dtype": value.dtype.str,
        b"shape": value.shape,
    }
