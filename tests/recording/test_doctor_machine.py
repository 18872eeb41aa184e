"""Reports on a machine, GPUs that torch cannot use, and callables found by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ostinato.errors import ConfigError, DeviceError
from ostinato.recording import doctor_machine
from ostinato.recording.doctor import MachineReport, examine, machine, resolve
from ostinato.recording.doctor_machine import VisibleGpu, find_gpu
from ostinato.recording.doctor_resolve import calls_of
from tests.recording import doctor_examples

HERE = doctor_examples.__name__


def test_a_machine_without_a_gpu_says_so() -> None:
    report = machine(find=lambda: None)
    assert report.error is None and report.check() is report
    assert report.torch == torch.__version__ and report.torch in str(report)
    if not torch.cuda.is_available():
        assert (report.gpu, report.capability, report.backends) == (None, None, {})
        assert "none: recordings are made on the CPU tape" in str(report)
    assert MachineReport.from_json(report.to_json()) == report


def test_a_visible_gpu_that_torch_cannot_use_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = VisibleGpu("NVIDIA H200", "470.82")
    monkeypatch.setattr(doctor_machine, "_problem", lambda: "driver too old")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    report = machine(find=lambda: gpu)
    for part in ("NVIDIA H200", "470.82", "580 or newer", "driver too old"):
        assert part in str(report.error) and part in str(report)
    with pytest.raises(DeviceError, match=r"470\.82"):
        report.check()
    assert machine(find=lambda: gpu, cuda_visible_devices="").error is None
    assert machine(find=lambda: gpu, cuda_visible_devices="0").error is not None
    monkeypatch.setattr(doctor_machine, "_problem", lambda: None)
    assert machine(find=lambda: gpu).error is None


def test_the_kernel_drivers_file_shows_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_tool(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(doctor_machine.subprocess, "run", no_tool)
    proc = tmp_path / "version"
    assert find_gpu(proc) is None
    proc.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Tue\n")
    assert find_gpu(proc) == VisibleGpu("an NVIDIA GPU", "580.159.03")


def test_a_callable_is_found_by_name_with_its_examples() -> None:
    fn, calls = resolve(f"{HERE}:double")
    assert fn is doctor_examples.double and len(calls) == 1
    assert examine(fn, calls).recordable
    fn, calls = resolve(f"{HERE}:add")
    assert fn is doctor_examples.add and [len(args[0]) for args, _ in calls] == [2, 3]
    assert examine(fn, calls).recordable


@pytest.mark.parametrize(
    ("made", "calls"),
    [
        (5, [((5,), {})]),
        ((5, 6), [((5, 6), {})]),
        ({"times": 3}, [((), {"times": 3})]),
        (((5,), {"times": 3}), [((5,), {"times": 3})]),
        (([5], {}), [((5,), {})]),
        ([5, (6, 7), {"times": 3}], [((5,), {}), ((6, 7), {}), ((), {"times": 3})]),
    ],
)
def test_examples_come_in_any_form(made: object, calls: list[object]) -> None:
    assert calls_of(lambda: made, "make()") == calls


def test_what_goes_wrong_in_their_code_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_at_import.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot be imported: ZeroDivisionError: division"):
        resolve("raises_at_import:f")
    with pytest.raises(ConfigError, match=r"make\(\) raised ZeroDivisionError: division"):
        calls_of(lambda: 1 / 0, "make()")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("double", "expected package.module:callable"),
        (f"{HERE}:", "expected package.module:callable"),
        ("no_such_module:f", "No module named"),
        (f"{HERE}:triple", "has no triple"),
        (f"{HERE}:number", "is a int; expected a callable"),
        (f"{HERE}:Nested.bad", r"bad_example\(\) returned an empty list; expected at least one"),
        ("json:dumps", r"dumps_example\(\) or example_inputs\(\)"),
    ],
)
def test_what_is_missing_is_named(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(target)
