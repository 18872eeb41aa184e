"""``ostinato doctor``: finds a callable by name, asks the doctor, prints the report.

The rules themselves live in ``ostinato.recording.doctor``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from ostinato.cli.nvidia import Gpu, find_gpu
from ostinato.errors import ConfigError

Doctor = Callable[..., Any]


def find_object(target: str) -> Any:
    """The object that ``package.module:name`` names; modules of the current folder count too."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise ConfigError(f"{target!r}: expected package.module:callable")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{target!r}: {error}") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"{target!r}: {module_name} has no {path}")
        found = getattr(found, name)
    return found


def example_inputs(target: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What ``--inputs package.module:callable`` returns, as positional and keyword arguments."""
    if target is None:
        return (), {}
    made = find_object(target)()
    if isinstance(made, Mapping):
        return (), dict(made)
    return (made if isinstance(made, tuple) else (made,)), {}


def load_doctor() -> Doctor:
    """The runtime's doctor, or a clear word where this build has none."""
    if importlib.util.find_spec("ostinato.recording.doctor") is None:
        raise ConfigError("this build of ostinato has no doctor (ostinato.recording.doctor)")
    module = importlib.import_module("ostinato.recording.doctor")
    doctor: Doctor = module.doctor
    return doctor


def as_plain(report: Any) -> dict[str, Any]:
    """A report as plain values for ``--json``."""
    if is_dataclass(report) and not isinstance(report, type):
        plain = asdict(report)
    else:
        plain = {"findings": [vars(finding) for finding in report.findings]}
    return {**plain, "recordable": bool(report.recordable)}


def as_text(target: str, report: Any) -> str:
    """One line of verdict, one paragraph per finding."""
    verdict = "can be recorded" if report.recordable else "cannot be recorded as it is"
    lines = [f"{target} {verdict}"]
    for finding in report.findings:
        for name in ("rule", "location", "message", "on_gpu", "fix"):
            value = getattr(finding, name, None)
            if value:
                lines.append(f"  {name}: {value}")
        lines.append("")
    return "\n".join(lines).rstrip()


def machine_facts(gpu: Gpu | None) -> dict[str, Any]:
    """Python, torch, driver and card; what torch can tell only where it can use the card."""
    import torch

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "gpu": gpu.name if gpu else None,
        "driver": gpu.driver if gpu else None,
        "is_usable": torch.cuda.is_available(),
    }
    if facts["is_usable"]:
        major, minor = torch.cuda.get_device_capability()
        facts["architecture"] = f"sm_{major}{minor}"
        facts["free_bytes"], facts["total_bytes"] = torch.cuda.mem_get_info()
    return facts


def machine_text(facts: Mapping[str, Any]) -> str:
    """One fact a line."""
    return "\n".join(f"{name:<12} {'none' if v is None else v}" for name, v in facts.items())


def examine(target: str, inputs: str | None, *, as_json: bool, doctor: Doctor | None = None) -> str:
    """The report on a callable, ready to print."""
    fn = find_object(target)
    args, kwargs = example_inputs(inputs)
    report = (doctor or load_doctor())(fn, *args, **kwargs)
    if as_json:
        return json.dumps(as_plain(report), indent=2, default=str)
    return as_text(target, report)


def examine_machine(cuda_visible_devices: str | None, *, as_json: bool) -> str:
    """The report on this machine, ready to print."""
    facts = machine_facts(find_gpu(cuda_visible_devices))
    return json.dumps(facts, indent=2) if as_json else machine_text(facts)
