"""docs/metrics.md and the page name the same metrics."""

from __future__ import annotations

import re
from pathlib import Path

from ostinato.serve.metrics import Metrics
from ostinato.serve.openpi.metrics import RobotMetrics
from tests.serve.stub import StubService

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_document_lists_every_metric() -> None:
    metrics = Metrics(StubService())
    RobotMetrics(metrics)
    registry = metrics.registry
    suffix = {"counter": "_total"}
    served = {f"{family.name}{suffix.get(family.type, '')}" for family in registry.collect()}
    served = {re.sub("_service_.*", "_service_*", name) for name in served}
    written = set(re.findall(r"^\| `(ostinato_[a-z_*]+)`", DOCUMENT.read_text(), re.MULTILINE))
    assert served == written
