"""Which backend computes a call: asked for by name, or the fastest of its class as measured.

A class is what a recording bakes, made coarse: a replay and its direct call are of one class and
run one backend. Times are taken at the first direct call of a class, on segmentations made up from
its bounds, never from the data at hand. Nothing is timed while recording: an unknown class gets
torch's own kernel, and if a later measurement says otherwise, such recordings are made anew.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ostinato import state
from ostinato.kernels.gate import current_numerics
from ostinato.kernels.segment_attention import availability
from ostinato.kernels.segment_attention.availability import is_recording
from ostinato.kernels.segment_attention.backends import BACKENDS, steady
from ostinato.kernels.segment_attention.call import Backend, Call, is_aligned
from ostinato.kernels.segment_attention.classes import LayoutClass, layout_class, row_class
from ostinato.kernels.select import Selector, selector_of
from ostinato.kernels.timing import ONE_AT_A_TIME

_MAX_FORMS = 16_384
_MASK_ROWS = 4096
"""Dense attention under a mask is quadratic in memory; beyond this it only serves when alone."""


class ShapeClass(NamedTuple):
    """What the choice depends on."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    head_dim: int
    rows: int
    layout: LayoutClass
    is_aligned: bool
    is_spaced: bool
    """Heads stand apart in memory: see ``rope``."""


class Chooser:
    """The choices of one process. ``selector``: a table of times that is not the device's own."""

    def __init__(self, selector: Selector | None = None) -> None:
        self._selector = selector
        self._lock = ONE_AT_A_TIME
        self._known: dict[tuple[object, ...], tuple[Selector, Backend]] = {}
        self._recorded: dict[tuple[object, ...], Backend] = {}
        self._keys: dict[tuple[object, ...], tuple[object, ...]] = {}

    def choose(self, call: Call) -> Backend:
        """The backend of a call that names none."""
        if current_numerics() != "fast":
            return steady(call)
        key = self._key_of(call)
        selector = self._selector or selector_of(call.q.device)
        known = self._known.get(key)
        is_under_way = is_recording(call)
        if known is not None and known[0] is selector:
            chosen = known[1]
        elif is_under_way:
            chosen = steady(call)
        else:
            chosen = self._decide(key, call, selector)
        if is_under_way:
            self._recorded[key] = chosen
        return chosen

    def _key_of(self, call: Call) -> tuple[object, ...]:
        """The class of a call and what is hidden, worked out once for each form of call."""
        q, k, v, offsets, max_length = call[:5]
        form = (
            *(q.device, q.dtype, q.shape, offsets.shape, max_length, availability.hidden()),
            *(x.stride() for x in (q, k, v)),
            *(x.data_ptr() & 15 for x in (q, k, v)),
        )
        key = self._keys.get(form)
        if key is None:
            if len(self._keys) >= _MAX_FORMS:
                self._keys.clear()
            key = self._keys[form] = (shape_class(call), availability.hidden())
        return key

    def drop(self, backend: Backend) -> None:
        """Choose anew wherever this backend was chosen."""
        with self._lock:
            self._known = {k: v for k, v in self._known.items() if v[1] is not backend}
            state.verdicts.changed()

    def _decide(self, key: tuple[object, ...], call: Call, selector: Selector) -> Backend:
        with self._lock:
            usable = {availability.label(b): b for b in candidates(call)}
            layouts = [call._replace(offsets=offsets) for offsets in made_up_offsets(call)]

            def run(backend: Backend) -> None:
                for layout in layouts:
                    backend.attend(layout, None)

            name = selector.choose(
                "segment_attention",
                class_text(key[0]),
                {label: lambda b=b: run(b) for label, b in usable.items()},  # type: ignore[misc]
            )
            chosen = usable[name]
            self._known[key] = (selector, chosen)
            if self._recorded.get(key, chosen) is not chosen:
                state.verdicts.changed()
                del self._recorded[key]
            return chosen


def shape_class(call: Call) -> ShapeClass:
    """See the module."""
    num_rows, heads, head_dim = call.q.shape
    return ShapeClass(
        call.q.device,
        call.q.dtype,
        heads,
        head_dim,
        row_class(num_rows),
        layout_class(call.num_segments, call.max_length),
        all(is_aligned(x) for x in call[:3]),
        call.k.stride(1) > head_dim,
    )


def candidates(call: Call) -> list[Backend]:
    """What is worth timing for the call, the steady one first; probes what is unknown."""
    first = steady(call)
    usable = [first]
    for backend in BACKENDS.values():
        if backend is first or not backend.is_candidate or backend.misfit(call):
            continue
        if availability.absence(backend, call.q.device) or availability.failure(backend, call):
            continue
        usable.append(backend)
    if first.name == "masked" and call.q.shape[0] > _MASK_ROWS and len(usable) > 1:
        usable.remove(first)
    return usable


def made_up_offsets(call: Call) -> list[Tensor]:
    """As few segments as the bounds allow, and four equal ones where they allow it."""
    num_rows, capacity = call.q.shape[0], call.num_segments
    fewest = -(-num_rows // max(1, min(call.max_length, num_rows)))
    if fewest > capacity:  # the caller's bounds contradict each other: nothing to make up
        return [call.offsets]
    counts = sorted({fewest, max(fewest, min(4, capacity, num_rows))})
    made = []
    for count in counts:
        length = -(-num_rows // count)
        ends = [min(i * length, num_rows) for i in range(capacity + 1)]
        made.append(torch.tensor(ends, dtype=torch.int32, device=call.q.device))
    return made


def class_text(shape: object) -> str:
    """The class as the table of times names it."""
    assert isinstance(shape, ShapeClass)
    dtype = str(shape.dtype).removeprefix("torch.")
    aligned = "" if shape.is_aligned else ", not aligned"
    spaced = ", heads apart" if shape.is_spaced else ""
    form = f"{shape.rows} rows of {shape.heads}x{shape.head_dim} {dtype}"
    return f"{form}, {shape.layout}{aligned}{spaced}"


CHOOSER = Chooser()
