"""openpi's msgpack: numpy arrays as maps of four, numpy scalars as maps of three.

Refuses pickles and object arrays both ways. Decoded arrays are read-only.
"""

from __future__ import annotations

import re
from typing import Any

import msgpack
import numpy as np

_DTYPE = re.compile(r"[<>|=]?(?:[?]|b1|[iu][1248]|f[248]|[SU][0-9]{1,6})")


class CodecError(ValueError):
    """A message that is no openpi message."""


def packb(value: Any) -> bytes:
    """``value`` (maps, lists, plain values, numpy arrays and scalars) as one message.

    Raises ``ValueError`` for arrays and scalars of kind V, O or c, ``TypeError`` for what has no
    encoding, ``OverflowError`` for integers beyond 64 bits.
    """
    packed: bytes = msgpack.packb(value, default=_pack_numpy)
    return packed


def unpackb(data: bytes) -> Any:
    """The value in one message. Raises ``CodecError`` for what is none."""
    try:
        return msgpack.unpackb(data, raw=False, object_hook=_unpack_numpy)
    except CodecError:
        raise
    except Exception as error:
        raise CodecError(f"no openpi message: {error}") from None


def _pack_numpy(value: Any) -> Any:
    if isinstance(value, int):
        raise OverflowError("an integer beyond 64 bits")
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind in "mM":
        raise TypeError(f"{type(value).__name__} has no encoding")
    if value.dtype.kind in "VOc":
        raise ValueError(f"Unsupported dtype: {value.dtype}")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {
        b"__ndarray__": True,
        b"data": value.tobytes(),
        b"dtype": value.dtype.str,
        b"shape": value.shape,
    }


def _unpack_numpy(found: dict[Any, Any]) -> Any:
    named = {key.decode() if isinstance(key, bytes) else key: v for key, v in found.items()}
    if "__ndarray__" in named:
        return np.ndarray(named["shape"], _dtype(named["dtype"]), named["data"])
    if "__npgeneric__" in named:
        with np.errstate(all="ignore"):
            return _dtype(named["dtype"]).type(named["data"])
    return found


def _dtype(name: Any) -> np.dtype[Any]:
    text = name.decode() if isinstance(name, bytes) else name
    if not isinstance(text, str) or _DTYPE.fullmatch(text) is None:
        raise CodecError(f"dtype {text!r}; expected numbers, truth or text")
    return np.dtype(text)
