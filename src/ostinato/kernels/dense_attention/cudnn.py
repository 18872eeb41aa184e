"""cuDNN's attention where it is the faster one; tried once per device, dtype and width of heads."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from ostinato import state
from ostinato.kernels.bounds import FP32_EPS

MIN_ROWS = 256
"""Below, the backends take the same few microseconds."""
MIN_CAPABILITY = (9, 0)
DTYPES = (torch.bfloat16, torch.float16)
_known: dict[tuple[int, torch.dtype, int], bool] = {}
_log = logging.getLogger(__name__)


def is_preferred(q: Tensor) -> bool:
    """True for many rows, once cuDNN has answered rightly on this device. Never tries in a
    recording.
    """
    is_candidate = (
        q.shape[0] >= MIN_ROWS
        and q.dtype in DTYPES
        and torch.backends.cuda.cudnn_sdp_enabled()
        and _capability(q.device) >= MIN_CAPABILITY
    )
    if not is_candidate:
        return False
    key = (q.device.index, q.dtype, q.shape[2])
    found = _known.get(key)
    if found is None:
        if state.is_recording() or torch.cuda.is_current_stream_capturing():
            return False
        found = _known[key] = _answers_rightly(q)
    return found


def by_cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(T, heads, head_dim), contiguous. No mask, no dropout, nothing kept for a gradient."""
    q_1HTD, k_1HTD, v_1HTD = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    rows: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        q_1HTD, k_1HTD, v_1HTD, None, False
    )[0]
    return rows.squeeze(0).transpose(0, 1).contiguous()


def _answers_rightly(like: Tensor) -> bool:
    """A small call against torch's preferred backend, within both backends' rounding."""
    from ostinato.kernels.dense_attention import by_torch

    generator = torch.Generator(like.device).manual_seed(0)
    shape = (3, MIN_ROWS, 2, like.shape[2])
    q, k, v = torch.randn(shape, generator=generator, device=like.device).to(like.dtype)
    try:
        difference = (by_cudnn(q, k, v).float() - by_torch(q, k, v).float()).abs().max()
        bound = (6 * torch.finfo(like.dtype).eps + 128 * FP32_EPS) * v.float().abs().max()
        is_right = bool(difference <= bound)
        reason = f"it differs by {difference.item():.3g}"
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        is_right, reason = False, str(error).splitlines()[0]
    if not is_right:
        _log.warning("attention runs without cuDNN on %s: %s", like.device, reason)
    return is_right


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
