"""Compares a kernel's results with its reference's, in bytes or within a stated bound.

NaN must stand at equal places in both; its payload is free.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """``x`` as integers of its element size, in a contiguous copy where it is not contiguous."""
    return x.contiguous().view(_BYTES[x.element_size()])


def first_difference(
    expected: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    allowed: Sequence[torch.Tensor] | None,
) -> str | None:
    """Why ``got`` is not as good as ``expected``, or ``None``.

    ``allowed`` is ``None`` for equal bytes, else per output the largest absolute difference, which
    broadcasts to the output. Infinities must be equal in both cases.
    """
    if len(expected) != len(got):
        return f"{len(got)} results, expected {len(expected)}"
    for index, (want, have) in enumerate(zip(expected, got, strict=True)):
        reason = _form(want, have) or _values(
            want, have, None if allowed is None else allowed[index]
        )
        if reason:
            return f"result {index}: {reason}"
    return None


def _form(want: torch.Tensor, have: torch.Tensor) -> str | None:
    for name in ("shape", "dtype", "device"):
        if getattr(want, name) != getattr(have, name):
            return f"{name} is {getattr(have, name)}, expected {getattr(want, name)}"
    return None


def _values(want: torch.Tensor, have: torch.Tensor, allowed: torch.Tensor | None) -> str | None:
    if not want.dtype.is_floating_point:
        wrong = want != have
        return _describe(wrong, want, have, "differ") if bool(wrong.any()) else None
    want_wide, have_wide = want.float(), have.float()
    want_nan, have_nan = want_wide.isnan(), have_wide.isnan()
    if bool((want_nan != have_nan).any()):
        return _describe(want_nan != have_nan, want_wide, have_wide, "NaN at other places")
    if allowed is None:
        wrong = (as_bytes(want) != as_bytes(have)) & ~want_nan
        return _describe(wrong, want_wide, have_wide, "bytes differ") if bool(wrong.any()) else None
    # The difference of equal infinities is NaN, so equality has to excuse it.
    near = ((want_wide - have_wide).abs() <= allowed) & want_wide.isfinite()
    wrong = ~near & (want_wide != have_wide) & ~want_nan
    return _describe(wrong, want_wide, have_wide, "beyond the bound") if bool(wrong.any()) else None


def _describe(wrong: torch.Tensor, want: torch.Tensor, have: torch.Tensor, what: str) -> str:
    place = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{what} in {int(wrong.sum())} of {wrong.numel()} values, "
        f"first at {place}: {have[place].item()!r}, expected {want[place].item()!r}"
    )
