"""The check after recording: a replay on inputs it was not recorded with, against a direct call.

This file compares and varies; ``recorder.py`` decides what is compared. "Bit-exact" is equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ostinato.errors import GateFailed
from ostinato.recording.buffers import copy_of

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tolerance_of(dtype: torch.dtype) -> float:
    """Largest relative distance by which equal work at another padded size may differ."""
    return _TOLERANCES.get(dtype, 1e-4)


def vary(tensor: torch.Tensor, step: int) -> torch.Tensor:
    """Another tensor of the same kind: floating values move, everything else stays.

    Magnitudes are rolled by ``step`` places while each element keeps its sign, so mean and scale
    stay; infinities and NaN stay where they are. Integers and booleans may be offsets: they stay.
    Strides stay, and so does what lies between the elements.
    """
    kept = copy_of(tensor)
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return kept
    once = kept
    for dim, stride in enumerate(kept.stride()):
        if stride == 0:  # an expanded dimension holds one value
            once = once.narrow(dim, 0, 1)
    values = once.reshape(-1)
    finite = torch.isfinite(values)
    magnitude = torch.where(finite, values.abs(), torch.zeros_like(values))
    moved = magnitude.roll(step)
    if torch.equal(moved, magnitude):  # all equal, or one element: rolling changes nothing
        ramp = torch.arange(values.numel(), device=values.device) % 7
        moved = magnitude * (0.75 + 0.0625 * (ramp + step % 3)).to(values.dtype)
    varied = torch.where(finite, torch.copysign(moved, values), values)
    once.copy_(varied.reshape(once.shape))
    return kept


def is_bit_exact(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True when shape, dtype and every byte are equal (NaN equal to the same NaN, 0.0 not to
    -0.0).
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    if not tensor.dtype.is_floating_point:
        return tensor
    return tensor.contiguous().view(_BITS[tensor.dtype.itemsize])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """``|a - b| / |b|`` in float64 over the finite values; infinite where other values are
    finite.
    """
    if a.numel() == 0:
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return 0.0 if torch.equal(a, b) else float("inf")
    x, y = a.double() if not a.is_complex() else a, b.double() if not b.is_complex() else b
    finite = torch.isfinite(x) & torch.isfinite(y)
    same_special = torch.where(finite, torch.zeros_like(x), x).nan_to_num(1.0, 2.0, 3.0)
    other = torch.where(finite, torch.zeros_like(y), y).nan_to_num(1.0, 2.0, 3.0)
    if not torch.equal(same_special, other):
        return float("inf")
    zero = torch.zeros_like(x)
    gap = torch.where(finite, x - y, zero).norm()
    scale = torch.where(finite, y, zero).norm()
    return float(gap / scale) if float(scale) > 0 else (0.0 if float(gap) == 0 else float("inf"))


@dataclass(frozen=True)
class Verdict:
    """``worst`` is the largest relative distance seen (0 for equal bytes); ``is_exact`` says
    equal bytes.
    """

    is_exact: bool
    worst: float
    note: str = ""


def check_finite(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raise ``GateFailed`` when most floating values are not finite: such a comparison proves
    nothing.
    """
    total = finite = 0
    for t in tensors:
        if t.is_floating_point():
            total += t.numel()
            finite += int(torch.isfinite(t).sum())
    if total and 2 * finite < total:
        raise GateFailed(
            f"{total - finite} of {total} values of {what} are not finite: nothing can be compared",
            rule="gate-not-finite",
            fix="record with an example that gives finite results, or pass gate_inputs",
        )


def check_spread(spread: Sequence[float], results: Sequence[torch.Tensor], what: str) -> None:
    """Raise ``GateFailed`` where two direct calls differ by more than the order of sums explains.

    A replay would repeat one of many answers for ever.
    """
    for i, (gap, result) in enumerate(zip(spread, results, strict=True)):
        limit = tolerance_of(result.dtype)
        if gap > limit:
            raise GateFailed(
                f"result {i} of {what} differs between two direct calls by {gap:.3g}, more than "
                f"the order of sums explains ({limit:.3g})",
                rule="gate-not-repeatable",
                fix="something outside of torch changes from call to call: Python's or numpy's "
                "random numbers, a clock, a counter; pass it in as an argument",
            )


def compare_exact(
    got: Sequence[torch.Tensor],
    want: Sequence[torch.Tensor],
    spread: Sequence[float] | None,
    what: str,
) -> Verdict:
    """Equal bytes, or, where the direct call does not repeat itself, within its own spread.

    ``spread`` holds per result the distance between two direct calls; ``None`` when they were
    equal. Raises ``GateFailed`` naming the result and the size of the difference.
    """
    worst, note = 0.0, ""
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if is_bit_exact(a, b):
            continue
        gap = distance(a, b)
        if spread is None or gap > 4 * spread[i]:
            raise GateFailed(
                f"result {i} of {what} is not the direct call's: relative distance {gap:.3g}",
                rule="gate",
                fix="the region reads something a replay does not see; ostinato doctor lists it",
            )
        worst, note = max(worst, gap), "the direct call does not repeat itself; its spread was used"
    return Verdict(worst == 0.0 and not note, worst, note)


def _same_shape(a: torch.Tensor, b: torch.Tensor, i: int, what: str) -> None:
    if a.shape != b.shape:
        raise GateFailed(
            f"result {i} of {what} has shape {tuple(a.shape)}; the unpadded direct call's has "
            f"{tuple(b.shape)}",
            rule="gate-padding",
            fix="its length does not follow what grows; state how it does, or record exact sizes",
        )


def compare_close(
    got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], tolerance: float | None, what: str
) -> Verdict:
    """Within ``tolerance`` (relative), or the dtype's own. Raises ``GateFailed``."""
    worst = 0.0
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        _same_shape(a, b, i, what)
        gap = 0.0 if is_bit_exact(a, b) else distance(a, b)
        limit = tolerance if tolerance is not None else tolerance_of(b.dtype)
        if not gap <= limit:
            raise GateFailed(
                f"result {i} of {what} is {gap:.3g} away from the unpadded direct call's; "
                f"expected at most {limit:.3g}",
                rule="gate-padding",
                fix="padding reaches real rows: check the fills of what grows",
            )
        worst = max(worst, gap)
    return Verdict(worst == 0.0, worst)
