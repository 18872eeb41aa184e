"""Compare many addresses in one step: what 400 calls into torch would cost 40 microseconds for.

A ledger must know, before every replay, that the same objects sit in the same slots and that each
tensor's storage is where it was. Asking each tensor costs 0.1 microseconds; a module of 400
tensors costs more than the replay. This file reads the words themselves: numpy gathers 8-byte
words from given addresses in one call. Every address belongs to an object that the caller keeps
alive, every layout is checked against torch's own answer when a watch is made, and where the
check fails (another interpreter, another torch) the caller asks the tensors one by one instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

Words = np.ndarray[Any, np.dtype[np.int64]]
"""Which words of memory to read, by number."""

_WORD = 8
_TYPE_OFFSET = _WORD  # CPython: reference count, type, size or number of items
_LENGTH_OFFSET = 2 * _WORD
_LIST_ITEMS_OFFSET = 3 * _WORD


class _AllMemory:
    """The user half of a 47-bit address space as one array; nothing is read until it is indexed."""

    __array_interface__: ClassVar = {
        "shape": (1 << 44,),
        "typestr": "<u8",
        "data": (_WORD, True),
        "version": 3,
    }


@cache
def _memory() -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.asarray(_AllMemory())


def _index(address: int) -> int:
    return (address - _WORD) // _WORD


def word(address: int) -> int:
    """The word at an address inside an object that the caller keeps alive."""
    return int(_memory()[_index(address)])


def indices(addresses: Sequence[int]) -> Words:
    """The words at these addresses, for ``read``."""
    return np.array([_index(a) for a in addresses], np.int64)


def read(words: Words) -> bytes:
    """What the words hold now."""
    found: bytes = _memory()[words].tobytes()
    return found


def type_of(value: Any) -> int:
    """Where an object's class is written."""
    return id(value) + _TYPE_OFFSET


def length_of(sized: Any) -> int:
    """Where a dictionary's or a list's length is written."""
    return id(sized) + _LENGTH_OFFSET


def has_length(sized: Any) -> bool:
    """True for a dictionary or a list whose length lies where this file reads it."""
    return isinstance(sized, (dict, list)) and word(length_of(sized)) == len(sized)


def items_of(values: list[Any]) -> bytes:
    """The identities of a list's items as bytes; only where ``is_supported``."""
    memory = _memory()
    start = _index(int(memory[_index(id(values) + _LIST_ITEMS_OFFSET)]))
    return memory[start : start + len(values)].tobytes()


@cache
def is_supported() -> bool:
    """True where this interpreter's lists lie in memory as ``items_of`` expects."""
    if sys.implementation.name != "cpython" or sys.maxsize != 2**63 - 1:
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    probe = [object() for _ in range(5)]
    header = [sys.getsizeof([]) == 7 * _WORD, id(probe) % _WORD == 0]
    return all(header) and items_of(probe) == np.array([*map(id, probe)], np.uint64).tobytes()


