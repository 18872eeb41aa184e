"""Attention that is called directly between two pieces of a recording, not recorded itself."""

from __future__ import annotations

from torch import Tensor

from ostinato.lm.attention import attend
from ostinato.lm.contract import Batch
from ostinato.recording.pieces import direct


def attend_into(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    batch: Batch,
    max_query_length: int,
    scale: float,
) -> None:
    """``attend`` with its result in ``out``, whose address the next piece knows."""
    out.copy_(attend(q, k, v, cache, batch, max_query_length=max_query_length, scale=scale))


def attend_apart(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    batch: Batch,
    *,
    max_query_length: int,
    scale: float,
) -> Tensor:
    """See ``Attend``: the piece before it ends here, and the next begins with its result."""
    out = q.new_empty(q.shape)
    direct(attend_into, out, q, k, v, cache, batch, max_query_length, scale)
    return out
