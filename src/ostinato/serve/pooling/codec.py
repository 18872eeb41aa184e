"""Embeddings on the wire: nested lists, base64, raw bytes with a table of contents, safetensors.

Matrices are float32 here; ``embed_dtype`` says what is sent. Importable without torch.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class MetadataItem:
    """Where one matrix lies in a body of raw bytes; vLLM's names, and ``dtype`` for readers of
    ours.
    """

    index: int
    dtype: str
    embed_dtype: str
    endianness: str
    shape: tuple[int, ...]
    start: int
    end: int


def to_bytes(array: Array, dtype: str, endianness: str = "little") -> bytes:
    """A float array as bytes of ``float32``, ``float16`` or ``bfloat16``, rounded to nearest."""
    order = {"little": "<", "big": ">", "native": "="}[endianness]
    if dtype == "bfloat16":
        plain: Array = _as_bfloat16(np.ascontiguousarray(array, np.float32))
    else:
        plain = np.asarray(array, dtype)
    return np.ascontiguousarray(plain, plain.dtype.newbyteorder(order)).tobytes()


def _as_bfloat16(array: Array) -> Array:
    """Upper halves of float32, ties to even, as ``uint16``. Values are finite."""
    bits = array.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def to_lists(array: Array) -> bytes:
    """A matrix as JSON text, row by row: one call for all rows would hold the interpreter."""
    rows = (json.dumps(row.tolist(), separators=(",", ":")) for row in array)
    return f"[{','.join(rows)}]".encode()


def to_base64(array: Array, dtype: str, endianness: str) -> bytes:
    """A matrix as a JSON string."""
    return b'"' + base64.b64encode(to_bytes(array, dtype, endianness)) + b'"'


def pack_bytes(
    arrays: Sequence[Array], dtype: str, endianness: str
) -> tuple[bytes, list[dict[str, Any]]]:
    """All matrices one after the other, and where each of them lies."""
    body, items, start = [], [], 0
    order = sys.byteorder if endianness == "native" else endianness
    for index, array in enumerate(arrays):
        data = to_bytes(array, dtype, endianness)
        end = start + len(data)
        items.append(asdict(MetadataItem(index, dtype, dtype, order, array.shape, start, end)))
        body.append(data)
        start = end
    return b"".join(body), items


def pack_safetensors(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], dtype: str = "float32"
) -> bytes:
    """One file in the safetensors format; ``metadata`` maps text to text."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    body, start = [], 0
    for name, array in arrays.items():
        data = to_bytes(array, dtype)
        header[name] = {
            "dtype": SAFETENSORS_NAMES[dtype],
            "shape": list(array.shape),
            "data_offsets": [start, start + len(data)],
        }
        body.append(data)
        start += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *body])
