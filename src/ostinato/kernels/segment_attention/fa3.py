"""Flash attention 3 from the optional package ``fa3-fwd``: bfloat16, forward only.

Its wheel holds kernels for compute capability 9.0; it ends the process on a CUDA error, so no other
card may ever try it. The raw operator is called, with an output of our own: the Python function
around it takes none, and its fake implementation imports a module that the wheel does not have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.kernels.segment_attention.call import Backend, Call, is_aligned

_MAX_HEAD_DIM = 256


def _misfit(call: Call) -> str:
    head_dim = call.q.shape[2]
    if call.q.dtype != torch.bfloat16:
        return f"needs bfloat16, got {call.q.dtype}"
    if head_dim > _MAX_HEAD_DIM or head_dim % 8:
        return f"needs head_dim <= {_MAX_HEAD_DIM} in steps of 8, got {head_dim}"
    if not all(is_aligned(x) for x in call[:3]):
        return "needs q, k and v aligned to 16 bytes"
    return ""


def finite(call: Call) -> Call:
    """``call`` with zeros for what is not finite in ``v``.

    The last tile of a segment's keys also holds rows of the next segment. Their weight is 0, but
    0 times NaN is NaN. A row that went wrong still shows in its own segment, through its key.
    """
    if call.num_segments == 1 or call.is_v_finite:
        return call
    v = torch.nan_to_num(call.v, nan=0.0, posinf=0.0, neginf=0.0)
    return call._replace(v=v, is_v_finite=True)


def attend(call: Call, out: Tensor | None) -> Tensor:
    """``out`` is used where its last dimension is contiguous and it is aligned."""
    return attend_as_is(finite(call), out)


def attend_as_is(call: Call, out: Tensor | None) -> Tensor:
    """Without a look at what is finite: for measurements."""
    import fa3_fwd_interface  # registers the operator

    q, k, v, offsets, longest, scale = call[:6]
    target = out if out is not None and out.stride(2) == 1 and is_aligned(out) else None
    if target is None:
        target = torch.empty_like(q, memory_format=torch.contiguous_format)
    forward = fa3_fwd_interface.fa3_fwd_cuda.fwd
    if call.num_segments == 1:  # a batch of one needs no kernel that reads offsets first
        batch = [x.unsqueeze(0) for x in (q, k, v)]
        forward(*batch, out=target.unsqueeze(0), softmax_scale=scale, num_splits=1)
        return target
    forward(
        q,
        k,
        v,
        out=target,
        cu_seqlens_q=offsets,
        cu_seqlens_k=offsets,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        softmax_scale=scale,
        num_splits=1,
    )
    return target


FA3 = Backend(
    "fa3",
    attend,
    _misfit,
    capabilities=frozenset({(9, 0)}),
    package="fa3-fwd",
    module="fa3_fwd_interface",
)
