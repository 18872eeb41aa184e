"""``ostinato bench kernels``: rates from known times; what has no GPU or no such name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ostinato.bench.attention_shapes import SHAPES, AttentionShape
from ostinato.bench.kernels import Ceilings, Report, attention_row, operator_row, usable
from ostinato.bench.timing import copies_of, copy_bandwidth, product_speed
from ostinato.cli import main as command
from ostinato.cli.bench_kernels import line, summary
from ostinato.errors import ConfigError, DeviceError
from ostinato.kernels.op import Operator
from ostinato.kernels.segment_attention.backends import BACKENDS
from ostinato.kernels.segment_attention.call import Backend
from ostinato.kernels.segment_attention.reference import check_offsets
from ostinato.kernels.workloads import Workload

CEILINGS = Ceilings(copy_bytes_per_s=1e9, product_flops_per_s=1e12)


def a_microsecond(calls: Sequence[Any]) -> float:
    """A clock; it makes the calls, so that a failure shows."""
    for call in calls:
        call()
    return 1e-6


def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def refuses(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no kernel image")


def workload(kernel: Any = twice, name: str = "twice") -> Workload:
    return Workload(Operator(name, twice, kernel, "bit-exact"), (torch.ones(128, 4),), "128x4")


def test_bytes_are_held_against_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.bench.timing.ROTATED_BYTES", 1)
    row = operator_row(workload(), CEILINGS, clock=a_microsecond)
    assert row.microseconds == {"fused": 1.0, "eager": 1.0, "copy": 1.0}
    # 2 x 128 x 4 x 4 bytes in a microsecond, and a copy moves a thousand.
    assert (row.rate, row.percent, row.ceiling) == (4.1, 409.6, "copy")
    assert "4 GB/s, 410 % of a copy (100 % of one of as many bytes)" in line(row)


def test_a_copy_of_as_many_bytes_is_held_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.bench.timing.ROTATED_BYTES", 10_000)
    sizes = {c().numel() for c in copies_of(4096, device="cpu")}  # type: ignore[attr-defined]
    assert sizes == {2048} and len(copies_of(4096, device="cpu")) == 3
    times = iter((2e-6, 9e-6, 1.5e-6))  # ours, the chain, the copy
    row = operator_row(workload(), CEILINGS, clock=lambda calls: next(times))
    assert row.percent_of_like == 75.0


def test_a_kernel_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.bench.timing.ROTATED_BYTES", 1)
    row = operator_row(workload(refuses), CEILINGS, clock=a_microsecond)
    assert row.microseconds == {"eager": 1.0, "copy": 1.0}
    assert row.rate is None and row.percent_of_like is None
    assert "no kernel image" in row.failed["fused"]
    assert "fused failed (RuntimeError: no kernel image)" in line(row)


def test_attention_is_held_against_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = AttentionShape("2 of 8", (8, 8), 16, heads=2)
    times = iter((2e-6, 1e-6))
    for name in ("triton", "cudnn", "cudnn_ragged", "fa3"):
        monkeypatch.delitem(BACKENDS, name)
    monkeypatch.setitem(BACKENDS, "other", Backend("other", lambda call, out: call.q))
    call = shape.call(torch.float32, "cpu")
    assert [b.name for b in usable(call)] == ["masked", "other"]
    row = attention_row(shape, call, CEILINGS, clock=lambda calls: next(times))
    assert row.microseconds == {"masked": 2.0, "other": 1.0}
    flops = 2 * (2 * 8 * 8 * 16 * 2) * 2  # segments, products (two operations each), heads
    assert shape.flops == flops
    assert row.percent == round(100 * flops / 1e6, 1)
    assert "TFLOP/s" in line(row)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.name} {s.head_dim}")
def test_shapes_keep_their_bounds(shape: AttentionShape) -> None:
    call = shape.call(torch.bfloat16, "meta")
    assert call.q.shape == (shape.num_rows, shape.heads, shape.head_dim)
    ends = torch.tensor([0, *shape.lengths]).cumsum(0).tolist()
    check_offsets(ends, shape.num_rows, call.max_length)
    assert call.num_segments == max(len(shape.lengths), shape.capacity)


def test_ceilings_count_what_moves_and_what_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.bench.timing.ROTATED_BYTES", 400)
    assert copy_bandwidth(a_microsecond, device="cpu") == pytest.approx(2 * 100 / 1e-6)
    speed = product_speed(torch.float32, a_microsecond, device="cpu")
    assert speed == pytest.approx(2 * 64**3 / 1e-6)


def test_a_report_is_json() -> None:
    row = operator_row(workload(), CEILINGS, clock=lambda calls: 1e-6)
    report = Report("card", "2.11", CEILINGS, (row,))
    assert json.loads(json.dumps(report.to_dict()))["rows"][0]["operator"] == "twice"
    assert "copy 1 GB/s, product 1 TFLOP/s" in summary(report)


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(command.app, ["bench", "kernels", "--only", "rope"])
    assert isinstance(result.exception, DeviceError)
    assert "needs an NVIDIA GPU" in str(result.exception)


def test_hiding_something_unknown_is_refused() -> None:
    result = CliRunner().invoke(command.app, ["bench", "kernels", "--hide", "fa3,flash"])
    assert isinstance(result.exception, ConfigError)
    assert "'flash'" in str(result.exception)
