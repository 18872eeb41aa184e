"""The backends that torch itself has.

``varlen``   flash attention 2 as built into torch (float16 and bfloat16, head_dim up to 256);
             the segment count, the row count, ``max_length`` and the scale are baked when recorded
``sdpa``     dense attention over all rows, torch's own choice of kernel; one segment only
``cudnn``    the same by cuDNN, called by its name because a choice by context manager would
             change a process-wide switch
``masked``   dense attention under a mask made of the offsets on the device: any dtype, quadratic
             in the number of rows; what is not finite in one segment shows in others
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.kernels.segment_attention.call import (
    Backend,
    Call,
    half_misfit,
    is_aligned,
    one_segment_misfit,
)

_FLASH_MAX_HEAD_DIM = 256
_FLASH_HEAD_DIM_STEP = 8
_CUDNN_MAX_HEAD_DIM = 128


def _varlen_misfit(call: Call) -> str:
    return half_misfit(call, max_head_dim=_FLASH_MAX_HEAD_DIM)


def _varlen(call: Call, out: Tensor | None) -> Tensor:
    q, k, v, offsets, longest, scale = call[:6]
    head_dim = q.shape[2]
    missing = -head_dim % _FLASH_HEAD_DIM_STEP
    inplace = getattr(torch.ops.aten, "_flash_attention_forward_no_dropout_inplace", None)
    if out is not None and inplace is not None and not missing:
        inplace(out, q, k, v, offsets, offsets, longest, longest, 0.0, False, False, scale=scale)
        return out
    if missing:
        q, k, v = (F.pad(x, (0, missing)) for x in (q, k, v))
    result: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, offsets, offsets, longest, longest, 0.0, False, False, scale=scale
    )[0]
    return result[..., :head_dim].contiguous() if missing else result


def _sdpa(call: Call, out: Tensor | None) -> Tensor:
    return _dense(call, None)


def _masked(call: Call, out: Tensor | None) -> Tensor:
    rows = torch.arange(call.q.shape[0], device=call.q.device, dtype=call.offsets.dtype)
    segment_of_row = torch.bucketize(rows, call.offsets[1:], right=True)
    return _dense(call, segment_of_row[:, None] == segment_of_row[None, :])


def _dense(call: Call, mask: Tensor | None) -> Tensor:
    q_1HTD, k_1HTD, v_1HTD = (x.transpose(0, 1).unsqueeze(0) for x in call[:3])
    rows = F.scaled_dot_product_attention(q_1HTD, k_1HTD, v_1HTD, attn_mask=mask, scale=call.scale)
    return rows.squeeze(0).transpose(0, 1).contiguous()


def _cudnn_misfit(call: Call) -> str:
    misfit = one_segment_misfit(call) or half_misfit(call, max_head_dim=_CUDNN_MAX_HEAD_DIM, step=8)
    if not misfit and not all(is_aligned(x) for x in call[:3]):
        return "needs q, k and v aligned to 16 bytes"
    return misfit


def _cudnn(call: Call, out: Tensor | None) -> Tensor:
    q_1HTD, k_1HTD, v_1HTD = (x.transpose(0, 1).unsqueeze(0) for x in call[:3])
    rows: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q_1HTD, k_1HTD, v_1HTD, None, False, 0.0, False, False, scale=call.scale
    )[0]
    return rows.squeeze(0).transpose(0, 1).contiguous()


VARLEN = Backend("varlen", _varlen, _varlen_misfit, is_probed=False)
SDPA = Backend("sdpa", _sdpa, one_segment_misfit, is_probed=False)
MASKED = Backend("masked", _masked, is_probed=False, is_candidate=False)
CUDNN = Backend(
    "cudnn",
    _cudnn,
    _cudnn_misfit,
    capabilities=frozenset({(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)}),
)