class AddressWatch:
    """The words that say where some tensors' elements lie and how they are read: storage, pointer,
    shape, stride, dtype, dispatch keys (conjugation, negation), and how many attributes they have.

    The tensors and their storages are kept alive here, so the words stay readable and no watched
    memory is ever given to somebody else, however the tensors are changed.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._storages = [t.untyped_storage() for t in tensors]
        self._attributes = [t.__dict__ for t in tensors]  # made here where a tensor has none yet
        self._facts = list(map(_facts, self._tensors))
        self._pointers = [s.data_ptr() for s in self._storages]
        self._words = self._find_words() if is_supported() else None
        self._expected = b"" if self._words is None else self._read(self._words)
        self._pointer_words = None if self._words is None else self._find_pointer_words()
        self._held = np.array(self._pointers, np.uint64).tobytes()

    def _find_words(self) -> Words | None:
        layout = _layout()
        if layout is None:
            return None
        addresses: list[int] = []
        held = zip(self._tensors, self._storages, self._attributes, strict=True)
        for tensor, storage, attributes in held:
            words = layout.words(tensor, storage)
            if words is None or not has_length(attributes):
                return None
            addresses += [*words, length_of(attributes)]
        return indices(addresses)

    def _find_pointer_words(self) -> Words:
        layout = _layout()
        assert layout is not None
        return indices([s._cdata + layout.pointer for s in self._storages])

    @staticmethod
    def _read(words: Words) -> bytes:
        return read(words)

    def is_held(self) -> bool:
        """True when every storage still has the memory it had: reading it by its old address is
        harmless, whatever a tensor may say of it by now. One word for each tensor.
        """
        if self._pointer_words is not None:
            return self._read(self._pointer_words) == self._held
        return [s.data_ptr() for s in self._storages] == self._pointers

    def is_unchanged(self) -> bool:
        """True when every tensor still has the storage, memory, shape and stride it had."""
        if self._words is not None:
            return self._read(self._words) == self._expected
        return list(map(_facts, self._tensors)) == self._facts


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tensor.data_ptr(),
        tensor.untyped_storage().data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
        len(tensor.__dict__),
    )


class _Layout(NamedTuple):
    """Byte offsets, found by looking at a probe tensor: never assumed."""

    implementation: int  # in the Python object
    storage: int  # in the implementation
    offset: int
    sizes: int
    strides: int
    keys: int  # the dispatch keys; the word before them holds the dtype, the device and flags
    pointer: int  # in the storage

    def words(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> list[int] | None:
        """Addresses of all words of one tensor, or ``None`` where one does not hold what it
        should.
        """
        base, dims = tensor._cdata, tensor.dim()
        expected = [
            (id(tensor) + self.implementation, base),
            (base + self.storage, storage._cdata),
            (base + self.offset, tensor.storage_offset()),
            (base + self.keys, _keys(tensor)),
            (storage._cdata + self.pointer, storage.data_ptr()),
        ]
        if dims <= _INLINE_DIMS:
            expected += [(base + self.sizes + _WORD * d, n) for d, n in enumerate(tensor.shape)]
            expected += [
                (base + self.strides + _WORD * d, n) for d, n in enumerate(tensor.stride())
            ]
        kind = base + self.keys - _WORD
        if not all(word(address) == value for address, value in expected):
            return None
        if word(kind) & _DTYPE_BITS != _dtype_number(tensor.dtype, self.keys):
            return None
        return [kind, *(address for address, _ in expected)]


_DTYPE_BITS = 0xFFFF
_INLINE_DIMS = 5  # torch keeps more dimensions than these on the heap


@cache
def _layout() -> _Layout | None:
    tensor = torch.empty(997).as_strided((13, 17), (29, 31), 37)
    storage = tensor.untyped_storage()
    base = tensor._cdata
    found = (
        _find(id(tensor), [base], num_words=5),
        _find(base, [storage._cdata]),
        _find(base, [37]),
        _find(base, [13, 17]),
        _find(base, [29, 31]),
        _find_keys(tensor),
        _find(storage._cdata, [storage.data_ptr()], num_words=6),
    )
    return None if None in found else _Layout(*found)  # type: ignore[arg-type]


def _keys(tensor: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


@cache
def _dtype_number(dtype: torch.dtype, keys: int) -> int:
    return word(torch.empty(0, dtype=dtype)._cdata + keys - _WORD) & _DTYPE_BITS


def _find_keys(tensor: torch.Tensor) -> int | None:
    """Offset of the dispatch keys, if the word before it tells dtypes apart and nothing else."""
    found = _find(tensor._cdata, [_keys(tensor)])
    if not found:
        return None
    dtypes = (torch.float32, torch.int32, torch.float64, torch.complex64, torch.bool)
    words = [word(torch.empty(0, dtype=d)._cdata + found - _WORD) for d in dtypes]
    tells = len({w & _DTYPE_BITS for w in words}) == len(dtypes)
    return found if tells and len({w & ~_DTYPE_BITS for w in words}) == 1 else None


def _find(start: int, values: list[int], num_words: int = 24) -> int | None:
    """Offset in bytes of consecutive words with these values, within an object of known minimum
    size.
    """
    for k in range(num_words - len(values)):
        if all(word(start + (k + j) * _WORD) == v for j, v in enumerate(values)):
            return k * _WORD
    return None
