"""Programs in which the recorded call is the first of its kind in the process (contract 4)."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ostinato
from ostinato.recording.cuda import CudaBackend
from ostinato.recording.lane import Lane
from tests.gpu.hidden import tunes_once
from tests.gpu.regions import DEVICE, T, exactly, same, tensor


def _check(fn: Any, *shape: int, dtype: torch.dtype = torch.float32) -> None:
    graphed = ostinato.graph(fn)
    held = [exactly(graphed, tensor(seed, *shape, dtype=dtype)) for seed in range(3)]
    for seed, got in enumerate(held):
        assert same(got, fn(tensor(seed, *shape, dtype=dtype)))


def libraries() -> None:
    """GEMMs of several types, attention, a convolution, a factorisation: none has run before."""
    _check(lambda x: x @ x @ x, 256, 256)
    _check(lambda x: x @ x, 96, 96, dtype=torch.float64)
    _check(lambda x: torch.bmm(x, x), 4, 128, 128, dtype=torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float32):
        _check(lambda x: F.scaled_dot_product_attention(x, x, x), 2, 4, 128, 64, dtype=dtype)
    weight = tensor(9, 8, 3, 3, 3)
    _check(lambda x: F.conv2d(x, weight), 2, 3, 32, 32)
    _check(lambda x: torch.sort(torch.fft.rfft(x).abs())[0], 4, 1024)


def triton_kernel() -> None:
    """A Triton kernel inside an operator compiles in the warm-up, not in the capture."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("Triton needs a C compiler")
    from tests.gpu.triton_ops import halved

    _check(lambda x: torch.sin(halved(x)), 5000)
    assert same(halved(tensor(0, 64)), tensor(0, 64) / 2)


def inference_mode_then_outside() -> None:
    """The first recording of the process draws under inference mode, the second outside of it."""

    def draws(x: T) -> T:
        return torch.sin(x) + torch.randn_like(x)

    graphed, x = ostinato.graph(draws), tensor(0, 4096)
    for is_inference in (True, False, True):
        with torch.inference_mode(is_inference):
            exactly(graphed, x)
            torch.manual_seed(1)
            want = [draws(x) for _ in range(2)]
            torch.manual_seed(1)
            assert all(same(exactly(graphed, x), w) for w in want)


def warm_up_before_the_capture() -> None:
    """An operator that waits at its first call with a shape, straight on the backend."""
    lane = Lane(CudaBackend(DEVICE))
    x, out = tensor(0, 4096), torch.empty(4096, device=DEVICE)

    def body() -> None:
        out.copy_(torch.sin(tunes_once(x)))

    def record() -> Any:
        pool = lane.backend.open_pool()
        pool.warm_up(body)
        return pool, pool.record(body)

    pool, recorded = lane.run(record)
    x.copy_(tensor(1, 4096))
    recorded.replay()
    assert same(out, torch.sin(tensor(1, 4096) * 2))
    torch.cuda.synchronize()
    recorded.free()
    pool.close()
    lane.close()
