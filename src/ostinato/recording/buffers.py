"""Static inputs in ordinary memory, and how a call's tensors get into them.

A recording reads these addresses for as long as it lives; they are never grown or moved. Static
results and the ownership of what a caller gets are in ``results.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.shared import Buffer, SharedBuffers
from ostinato.recording.spec import TensorSpec
from ostinato.recording.upload import Upload

Growth = Mapping[int, Grows]
"""Dimension -> how it grows."""

Sizes = Mapping[Axis, int]
"""How large each axis is in one call, or in one rung."""


def is_dense(spec: TensorSpec) -> bool:
    """True when the elements fill their span without holes or overlaps."""
    step = 1
    for size, stride in sorted(zip(spec.shape, spec.stride, strict=True), key=lambda d: d[1]):
        if size == 0:
            return True
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True


def flat(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The whole span of a tensor as one dimension: also what lies between its elements."""
    return tensor.as_strided((spec.span,), (1,), tensor.storage_offset())


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, holes and overlaps, where ``clone`` would make it dense."""
    if tensor.numel() == 0:
        return tensor.detach().clone()
    whole = flat(tensor.detach(), TensorSpec.of(tensor)).clone()
    return whole.as_strided(tensor.shape, tensor.stride())


class StaticInputs:
    """The static tensors of one recording and the copies that fill them.

    ``specs`` describe the static tensors. Inputs in ``in_place`` are not copied: the caller's
    tensor is the static one. Inputs in ``uploads`` arrive on the host and travel together in one
    upload; with ``keeps_uploads`` nobody writes to them again. ``growth`` says, per input, which
    dimensions a call may leave partly unused. With ``shared``, inputs that grow along their first
    dimension lie at the front of buffers that other recordings use too.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        device: torch.device,
        *,
        in_place: Mapping[int, torch.Tensor],
        uploads: Sequence[int],
        keeps_uploads: bool = False,
        growth: Mapping[int, Growth],
        shared: SharedBuffers | None = None,
    ) -> None:
        self.specs = tuple(specs)
        self._growth = dict(growth)
        self._upload = (
            Upload([specs[i] for i in uploads], device, is_kept=keeps_uploads) if uploads else None
        )
        self._uploads = tuple(uploads)
        uploaded = self._upload.tensors if self._upload is not None else []
        special = {**in_place, **dict(zip(uploads, uploaded, strict=True))}
        self._buffers: dict[int, Buffer] = {}
        if shared is not None:
            for i, grown in self._growth.items():
                if i not in special and set(grown) == {0} and _is_plain(specs[i]):
                    key = ("input", i, specs[i].shape[1:])
                    special[i], self._buffers[i] = shared.take(key, specs[i], device)
        self.tensors = [
            special[i] if i in special else _make(spec, device) for i, spec in enumerate(specs)
        ]
        self._copied = [i for i in range(len(specs)) if i not in special or i in self._buffers]
        self._filled: dict[tuple[int, int], int] = {}
        self._plan()

    @property
    def num_bytes(self) -> int:
        """Bytes of the static tensors that this recording owns."""
        own = sum(self.specs[i].num_bytes for i in self._copied if i not in self._buffers)
        return own + (self._upload.num_bytes if self._upload is not None else 0)

    def _plan(self) -> None:
        """Group the plain copies by dtype: one launch for a group instead of one for each input."""
        groups: dict[torch.dtype, list[int]] = {}
        self._grown = [i for i in self._copied if self._growth.get(i)]
        self._odd = []
        for i in self._copied:
            if not is_dense(self.specs[i]):
                self._odd.append(i)
            elif i not in self._grown:
                groups.setdefault(self.specs[i].dtype, []).append(i)
        self._groups = [(which, [self.tensors[i] for i in which]) for which in groups.values()]
        self._is_simple = not (self._odd or self._grown or self._upload)

    def load(self, inputs: Sequence[torch.Tensor], sizes: Sizes | None = None) -> None:
        """Enqueue the copies of one call's inputs on the current stream; nothing is waited for.

        ``sizes`` are the rung's own, for inputs that grow: they give the values of padding offsets.
        """
        for which, static in self._groups:
            if len(which) == 1:
                static[0].copy_(inputs[which[0]], True)
            else:
                torch._foreach_copy_(static, [inputs[i] for i in which], True)
        if self._is_simple:
            return
        for i in self._odd:
            flat(self.tensors[i], self.specs[i]).copy_(flat(inputs[i], self.specs[i]))
        for i in self._grown:
            self._load_grown(i, inputs[i], sizes or {})
        if self._upload is not None:
            self._upload.send([self._padded_on_host(i, inputs[i], sizes) for i in self._uploads])

    def _load_grown(self, i: int, given: torch.Tensor, sizes: Sizes) -> None:
        """Copy the given part and fill what the last call left beyond it."""
        static = self.tensors[i]
        real = static
        if given.shape != static.shape:
            for dim in self._growth[i]:
                real = real.narrow(dim, 0, given.shape[dim])
        real.copy_(given, non_blocking=True)
        if i in self._buffers:
            self._clean(self._buffers[i], static, given.shape[0], self._growth[i][0], sizes)
            return
        for dim, grows in self._growth[i].items():
            used, last = given.shape[dim], self._filled.get((i, dim), static.shape[dim])
            if used < last or len(self._growth[i]) > 1:
                end = last if len(self._growth[i]) == 1 else static.shape[dim]
                static.narrow(dim, used, end - used).fill_(fill_value(grows, sizes))
            self._filled[i, dim] = used

    @staticmethod
    def _clean(buffer: Buffer, static: torch.Tensor, used: int, grows: Grows, sizes: Sizes) -> None:
        """Fill what earlier calls, of this recording or of others, left beyond ``used`` in it."""
        rows, dirty = static.shape[0], buffer.dirty
        if used < min(dirty, rows):
            static[used : min(dirty, rows)].fill_(fill_value(grows, sizes))
        if dirty <= rows:  # else a larger recording's rows are still there, beyond this one
            buffer.dirty = used

    def _padded_on_host(self, i: int, given: torch.Tensor, sizes: Sizes | None) -> torch.Tensor:
        growth = self._growth.get(i)
        return pad(given, growth, self.specs[i].shape, sizes or {}) if growth else given

    def poison(self, inputs: Sequence[torch.Tensor]) -> None:
        """Fill what ``inputs`` leave unused of every floating static input with NaN."""
        for i in self._grown:
            static = self.tensors[i]
            if static.dtype.is_floating_point:
                for dim in self._growth[i]:
                    used = inputs[i].shape[dim]
                    static.narrow(dim, used, static.shape[dim] - used).fill_(float("nan"))
                    self._filled.pop((i, dim), None)
                if i in self._buffers:
                    self._buffers[i].dirty = max(self._buffers[i].dirty, static.shape[0])


def _is_plain(spec: TensorSpec) -> bool:
    """True for a contiguous tensor that needs no gradient."""
    step = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.stride), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return not spec.requires_grad


def fill_value(grows: Grows, sizes: Sizes) -> float:
    """What padding of this dimension holds in a rung of these sizes."""
    return sizes[grows.fill] if isinstance(grows.fill, Axis) else grows.fill


def pad(given: torch.Tensor, growth: Growth, shape: Sequence[int], sizes: Sizes) -> torch.Tensor:
    """A new tensor of ``shape``: ``given`` at the front of each growing dimension, the fill
    behind it.
    """
    padded = given.new_empty(tuple(shape))
    real = padded
    for dim, grows in growth.items():
        used = given.shape[dim]
        padded.narrow(dim, used, shape[dim] - used).fill_(fill_value(grows, sizes))
        real = real.narrow(dim, 0, used)
    real.copy_(given)
    return padded


def _make(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """A static tensor: defined contents (zero), and the spec's own requires-grad."""
    tensor = spec.empty(device)
    flat(tensor, spec).zero_()
    return tensor.requires_grad_() if spec.requires_grad else tensor
