"""Reads one message of openpi's msgpack, value by value, in Python.

Not msgpack's reader: that makes room for as many values as a few hostile bytes claim, and holds the
interpreter meanwhile. Copies no image: a decoded array is a read-only view on the message.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ostinato.errors import InputError
from ostinato.serve.openpi.describe import describe, listed

_DTYPE = re.compile(r"[<>|=]?(?:[?]|b1|[iu][1248]|f[248]|[SU][0-9]{1,6})")
_MAX_DIMS = 16
_PACKED_DATA = re.compile(rb"\xc4\x0b__ndarray__\xc3\xc4\x04data[\xc4-\xc6]")
_PACKED_REST = re.compile(rb"\xc4\x05dtype\xa3([\x20-\x7e]{3})\xc4\x05shape[\x90-\x9f]")
"""What stands between the values of an array's map as openpi's packer, and ours, writes it."""
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}
_FORMATS = (">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q")
_NUMBERS = {0xCA + place: struct.Struct(text) for place, text in enumerate(_FORMATS)}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # bytes that hold the length
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}

Buffer = bytes | memoryview
"""A message as it came; what is read from it may be a view on it."""


class CodecError(InputError):
    """A message that is no openpi message; says at which byte, or which value, and why."""


@dataclass(frozen=True, slots=True)
class CodecLimits:
    """``max_values``: entries of all maps and lists together; numbers inside an array are not
    counted. ``max_depth``: of maps and lists in each other.
    """

    max_bytes: int = 64 * 2**20
    max_values: int = 2**16
    max_depth: int = 32


DEFAULT_LIMITS = CodecLimits()


def text_key(key: str | bytes) -> str:
    """A map's key as text; bytes are UTF-8."""
    if isinstance(key, str):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise CodecError(f"[msgpack] the key {key[:40]!r} is not UTF-8") from None


