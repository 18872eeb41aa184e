"""On a GPU the doctor also measures, and what it measures is there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ostinato.recording.doctor import Report, doctor, machine

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)


def test_many_small_kernels_are_launch_bound_and_a_recording_shows_it() -> None:
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(50)])
    layers = layers.eval().cuda()
    x = torch.randn(8, 64, device="cuda")
    with torch.inference_mode():
        report = doctor(layers, x)
    print(report)
    measured = report.measurements
    assert report.recordable and measured is not None
    assert measured.num_launches is None or measured.num_launches >= 100
    assert measured.replayed_us is not None and measured.replayed_us < measured.direct_us
    assert measured.busy_percent is not None and 0 < measured.busy_percent < 100
    assert measured.route.startswith("exact")
    assert Report.from_json(report.to_json()) == report


def test_a_refused_callable_is_timed_and_not_recorded() -> None:
    x = torch.randn(8, 64, device="cuda")
    before = x.clone()
    report = doctor(lambda x: x.add_(1) * x.sum().item() + torch.arange(64), x)
    print(report)
    assert {"input-write", "host-scalar"} <= {f.rule for f in report.refusals}
    assert torch.equal(x, before)
    report = doctor(lambda x: x * x.sum().item(), x)
    assert report.measurements is not None and report.measurements.replayed_us is None


def test_the_machine_names_its_card_and_backends() -> None:
    report = machine().check()
    print(report)
    assert report.gpu and report.capability and report.total_bytes
    assert report.backends["bf16 GEMM"] == "ok"
