"""Runs a program of a test in a process of its own, where it may be fatal; brings its verdict back.

A program is a function without arguments in ``tests.gpu.isolated_<subject>``, named
``"<subject>:<function>"``. It raises when something is wrong and returns figures as a dictionary.
With a mutation (``tests.mutations``) one protection is off while it runs.

    PYTHONPATH=src:. python -m tests.gpu.isolation failure:half_way [mutation]
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 100
NUM_WORKERS = 6
_MARK = "VERDICT "

ALONE = frozenset({"foreign:launches_are_not_slowed"})
"""Programs whose figures suffer from neighbours."""


class Job(NamedTuple):
    program: str
    mutation: str | None = None


class Verdict(NamedTuple):
    """``is_sound`` is False when the program could not even begin."""

    is_ok: bool
    is_sound: bool
    message: str
    figures: dict[str, Any]

    def check(self) -> dict[str, Any]:
        """The figures; skips or fails the calling test when the program did."""
        if self.message.startswith("skip: "):
            pytest.skip(self.message.removeprefix("skip: "))
        if not self.is_ok:
            pytest.fail(self.message, pytrace=False)
        return self.figures

    def check_failed(self) -> None:
        """Fails the calling test unless the program began and failed."""
        if self.message.startswith("skip: "):
            pytest.skip(self.message.removeprefix("skip: "))
        if not self.is_sound:
            pytest.fail(f"the program did not run: {self.message}", pytrace=False)
        if self.is_ok:
            pytest.fail("the program passes with its protection switched off", pytrace=False)


def run_in_process(job: Job, timeout: float = TIMEOUT_SECONDS) -> Verdict:
    """Start a Python for one program and wait for its verdict. A crash is a verdict, too."""
    command = [sys.executable, "-m", "tests.gpu.isolation", job.program]
    command += [job.mutation] if job.mutation is not None else []
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        has_begun = _MARK + "begun" in str(error.stdout or "")
        return Verdict(False, has_begun, f"{job} took more than {timeout} seconds", {})
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if lines and lines[-1] != _MARK + "begun":
        return Verdict(*json.loads(lines[-1].removeprefix(_MARK)))
    said = done.stderr.splitlines()
    told = said if len(said) <= 30 else [*said[:15], "...", *said[-15:]]
    message = "\n".join([f"{job} ended with {done.returncode}:", *told])
    return Verdict(False, bool(lines), message, {})


class Processes:
    """The verdicts of many programs, which run side by side with no test of this process."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._wanted = sorted(set(jobs), key=str)
        self._verdicts: dict[Job, Verdict] = {}

    def verdict(self, program: str, mutation: str | None = None) -> Verdict:
        job = Job(program, mutation)
        if job not in self._verdicts and job in self._wanted:
            self._run_wanted()
        if job not in self._verdicts:
            self._verdicts[job] = run_in_process(job)
        return self._verdicts[job]

    def _run_wanted(self) -> None:
        together = [job for job in self._wanted if job.program not in ALONE]
        with ThreadPoolExecutor(NUM_WORKERS) as pool:
            self._verdicts.update(zip(together, pool.map(run_in_process, together), strict=True))
        for job in self._wanted:
            if job not in self._verdicts:
                self._verdicts[job] = run_in_process(job)


def jobs_of(items: Iterable[pytest.Item]) -> list[Job]:
    """What the selected tests will ask for: their parameters ``program`` and ``mutation``."""
    jobs = []
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        is_skipped = item.get_closest_marker("skip") is not None
        if "program" in params and not is_skipped:
            jobs.append(Job(params["program"], params.get("mutation")))
    return jobs


def main(program: str, mutation: str | None = None) -> None:
    subject, _, name = program.partition(":")
    function = getattr(importlib.import_module(f"tests.gpu.isolated_{subject}"), name)
    with pytest.MonkeyPatch.context() as patched:
        if mutation is not None:
            from tests.gpu.gpu_mutations import mutations

            mutations[mutation](patched)
        print(_MARK + "begun", flush=True)
        try:
            verdict = Verdict(True, True, "", function() or {})
        except pytest.skip.Exception as skipped:
            verdict = Verdict(True, True, f"skip: {skipped}", {})
        except BaseException:
            verdict = Verdict(False, True, traceback.format_exc(limit=-6), {})
        print(_MARK + json.dumps(verdict), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a process that was poisoned on purpose may not be able to tear CUDA down


if __name__ == "__main__":
    main(*sys.argv[1:])
