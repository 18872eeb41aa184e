"""The CPU backend: records operators instead of kernels, with the rules of a CUDA graph.

Fixed addresses, no Python at replay, no hidden waits. ``poison`` stands in for a shared pool:
before each replay it fills every temporary of every tape of the lane, so that a tape that reads
what it did not compute itself shows it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ostinato import state as activity
from ostinato.recording.backend import Body
from ostinato.recording.entries import Entry
from ostinato.recording.patches import watching
from ostinato.recording.tape_recorder import Modes, TapeRecorder
from ostinato.recording.undo import RandomUndo, UndoLog

_INTEGER_POISON = 0x7F


class Tape:
    """One recorded body. It owns its temporaries and reads everything else where it was."""

    def __init__(self, backend: TapeBackend, recorder: TapeRecorder) -> None:
        self._backend = backend
        self._blocks = _blocks(recorder.entries)
        self._temporaries = list(recorder.temporaries.values())
        self._constants = list(recorder.constants.values())
        self._num_nodes = len(recorder.entries)
        self._num_pieces = recorder.num_pieces
        self._is_free = False

    @property
    def num_nodes(self) -> int:
        return self._num_nodes

    @property
    def num_pieces(self) -> int:
        return self._num_pieces

    @property
    def bytes_held(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._temporaries)

    def replay(self) -> None:
        """Repeat the recorded operators in the recorded modes. Raises ``RuntimeError`` once
        freed.
        """
        if self._is_free:
            raise RuntimeError("replay() of a tape that has been freed")
        self._backend.before_replay()
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
            for modes, entries in self._blocks:
                with _entering(modes):
                    for entry in entries:
                        entry.run()

    def fill_temporaries(self) -> None:
        """Poison every temporary: NaN, ``True``, or the byte 0x7f in integers.

        No integer is wrong for certain and safe as an index; an operator that checks its indices
        refuses 0x7f7f7f7f, which is the point.
        """
        for tensor in self._temporaries:
            _poison(tensor)

    def free(self) -> None:
        self._is_free = True
        self._blocks = []
        self._temporaries = []
        self._constants = []


class TapeBackend:
    """Records on the CPU. ``poison`` is for tests; it costs a write of all temporaries a replay."""

    def __init__(self, *, poison: bool = False) -> None:
        self._poison = poison
        self._tapes: weakref.WeakSet[Tape] = weakref.WeakSet()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def warm_up(self, body: Body) -> Any:
        with activity.entering(activity.Activity(activity.Phase.WARM_UP)):
            return body()

    def record(
        self,
        body: Body,
        *,
        generators: Sequence[torch.Generator] = (),
        is_counted: bool = True,
        is_breakable: bool = False,
    ) -> Tape:
        """Run the body once, keep its operators, and put back all that it changed. A tape breaks
        by itself wherever it is asked to.
        """
        undo, random = UndoLog(), RandomUndo(generators)
        recorder = TapeRecorder(undo, random)
        phase = activity.Activity(activity.Phase.RECORDING, recorder)
        try:
            with activity.entering(phase), watching(recorder.on_patch), recorder:
                body()
                recorder.check_finished()
        finally:
            undo.restore()
            random.restore()
        tape = Tape(self, recorder)
        self._tapes.add(tape)
        return tape

    def bytes_held(self) -> int:
        """Always 0: tapes share no pool, each holds its own temporaries."""
        return 0

    def close(self) -> None:
        """Free every tape of this lane."""
        for tape in list(self._tapes):
            tape.free()

    def before_replay(self) -> None:
        """Make the lane's temporaries unreadable if this backend poisons."""
        if self._poison:
            for tape in list(self._tapes):
                tape.fill_temporaries()


@contextlib.contextmanager
def _entering(modes: Modes) -> Iterator[None]:
    grad, inference = modes
    with torch.inference_mode(inference), torch.set_grad_enabled(grad):
        yield


def _blocks(entries: list[tuple[Modes, Entry]]) -> list[tuple[Modes, list[Entry]]]:
    """Neighbours that run in the same modes, together."""
    blocks: list[tuple[Modes, list[Entry]]] = []
    for modes, entry in entries:
        if not blocks or blocks[-1][0] != modes:
            blocks.append((modes, []))
        blocks[-1][1].append(entry)
    return blocks


def _poison(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return
    with torch.inference_mode():
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage)
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            whole.fill_(float("nan"))
        elif tensor.dtype is torch.bool:
            whole.fill_(True)
        else:
            torch.empty(0, dtype=torch.uint8).set_(storage).fill_(_INTEGER_POISON)


class TapeLane:
    """The CPU's lane: no streams, so nothing has to be ordered; each generation is a
    ``TapeBackend``.
    """

    name = "tape"

    def __init__(self, *, poison: bool = False) -> None:
        self.device = torch.device("cpu")
        self._poison = poison

    def attach(self) -> None: ...

    def open_pool(self) -> TapeBackend:
        return TapeBackend(poison=self._poison)

    def join(self) -> None: ...

    def join_random(self) -> None: ...

    def fence(self) -> None: ...

    def wait(self, fence: None) -> None: ...

    def synchronize(self) -> None: ...

    def close(self) -> None: ...
