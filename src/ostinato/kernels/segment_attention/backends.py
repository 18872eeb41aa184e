"""The list of backends, and the one that serves without a clock."""

from __future__ import annotations

from torch import Tensor

from ostinato.kernels.op import lazy_kernel
from ostinato.kernels.segment_attention.call import Backend, Call
from ostinato.kernels.segment_attention.cudnn_ragged import CUDNN_RAGGED
from ostinato.kernels.segment_attention.fa3 import FA3
from ostinato.kernels.segment_attention.torch_backends import CUDNN, MASKED, SDPA, VARLEN

_TRITON_MAX_HEAD_DIM = 256
_kernel = lazy_kernel(__package__, "segment_attention")


def _triton_misfit(call: Call) -> str:
    if call.q.dtype.itemsize > 4:
        return f"needs float16, bfloat16 or float32, got {call.q.dtype}"
    if call.q.shape[2] > _TRITON_MAX_HEAD_DIM:
        return f"needs head_dim <= {_TRITON_MAX_HEAD_DIM}, got {call.q.shape[2]}"
    return ""


def _triton(call: Call, out: Tensor | None) -> Tensor:
    target = out if out is not None and out.stride(2) == 1 else None
    given = {} if target is None else {"out": target}
    result: Tensor = _kernel(*call[:6], **given)
    return result


TRITON = Backend("triton", _triton, _triton_misfit, package="triton", module="triton")

BACKENDS = {b.name: b for b in (VARLEN, SDPA, CUDNN, FA3, CUDNN_RAGGED, TRITON, MASKED)}


def steady(call: Call) -> Backend:
    """Torch's own kernel for the call: flash attention, else dense, under a mask if it must be."""
    return next(b for b in (VARLEN, SDPA, MASKED) if not b.misfit(call))
