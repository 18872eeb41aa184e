"""Every test here has runners of its own, whose lanes poison what a replay must not read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ostinato.recording import graphed, runner
from ostinato.recording.tape import TapeLane


@pytest.fixture(autouse=True)
def poisoned_runners(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def backend_of(device: torch.device) -> TapeLane:
        return TapeLane(poison=True)

    own: dict[object, runner.Runner] = {}
    monkeypatch.setattr(runner, "backend_of", backend_of)
    monkeypatch.setattr(graphed, "_runners", own)
    yield
    for made in own.values():
        made.close()
