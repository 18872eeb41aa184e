"""The unit in which the bounds of close operators are stated."""

from __future__ import annotations

import torch

FP32_EPS = torch.finfo(torch.float32).eps


def units(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """At least one unit in the last place of ``dtype`` (x's own) at ``|x|``, in fp32.

    One step between denormal numbers is added, so that it is never zero.
    """
    info = torch.finfo(dtype or x.dtype)
    return x.float().abs() * info.eps + info.tiny * info.eps
