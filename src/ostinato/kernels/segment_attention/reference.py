"""What segment attention means, segment by segment, in float32.

Reads the offsets on the host, so it checks the contract that the device kernels rely on and cannot
check. It is the CPU implementation of the operator and the yardstick of every other one.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor


def check_offsets(boundaries: list[int], num_rows: int, max_length: int) -> None:
    """Raise ``ValueError`` unless every row belongs to a segment of at most ``max_length`` rows."""
    if boundaries[0] != 0 or boundaries[-1] != num_rows:
        raise ValueError(
            f"offsets must run from 0 to {num_rows} (the number of rows), "
            f"got {boundaries[0]} to {boundaries[-1]}"
        )
    for start, end in pairwise(boundaries):
        if end < start:
            raise ValueError(f"offsets must not decrease, got {start} before {end}")
        if end - start > max_length:
            raise ValueError(
                f"segment {start}:{end} has {end - start} rows, max_length is {max_length}"
            )


def segment_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int, scale: float, out: Tensor
) -> None:
    """``out[s] = softmax(scale * q[s] @ k[s]^T) @ v[s]`` for each segment ``s``, float32 inside.

    Shapes and errors as in ``segment_attention``; every row of ``out`` is written.
    """
    boundaries: list[int] = offsets.tolist()
    check_offsets(boundaries, q.shape[0], max_length)
    for start, end in pairwise(boundaries):
        if start == end:
            continue
        q_1HLD, k_1HLD, v_1HLD = (
            x[start:end].transpose(0, 1).unsqueeze(0).float() for x in (q, k, v)
        )
        rows_1HLD = F.scaled_dot_product_attention(q_1HLD, k_1HLD, v_1HLD, scale=scale)
        out[start:end] = rows_1HLD.squeeze(0).transpose(0, 1)
