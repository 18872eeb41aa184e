"""Segment attention on CUDA: three backends, none of which reads a device value on the host.

``varlen``   flash attention 2 as built into torch (float16 and bfloat16, head_dim up to 256);
             the segment count, the row count, ``max_length`` and the scale are baked when recorded
``sdpa``     dense attention over all rows; right only when there is one segment
``masked``   dense attention under a mask made of the offsets on the device: any dtype, quadratic
             in the number of rows, for what flash attention does not take (float32)

``auto`` looks at shapes and dtypes only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_FLASH_MAX_HEAD_DIM = 256
_FLASH_HEAD_DIM_STEP = 8


def select_backend(q: Tensor, offsets: Tensor, backend: str) -> str:
    """The backend that serves the call; ``ValueError`` if the one asked for cannot."""
    has_one_segment = offsets.shape[0] == 2
    fits_flash = q.dtype in _FLASH_DTYPES and q.shape[2] <= _FLASH_MAX_HEAD_DIM
    if backend == "auto":
        if has_one_segment:
            return "sdpa"
        return "varlen" if fits_flash else "masked"
    if backend == "sdpa" and not has_one_segment:
        raise ValueError(f"backend sdpa needs one segment, offsets hold {offsets.shape[0] - 1}")
    if backend == "varlen" and not fits_flash:
        raise ValueError(
            f"backend varlen needs float16 or bfloat16 and head_dim <= {_FLASH_MAX_HEAD_DIM}, "
            f"got {q.dtype} and {q.shape[2]}"
        )
    return backend


def attend(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int, scale: float, backend: str
) -> Tensor:
    """Functional form; arguments as in ``segment_attention``. Returns a contiguous tensor."""
    if q.shape[0] == 0:
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    chosen = select_backend(q, offsets, backend)
    if chosen == "varlen":
        return _varlen(q, k, v, offsets, max_length, scale)
    return _dense(q, k, v, scale, _segment_mask(q, offsets) if chosen == "masked" else None)


def attend_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_length: int,
    scale: float,
    backend: str,
    out: Tensor,
) -> None:
    """Writes into ``out``; without a copy where this torch can (varlen, head_dim not padded)."""
    inplace = getattr(torch.ops.aten, "_flash_attention_forward_no_dropout_inplace", None)
    if (
        inplace is not None
        and q.shape[0] > 0
        and q.shape[2] % _FLASH_HEAD_DIM_STEP == 0
        and select_backend(q, offsets, backend) == "varlen"
    ):
        inplace(
            out, q, k, v, offsets, offsets, max_length, max_length, 0.0, False, False, scale=scale
        )
    else:
        out.copy_(attend(q, k, v, offsets, max_length, scale, backend))


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int, scale: float
) -> Tensor:
    head_dim = q.shape[2]
    missing = -head_dim % _FLASH_HEAD_DIM_STEP
    if missing:
        q, k, v = (F.pad(x, (0, missing)) for x in (q, k, v))
    result: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, offsets, offsets, max_length, max_length, 0.0, False, False, scale=scale
    )[0]
    return result[..., :head_dim].contiguous() if missing else result


def _dense(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    q_1HTD, k_1HTD, v_1HTD = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    rows = F.scaled_dot_product_attention(q_1HTD, k_1HTD, v_1HTD, attn_mask=mask, scale=scale)
    return rows.squeeze(0).transpose(0, 1).contiguous()


def _segment_mask(q: Tensor, offsets: Tensor) -> Tensor:
    """(T, T) bool, true where query and key lie in one segment."""
    rows = torch.arange(q.shape[0], device=q.device, dtype=offsets.dtype)
    segment_of_row = torch.bucketize(rows, offsets[1:], right=True)
    return segment_of_row[:, None] == segment_of_row[None, :]
