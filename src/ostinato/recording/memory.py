"""Counts the memory that a run makes and frees, by weak references to storages."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ostinato.recording.calls import storage_key


class LiveMemory:
    """The storages made by one run that are still alive, and the peak of their bytes."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._live_bytes = 0
        self._storages: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._storages

    def add(self, tensor: torch.Tensor) -> None:
        """Note a new storage, or the new size of a known one."""
        key, storage = storage_key(tensor), tensor.untyped_storage()
        num_bytes = storage.nbytes()
        former = self._storages.get(key)
        if former is not None and former[1] == num_bytes:
            return
        self._live_bytes += num_bytes - (former[1] if former is not None else 0)
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)

        def forget(_: Any) -> None:
            self._live_bytes -= self._storages.pop(key)[1]

        self._storages[key] = (weakref.ref(storage, forget), num_bytes)


class OwnTensors:
    """Tensor objects made by one run, by identity, without keeping them alive."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        reference = self._references.get(id(tensor))
        return reference is not None and reference() is tensor

    def add(self, tensor: torch.Tensor) -> None:
        self._references[id(tensor)] = weakref.ref(tensor)
