"""Every test here is marked ``gpu`` and skipped where no CUDA device can be used.

``OSTINATO_GPU_TESTS_ON_TAPE=1`` runs what has a CPU analogue on the tape instead: a check of the
tests themselves. Tests that need the device (marked ``device``, or without a recording) are skipped
then, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ostinato
from ostinato.recording.graphed import Graphed
from tests.gpu.isolation import Processes, jobs_of
from tests.gpu.regions import HAS_GPU

HERE = Path(__file__).parent
ON_TAPE = os.environ.get("OSTINATO_GPU_TESTS_ON_TAPE") == "1"

Make = Callable[..., Graphed]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "device: has no CPU analogue")
    config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout, where it is installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if HAS_GPU:
            continue
        if not ON_TAPE:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        elif item.get_closest_marker("device") is not None or not _records(item):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _records(item: pytest.Item) -> bool:
    return "graph" in getattr(item, "fixturenames", ())


@pytest.fixture
def graph() -> Iterator[Make]:
    """``ostinato.graph`` whose recordings are freed when the test ends."""
    made: list[Graphed] = []

    def make(fn: Callable[..., Any], **options: Any) -> Graphed:
        made.append(ostinato.graph(fn, **options))
        return made[-1]

    yield make
    for graphed in made:
        graphed.close()


@pytest.fixture(autouse=True)
def _idle_device() -> Iterator[None]:
    """A test starts and ends with an idle device, on the default stream."""
    yield
    if HAS_GPU:
        torch.cuda.synchronize()
        torch.cuda.set_stream(torch.cuda.default_stream())


@pytest.fixture(scope="session")
def processes(request: pytest.FixtureRequest) -> Processes:
    """Programs that run in processes of their own; the first use starts all that are wanted."""
    return Processes(jobs_of(request.session.items))
