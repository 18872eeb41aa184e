"""Callables that tests record, and tensors to call them with. All work on the CPU, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

import ostinato
from ostinato.errors import RecordingRefused
from ostinato.recording.gate import is_bit_exact
from ostinato.recording.graphed import Graphed

T = torch.Tensor
HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")


def tensor(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> T:
    """Normal numbers that depend on the seed alone; drawn on the host."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def offsets(*lengths: int) -> T:
    """Boundaries of segments of these lengths."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(DEVICE, torch.int32)


def waves(x: T) -> T:
    """72 elementwise kernels: equal bytes at every size."""
    for _ in range(24):
        x = torch.sin(x) * 1.01 + 0.1
    return x


def few(x: T) -> T:
    """Three elementwise kernels."""
    return torch.sin(x) * 1.01 + 0.1


def segments(x: T, bounds: T) -> T:
    """Softmax attention of a row over the rows of its own segment; boundaries are data.

    Rows past the last boundary are a segment of their own. What other segments hold is never
    multiplied, not even by zero.
    """
    rows = torch.arange(x.shape[0], device=x.device)
    which = torch.searchsorted(bounds[1:].contiguous(), rows.to(torch.int32), right=True)
    is_own = which[:, None] == which[None, :]
    scores = (x @ x.T) / x.shape[1] ** 0.5
    shares = torch.softmax(scores.masked_fill(~is_own, float("-inf")), -1)
    values = x[None].expand(x.shape[0], -1, -1).masked_fill(~is_own[:, :, None], 0.0)
    return (shares[:, :, None] * values).sum(1)


def same(got: T, want: T) -> bool:
    """Bit-exact."""
    return is_bit_exact(got, want)


def exactly(graphed: Graphed, *args: object, **kwargs: object) -> T:
    """One call by the exact route, which must serve it."""
    with ostinato.route("exact"):
        result: T = graphed(*args, **kwargs)
    route = graphed.why()
    assert route is not None and route.route == "exact", route
    return result


def check_exact(graphed: Graphed, fn: Callable[..., T], calls: Sequence[Sequence[T]]) -> None:
    """Exact calls equal direct ones byte for byte; all results are held to the end."""
    held = [exactly(graphed, *call) for call in calls]
    for got, call in zip(held, calls, strict=True):
        assert same(got, fn(*call))


@contextmanager
def refused(rule: str) -> Iterator[pytest.ExceptionInfo[RecordingRefused]]:
    """The block ends with a refusal by this rule."""
    with pytest.raises(RecordingRefused, match=rf"\[{rule}\]") as caught:
        yield caught
