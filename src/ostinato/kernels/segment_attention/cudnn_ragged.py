"""cuDNN's attention over ragged tensors, through the optional package ``nvidia-cudnn-frontend``.

A plan is built at the first call of a shape (a tenth of a second and more), never while recording:
for a ladder of shapes that is half a minute, and it was the fastest for none of them on an H200, so
it serves where it is asked for by name. Lengths and element offsets are made on the device.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato import state
from ostinato.kernels.segment_attention.call import Backend, Call, half_misfit, is_aligned
from ostinato.kernels.segment_attention.fa3 import finite

_MAX_HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class _Plan:
    graph: Any
    q: Any
    k: Any
    v: Any
    out: Any
    lengths: Any
    input_offsets: Any
    output_offsets: Any
    num_workspace_bytes: int


# cuDNN's handles are not safe to share, and neither is setting the stream of one.
_lock = threading.Lock()
_handles: dict[torch.device, Any] = {}
_plans: dict[tuple[object, ...], _Plan] = {}


def _misfit(call: Call) -> str:
    misfit = half_misfit(call, max_head_dim=_MAX_HEAD_DIM, step=8)
    if misfit:
        return misfit
    if call.q.stride() != call.k.stride() or call.q.stride() != call.v.stride():
        return "needs q, k and v of equal strides"
    return "" if all(is_aligned(x) for x in call[:3]) else "needs q, k and v aligned to 16 bytes"


def attend(call: Call, out: Tensor | None) -> Tensor:
    """``out`` is used where it is contiguous."""
    import cudnn

    call = finite(call)
    q, k, v, offsets = call[:4]
    v = v if v.stride() == q.stride() else torch.empty_strided(
        q.shape, q.stride(), dtype=q.dtype, device=q.device
    ).copy_(v)  # fmt: skip
    target = out if out is not None and out.is_contiguous() else torch.empty_like(
        q, memory_format=torch.contiguous_format
    )  # fmt: skip
    with torch.cuda.device(q.device), _lock:
        handle = _handle(cudnn, q.device)
        plan = _plan(cudnn, handle, call)
        workspace = q.new_empty(plan.num_workspace_bytes, dtype=torch.uint8)
        starts = offsets.long()
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        plan.graph.execute(
            {
                plan.q: q,
                plan.k: k,
                plan.v: v,
                plan.out: target,
                plan.lengths: _column(offsets[1:] - offsets[:-1]),
                plan.input_offsets: _column(starts * q.stride(0)),
                plan.output_offsets: _column(starts * target.stride(0)),
            },
            workspace,
            handle=handle,
        )
    return target


def _column(x: Tensor) -> Tensor:
    return x.view(-1, 1, 1, 1)


def _handle(cudnn: Any, device: torch.device) -> Any:
    if device not in _handles:
        _handles[device] = cudnn.create_handle()
    return _handles[device]


def _plan(cudnn: Any, handle: Any, call: Call) -> _Plan:
    q = call.q
    sizes = (q.shape[1:], q.stride(), call.num_segments, call.max_length)
    key = (q.device, q.dtype, call.scale, sizes)
    if key not in _plans:
        if state.is_recording() or torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"no plan of cuDNN for {sizes} was built before this recording")
        _plans[key] = _build(cudnn, handle, call)
    return _plans[key]


def _build(cudnn: Any, handle: Any, call: Call) -> _Plan:
    _, heads, head_dim = call.q.shape
    row, head, _ = call.q.stride()
    kinds = cudnn.data_type
    io = kinds.BFLOAT16 if call.q.dtype == torch.bfloat16 else kinds.HALF
    graph = cudnn.pygraph(
        io_data_type=io,
        intermediate_data_type=kinds.FLOAT,
        compute_data_type=kinds.FLOAT,
        handle=handle,
    )
    size = [call.num_segments, heads, call.max_length, head_dim]

    def integers(name: str, count: int, kind: Any) -> Any:
        return graph.tensor(name=name, dim=[count, 1, 1, 1], stride=[1, 1, 1, 1], data_type=kind)

    lengths = integers("lengths", call.num_segments, kinds.INT32)
    inputs = integers("input_offsets", call.num_segments + 1, kinds.INT64)
    outputs = integers("output_offsets", call.num_segments + 1, kinds.INT64)
    packed: list[Any] = []
    for name in "qkv":
        tensor = graph.tensor(
            name=name, dim=size, stride=[row * call.max_length, head, row, 1], data_type=io
        )
        tensor.set_ragged_offset(inputs)
        packed.append(tensor)
    out, _ = graph.sdpa(
        name="sdpa",
        **dict(zip("qkv", packed, strict=True)),
        is_inference=True,
        attn_scale=call.scale,
        use_padding_mask=True,
        seq_len_q=lengths,
        seq_len_kv=lengths,
    )
    width = heads * head_dim
    out.set_output(True).set_dim(size).set_stride([width * call.max_length, head_dim, width, 1])
    out.set_ragged_offset(outputs)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    q, k, v = packed
    return _Plan(graph, q, k, v, out, lengths, inputs, outputs, graph.get_workspace_size())


CUDNN_RAGGED = Backend(
    "cudnn_ragged",
    attend,
    _misfit,
    capabilities=frozenset({(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)}),
    package="nvidia-cudnn-frontend",
    module="cudnn",
    is_candidate=False,
)
