"""What a policy server needs to know besides ``serve.settings``, resolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ostinato.serve.openpi.actions import ActionBounds
from ostinato.serve.openpi.intake import IntakeSettings


@dataclass(frozen=True, slots=True)
class RobotSettings:
    """``keep_warm_s``: after a pause of so long the policy is called with a grey picture; 0 never.

    ``record``: a directory that keeps the newest requests and replies, ``record_bytes`` at most.
    ``max_in_flight``: requests of one connection that may wait for their answers.
    """

    intake: IntakeSettings = field(default_factory=IntakeSettings)
    bounds: ActionBounds | None = None
    keep_warm_s: float = 10.0
    record: Path | None = None
    record_bytes: int = 2**30
    max_in_flight: int = 8
