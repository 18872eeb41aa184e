"""Segment attention on CUDA: the call goes to the backend that was asked for or chosen.

A backend that was chosen and fails is out from then on and the call is served by torch's own
kernel; one that was asked for by name raises.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.kernels.segment_attention import availability
from ostinato.kernels.segment_attention.backends import BACKENDS, steady
from ostinato.kernels.segment_attention.call import Call
from ostinato.kernels.segment_attention.choice import CHOOSER


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_length: int,
    scale: float,
    backend: str,
    is_v_finite: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Arguments as in ``segment_attention``. Returns ``out``, written without a copy where the
    backend can, or a new contiguous tensor.
    """
    if q.shape[0] == 0:
        return torch.empty_like(q) if out is None else out
    call = Call(q, k, v, offsets, max_length, scale, is_v_finite)
    result = _chosen(call, out) if backend == "auto" else _named(backend, call, out)
    if out is None or result is out:
        return result.contiguous()
    out.copy_(result)
    return out


def _named(name: str, call: Call, out: Tensor | None) -> Tensor:
    backend = BACKENDS[name]
    reason = backend.misfit(call) or availability.absence(backend, call.q.device)
    if reason:
        raise ValueError(f"backend {name} {reason}")
    return backend.attend(call, out)


def _chosen(call: Call, out: Tensor | None) -> Tensor:
    backend = CHOOSER.choose(call)
    try:
        return backend.attend(call, out)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        fallback = steady(call)
        if backend is fallback:
            raise
        availability.refuse(backend, call, f"it raised {type(error).__name__}: {error}")
        CHOOSER.drop(backend)
        return fallback.attend(call, out)
