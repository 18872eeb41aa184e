"""Puts back what a run wrote: memory is cloned before its first write, generators when first seen.

Shared by the probe and the tape. It never refuses anything; whoever owns it does.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from ostinato.recording.calls import generator_key, storage_key

Shape = tuple[torch.Size, tuple[int, ...], int]


class UndoLog:
    """Clones whole storages, each once. ``num_bytes`` is what the clones hold."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._shapes: dict[int, tuple[torch.Tensor, Shape]] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return storage_key(tensor) in self._saved

    def before_write(self, tensor: torch.Tensor) -> None:
        """Clone the tensor's storage unless that has happened; fake tensors have no bytes."""
        storage = tensor.untyped_storage()
        self._shapes.setdefault(id(tensor), (tensor, _shape(tensor)))
        if storage.device.type == "meta" or tensor in self:
            return
        self._saved[storage_key(tensor)] = (storage, _clone(storage))
        self.num_bytes += storage.nbytes()

    def moved(self) -> Iterator[torch.Tensor]:
        """Tensors whose shape or memory size is no longer what it was before their first write."""
        for tensor, shape in self._shapes.values():
            saved = self._saved.get(storage_key(tensor))
            resized = saved is not None and saved[0].nbytes() != saved[1].nbytes()
            if _shape(tensor) != shape or resized:
                yield tensor

    def restore(self) -> None:
        """Put every byte and shape back. Calling it twice is allowed."""
        for storage, clone in self._saved.values():
            if storage.nbytes() != clone.nbytes():
                storage.resize_(clone.nbytes())
            storage.copy_(clone)
        for tensor, shape in self._shapes.values():
            if _shape(tensor) != shape:
                size, stride, offset = shape
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.set_(tensor.untyped_storage(), offset, size, stride)

    def clear(self) -> None:
        """Forget the clones and free them."""
        self._saved.clear()
        self._shapes.clear()
        self.num_bytes = 0


class RandomUndo:
    """Puts random generators back to where they were when they were first noted."""

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._states: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self.note(torch.default_generator)
        if torch.cuda.is_initialized():
            self.note(torch.cuda.default_generators[torch.cuda.current_device()])
        for generator in generators:
            self.note(generator)

    def note(self, generator: torch.Generator) -> None:
        key = generator_key(generator)
        if key not in self._states:
            self._states[key] = (generator, generator.get_state())

    def has_drawn(self) -> bool:
        """True if any noted generator has moved."""
        return any(
            not torch.equal(generator.get_state(), state)
            for generator, state in self._states.values()
        )

    def restore(self) -> None:
        for generator, state in self._states.values():
            generator.set_state(state)


class HostDraws:
    """Python's and numpy's generators of the process: whether a call draws from them, and what to
    put back. What direct calls between pieces draw is no breach; trials give it back all the same.
    """

    def __init__(self) -> None:
        self._first = self._last = _host_states()
        self.is_drawn = False
        self.is_drawn_in_pieces = False

    def begin(self) -> None:
        """A new trial."""
        self._last, self.is_drawn = _host_states(), False

    def look(self, *, is_piece: bool = False) -> None:
        """Note whether anything was drawn since the last look."""
        now = _host_states()
        if now != self._last:
            self._last = now
            if is_piece:
                self.is_drawn_in_pieces = True
            else:
                self.is_drawn = True

    def restore(self) -> None:
        if _host_states() != self._first:
            random.setstate(self._first[0])
            np.random.set_state(pickle.loads(self._first[1]))


def _host_states() -> tuple[tuple[Any, ...], bytes]:
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def _clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    copy: torch.UntypedStorage = storage.clone()
    return copy


def _shape(tensor: torch.Tensor) -> Shape:
    return tensor.shape, tuple(tensor.stride()), int(tensor.storage_offset())
