"""Chooses between variants of one computation by measured time, once per shape class.

The table lives in a directory that is given, one file per machine and versions, so that two
processes choose alike and an upgrade measures anew. Under recording nothing is measured: an unknown
class gets the first variant, and so does everything where no timer can run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ostinato import state
from ostinato.kernels.timing import ONE_AT_A_TIME, Timer, device_seconds

KERNELS = 2
"""Rises when own kernels, or the layout they are given, become faster or slower: times taken before
say nothing of them."""
_log = logging.getLogger(__name__)
Variants = Mapping[str, Callable[[], object]]


def machine(device: torch.device) -> str:
    """What a measured time depends on: the device's name, the versions of torch and triton, and our
    kernels.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{name}, torch {torch.__version__}, triton {triton}, kernels {KERNELS}"


class Selector:
    """The table of one machine. ``directory=None`` keeps it in memory only."""

    def __init__(
        self, directory: Path | None, machine: str, *, timer: Timer = device_seconds
    ) -> None:
        self._machine = machine
        self._timer = timer
        self._lock = ONE_AT_A_TIME
        self._path: Path | None = None
        self._choices: dict[str, str] = {}
        self._assumed: set[str] = set()
        self.edition = 0
        """Rises with every change of the table: what was chosen before may be chosen otherwise."""
        self.keep_in(directory)

    def choose(self, operator: str, shape_class: str, variants: Variants) -> str:
        """Name of the fastest of ``variants`` for this class; the callables must be repeatable.

        A variant that raises is out; if all do, the first name is returned and its error shows when
        it is used.
        """
        first = next(iter(variants))
        key = f"{operator}|{shape_class}|{','.join(sorted(variants))}"
        known = self._choices.get(key)
        if known is not None or len(variants) == 1:
            return known or first
        if _may_not_wait():
            self._assumed.add(key)
            return first
        with self._lock:
            if key not in self._choices:
                with state.checking():
                    self._choices[key] = self._fastest(variants) or first
                self._write()
                self.edition += 1
                if key in self._assumed and self._choices[key] != first:
                    state.verdicts.changed()  # a recording holds the first one
            return self._choices[key]

    def choices(self) -> dict[str, str]:
        """A copy of the table: ``operator|class|variants`` to the chosen name."""
        return dict(self._choices)

    def keep_in(self, directory: Path | None) -> None:
        """Keep the table in ``directory`` from now on, and take over what is known there."""
        with self._lock:
            self._path = None
            if directory is not None:
                digest = hashlib.sha256(self._machine.encode()).hexdigest()[:16]
                self._path = directory / f"variants-{digest}.json"
                self._choices = self._read() | self._choices
                self.edition += 1

    def _fastest(self, variants: Variants) -> str | None:
        usable = {}
        for name, run in variants.items():
            try:
                run()
                usable[name] = run
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                _log.info("variant %s is out: %s", name, error)
        if not usable:
            return None
        seconds = self._timer(list(usable.values()))
        return min(zip(seconds, usable, strict=True))[1]

    def _read(self) -> dict[str, str]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            content = json.loads(self._path.read_text())
            if content["machine"] == self._machine:
                return {str(k): str(v) for k, v in content["choices"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning(
                "%s is not a table of variants and will be replaced: %s", self._path, error
            )
        return {}

    def _write(self) -> None:
        """Merge with what another process wrote meanwhile (it keeps its choices), atomically."""
        if self._path is None:
            return
        try:
            self._choices |= self._read()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            content = {"machine": self._machine, "choices": self._choices}
            handle, name = tempfile.mkstemp(dir=self._path.parent, suffix=".tmp")
            with os.fdopen(handle, "w") as file:
                json.dump(content, file, indent=1, sort_keys=True)
            os.replace(name, self._path)
        except OSError as error:
            _log.warning("the table of variants cannot be kept at %s: %s", self._path, error)


def _may_not_wait() -> bool:
    """While this thread's stream is recorded, by us or by anyone, nothing can be timed."""
    is_on_gpu = torch.cuda.is_initialized()
    return state.is_recording() or (is_on_gpu and torch.cuda.is_current_stream_capturing())


_MAX_FORMS = 16_384


class Remembered:
    """What was chosen for forms of calls, as long as the table it was chosen from stays as it is.

    A choice made while recording may be a makeshift and is not kept. Beyond ``_MAX_FORMS`` all are
    forgotten.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[Selector, int, str]] = {}

    def get(self, form: tuple[object, ...], selector: Selector) -> str | None:
        """The name that was kept, or ``None``."""
        known = self._known.get(form)
        if known is not None and known[0] is selector and known[1] == selector.edition:
            return known[2]
        return None

    def keep(self, form: tuple[object, ...], selector: Selector, name: str) -> None:
        """Keep ``name``, which ``selector`` chose for calls of this form."""
        if _may_not_wait():
            return
        if len(self._known) >= _MAX_FORMS:
            self._known.clear()
        self._known[form] = (selector, selector.edition, name)


_selectors: dict[torch.device, Selector] = {}


def selector_of(device: torch.device) -> Selector:
    """The process's table of this device; in memory until somebody gives it a directory."""
    selector = _selectors.get(device)
    if selector is None:
        with ONE_AT_A_TIME:
            selector = _selectors.setdefault(device, Selector(None, machine(device)))
    return selector
