"""Random programs of aten operators for the tape: views, writes, out=, overlaps, buffers, draws.

A program is a list of ``(operator, i, j, k)``. Running it keeps a pool of 4x4 float tensors, so
every program is valid; writes reach only tensors of the pool and the buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

T = torch.Tensor
Operator = Callable[..., T]


class Buffers:
    """State outside of a program that programs write."""

    def __init__(self) -> None:
        self.mean, self.variance = torch.zeros(4), torch.ones(4)
        self.history = torch.zeros(4, 4)

    def tensors(self) -> list[T]:
        return [self.mean, self.variance, self.history]


def _writable(a: T) -> T:
    return a.clone() if torch._debug_has_internal_overlap(a) != 0 else a


def _write_rows(a: T, b: T, k: int) -> T:
    a = _writable(a)
    a[k % 3 : k % 3 + 2].mul_(b[:2].clone())
    return a


def _index_write(a: T, b: T, k: int) -> T:
    a = _writable(a)
    return a.index_put_((b.argsort(1)[k],), b.clone(), accumulate=bool(k % 2))


def _out_new(a: T, b: T, k: int) -> T:
    return torch.add(a, b, alpha=k, out=torch.empty(0))


def _out_old(a: T, b: T, k: int) -> T:
    target = torch.empty(4, 8)[:, ::2]
    return torch.mul(a, b, out=target)


def _reshape_in_place(a: T, b: T, k: int) -> T:
    c = a * 2
    d = c + 1  # read before the shape of c changes
    c.t_().unsqueeze_(0).squeeze_(0)
    return c + d


def _resize(a: T, b: T, k: int) -> T:
    c = torch.empty(0).resize_(4, 4).copy_(a)
    d = c.sum(0)
    c.resize_(2, 2)
    return c.sum() + d.expand(4, 4)


def _foreach(a: T, b: T, k: int) -> T:
    parts = [a + 1, b.clone()]
    torch._foreach_mul_(parts, 0.5)
    return torch._foreach_add(parts[:1], parts[1:])[0]


def _set_number(a: T, b: T, k: int) -> T:
    a = _writable(a)
    a[k, 0] = 0.25
    a.diagonal().add_(1)
    return a


def _batch_norm(a: T, b: T, k: int, buffers: Buffers) -> T:
    return F.batch_norm(a, buffers.mean, buffers.variance, training=True)


def _history(a: T, b: T, k: int, buffers: Buffers) -> T:
    buffers.history[k].copy_(a[0])
    return buffers.history * 0.5


def _modes(a: T, b: T, k: int) -> T:
    with torch.inference_mode(bool(k % 2)), torch.no_grad():
        c = torch.sigmoid(a)
        return c.clone().add_(b)


OPERATORS: dict[str, Operator] = {
    "add": lambda a, b, k: a + b,
    "add_number": lambda a, b, k: a + 1.5,
    "integer_promotion": lambda a, b, k: a.sign().to(torch.int32) * 1.5,
    "transpose": lambda a, b, k: a.t(),
    "contiguous": lambda a, b, k: a.t().contiguous(),
    "expand": lambda a, b, k: a[k].expand(4, 4),
    "broadcast_column": lambda a, b, k: a[:, k : k + 1].expand(4, 4),
    "cat": lambda a, b, k: torch.cat([a[:k], b[k:]]),
    "roll": lambda a, b, k: a.roll(k, 0),
    "reshape": lambda a, b, k: a.t().reshape(2, 8).reshape(4, 4),
    "flip": lambda a, b, k: a.flip(0),
    "add_in_place": lambda a, b, k: _writable(a).add_(b.clone()),
    "relu_in_place": lambda a, b, k: F.relu(_writable(a), inplace=True),
    "clamp_view": lambda a, b, k: _writable(a).t().clamp_(-1, 1),
    "write_rows": _write_rows,
    "set_number": _set_number,
    "index_write": _index_write,
    "index_read": lambda a, b, k: a[b.argmax(1)],
    "gather": lambda a, b, k: a.gather(1, b.argsort(1)),
    "out_new": _out_new,
    "out_old": _out_old,
    "reshape_in_place": _reshape_in_place,
    "resize": _resize,
    "foreach": _foreach,
    "layer_norm": lambda a, b, k: F.layer_norm(a, (4,), b[k], b[0]),
    "softmax": lambda a, b, k: a.softmax(k % 2),
    "attention": lambda a, b, k: F.scaled_dot_product_attention(
        a.reshape(1, 2, 2, 4), b.reshape(1, 2, 2, 4), a.reshape(1, 2, 2, 4), is_causal=bool(k % 2)
    ).reshape(4, 4),
    "linear": lambda a, b, k: F.linear(a, b, a[k]),
    "sort": lambda a, b, k: a.sort(0).values,
    "half": lambda a, b, k: a.half().float(),
    "bits": lambda a, b, k: a.contiguous().view(torch.int32).bitwise_and(-256).view(torch.float32),
    "complex": lambda a, b, k: torch.fft.fft(a).real,
    "conjugate": lambda a, b, k: torch.view_as_real(torch.fft.fft(a).conj().resolve_conj())[..., 0],
    "where": lambda a, b, k: torch.where(a > b, a, b),
    "zeros": lambda a, b, k: torch.zeros_like(a).add_(b),
    "chunks": lambda a, b, k: torch.cat(torch.chunk(a, 2)[::-1]),
    "unsafe_chunks": lambda a, b, k: torch.cat(torch.unsafe_chunk(a, 2)),
    "modes": _modes,
    "batch_norm": _batch_norm,
    "history": _history,
    "dropout": lambda a, b, k: F.dropout(a, 0.5, training=True),
    "dropout_off": lambda a, b, k: F.dropout(a, 0.5, training=False),
    "noise": lambda a, b, k: a + torch.randn_like(b),
    "draw_in_place": lambda a, b, k: torch.empty_like(a).uniform_() + b,
}
_WITH_BUFFERS = {"batch_norm", "history"}
Step = tuple[str, int, int, int]


def run(program: list[Step], x: T, y: T, buffers: Buffers) -> list[T]:
    """The last four tensors of the pool. ``x`` and ``y`` are (4, 4) and are not written."""
    pool = [x * 1, y.clone(), (x + y).t()]
    for name, i, j, k in program:
        a, b = pool[i % len(pool)], pool[j % len(pool)]
        extra: tuple[Any, ...] = (buffers,) if name in _WITH_BUFFERS else ()
        pool.append(OPERATORS[name](a, b, k, *extra))
    return pool[-4:]