class Reader:
    """Reads values one after the other; ``at`` is the next byte. Bytes come as views."""

    def __init__(self, data: Buffer, limits: CodecLimits) -> None:
        self.at = 0
        self._data = memoryview(data).toreadonly()
        self._limits = limits
        self._budget = limits.max_values

    def value(self, depth: int) -> Any:
        head = self._head()
        if 0xA0 <= head <= 0xBF:
            return self._text(head & 0x1F)
        if head < 0x80:
            return head
        if head >= 0xE0:
            return head - 0x100
        if head <= 0x8F:
            return self._map(head & 0x0F, depth + 1)
        if head <= 0x9F:
            return self._list(head & 0x0F, depth + 1)
        if head in _BYTES:
            return self._take(self._unsigned(_BYTES[head]))
        if head in _PLAIN:
            return _PLAIN[head]
        if head in _NUMBERS:
            number = _NUMBERS[head]
            return number.unpack(self._take(number.size))[0]
        if head in _TEXTS:
            return self._text(self._unsigned(_TEXTS[head]))
        if head in _LISTS:
            return self._list(self._unsigned(_LISTS[head]), depth + 1)
        if head in _MAPS:
            return self._map(self._unsigned(_MAPS[head]), depth + 1)
        raise CodecError(f"[msgpack] byte {head:#04x} at {self.at - 1} begins no plain value")

    def _head(self) -> int:
        try:
            head = self._data[self.at]
        except IndexError:
            raise self._cut_off() from None
        self.at += 1
        return head

    def _take(self, count: int) -> memoryview:
        end = self.at + count
        if end > len(self._data):
            raise self._cut_off()
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def _cut_off(self) -> CodecError:
        return CodecError(f"[msgpack] the message of {len(self._data)} bytes is cut off")

    def _unsigned(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def _text(self, count: int) -> str:
        try:
            return str(self._take(count), "utf-8")
        except UnicodeDecodeError as error:
            raise CodecError(
                f"[msgpack] text before {self.at} is not UTF-8: {error.reason}"
            ) from None

    def _spend(self, count: int, depth: int) -> None:
        if depth > self._limits.max_depth:
            raise CodecError(f"[too-deep] expected at most {self._limits.max_depth} levels")
        self._budget -= count
        if self._budget < 0:
            raise CodecError(
                f"[too-many-values] more than {self._limits.max_values} values; "
                "send images and long lists as arrays, or images as JPEG or PNG bytes"
            )

    def _list(self, count: int, depth: int) -> list[Any]:
        self._spend(count, depth)
        return [settled(self.value(depth)) for _ in range(count)]

    def _map(self, count: int, depth: int) -> Any:
        self._spend(2 * count, depth)
        if count == 4 and (array := self._packed_array(depth)) is not None:
            return array
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = settled(self.value(depth))
            if not isinstance(key, str | bytes):
                raise CodecError(f"[msgpack] a key is {describe(key)}; expected text or bytes")
            found[key] = self.value(depth)
        if b"__ndarray__" in found or "__ndarray__" in found:
            return _array(_entries(found, "data", "dtype", "shape"))
        if b"__npgeneric__" in found or "__npgeneric__" in found:
            return _scalar(_entries(found, "data", "dtype"))
        return {key: settled(value) for key, value in found.items()}

    def _packed_array(self, depth: int) -> np.ndarray[Any, Any] | None:
        """An array written as usual, at a third of the time; ``None`` leaves all to ``_map``."""
        begin = self.at
        if (before := _PACKED_DATA.match(self._data, begin)) is not None:
            self.at = before.end()
            data = self._take(self._unsigned(_BYTES[self._data[self.at - 1]]))
            if (rest := _PACKED_REST.match(self._data, self.at)) is not None:
                self.at = rest.end()
                shape = self._list(self._data[self.at - 1] & 0x0F, depth + 1)
                return _array({"data": data, "dtype": rest[1].decode(), "shape": shape})
        self.at = begin
        return None


def settled(value: Any) -> Any:
    """Bytes of their own, where they are not an array's."""
    return bytes(value) if isinstance(value, memoryview) else value


def _entries(value: Mapping[Any, Any], *names: str) -> dict[str, Any]:
    """The entries of a numpy map by text keys; each must be there."""
    found = {text_key(key): entry for key, entry in value.items()}
    missing = [name for name in names if name not in found]
    if missing:
        raise CodecError(f"[array] an array without {', '.join(missing)}; got {listed(found)}")
    return found


def _dtype(name: Any) -> np.dtype[Any]:
    text = name if isinstance(name, str) else ""
    if isinstance(name, memoryview) and len(name) < 10:
        text = text_key(bytes(name))
    dtype = _dtype_of(text) if len(text) < 10 else None
    if dtype is None:
        raise CodecError(
            f"[dtype] {describe(name)}; expected numbers, truth or text, such as '|u1' or '<f4'"
        )
    return dtype


@lru_cache(maxsize=64)
def _dtype_of(text: str) -> np.dtype[Any] | None:
    return np.dtype(text) if _DTYPE.fullmatch(text) else None


def _array(entries: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    dtype, shape, data = _dtype(entries["dtype"]), entries["shape"], entries["data"]
    if not isinstance(data, memoryview):
        raise CodecError(f"[array] data is {describe(data)}; expected bytes")
    is_shape = isinstance(shape, list) and len(shape) <= _MAX_DIMS
    if not is_shape or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise CodecError(f"[array] shape is {describe(shape)}; expected a list of sizes")
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes != len(data):
        raise CodecError(
            f"[array] {len(data)} bytes for shape {tuple(shape)} of {dtype.str}; "
            f"expected {num_bytes}"
        )
    try:
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=data)
    except (ValueError, MemoryError) as error:
        raise CodecError(f"[array] shape {tuple(shape)}: {error}") from None
    if not array.flags.aligned:  # not every reader of numbers can do without
        array = array.copy()
        array.flags.writeable = False
    return array


def _scalar(entries: Mapping[str, Any]) -> Any:
    dtype, data = _dtype(entries["dtype"]), settled(entries["data"])
    wanted: type | tuple[type, ...] = (int, float) if dtype.kind in "biuf" else (str, bytes)
    make: Callable[[Any], Any] = dtype.type
    if isinstance(data, wanted):
        try:
            with np.errstate(all="ignore"):  # beyond float32 is infinite, as numpy says
                return make(data)
        except (ValueError, OverflowError, TypeError):
            pass
    raise CodecError(f"[scalar] {describe(data)} as {dtype.str}; expected a value of that kind")
