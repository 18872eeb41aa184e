"""Why a callable cannot be recorded, found without a GPU.

The callable runs under watch: three times with equal inputs, then with other values. What the runs
do, and where they differ, is told with rule, line and fix. Afterwards inputs, state and random
generators are as before. ``machine`` reports on the machine, ``resolve`` finds a callable by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ostinato.errors import ConfigError
from ostinato.recording.doctor_examine import Examination
from ostinato.recording.doctor_machine import MachineReport, machine
from ostinato.recording.doctor_report import Diagnosis, Measurements, Report
from ostinato.recording.doctor_resolve import Resolved, resolve

__all__ = [
    "Diagnosis",
    "MachineReport",
    "Measurements",
    "Report",
    "Resolved",
    "doctor",
    "examine",
    "machine",
    "resolve",
]


def doctor(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Examine one call of ``fn``, in the caller's grad, inference and autocast modes.

    With tensors on a GPU it also measures. Raises ``ConfigError`` for what cannot be called; what
    the callable itself raises becomes a finding.
    """
    return examine(fn, [(args, kwargs)])


def examine(
    fn: Callable[..., Any], calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]
) -> Report:
    """The same for several example calls; the operators of each are compared with the first one's.

    Give examples of different shape to find out whether a shape decides in Python what is run.
    """
    fn = getattr(fn, "__wrapped__", fn) if _is_graphed(fn) else fn
    if not callable(fn):
        raise ConfigError(f"doctor() got {fn!r}; expected a callable or a module")
    if not calls:
        raise ConfigError("examine() got no calls; expected at least one (args, kwargs)")
    return Examination(fn, [(tuple(args), dict(kwargs)) for args, kwargs in calls]).report()


def _is_graphed(fn: Any) -> bool:
    from ostinato.recording.graphed import Graphed

    return isinstance(fn, Graphed)
