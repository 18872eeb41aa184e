"""Do the GPU tests pass on this card? Runs them and writes every outcome as a result file.

PYTHONPATH=src:. python -m bench.gpu_tests [--out FILE] [pytest arguments...]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import pytest

from bench.report import write


class Outcomes:
    """A pytest plugin that keeps each test's outcome and seconds."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            row: dict[str, object] = {
                "outcome": report.outcome,
                "seconds": round(report.duration, 2),
            }
            if report.failed:
                row["message"] = str(report.longrepr).splitlines()[-1][:300]
                print(f"\n{report.nodeid} failed:\n{report.longrepr}", flush=True)
            self.tests[report.nodeid] = row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=None)
    options, rest = parser.parse_known_args()
    outcomes, begin = Outcomes(), time.perf_counter()
    code = pytest.main(["tests/gpu", "-q", "--tb=short", *rest], plugins=[outcomes])
    counts = Counter(str(row["outcome"]) for row in outcomes.tests.values())
    rows = {
        "counts": dict(counts),
        "seconds": round(time.perf_counter() - begin, 1),
        "tests": outcomes.tests,
    }
    write("gpu-tests", rows, options.out)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
