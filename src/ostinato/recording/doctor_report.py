"""What the doctor says: findings, measurements on a GPU, a verdict. Frozen, printable, JSON.

Nothing here examines anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["refused", "direct", "info"]

_ORDER: dict[Severity, int] = {"refused": 0, "direct": 1, "info": 2}
_COLOURS: dict[Severity, str] = {"refused": "red", "direct": "yellow", "info": "cyan"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One breach of one rule at one place.

    ``number`` is the rule's place in the list L1 to L17, where it has one; ``location`` is
    ``"file:line"`` of the caller's code or ``None``; ``detail`` and ``on_gpu`` make one sentence.
    ``refused``: no recording is right; ``direct``: the call is served, never from a recording;
    ``info``: good to know.
    """

    rule: str
    number: str | None
    severity: Severity
    location: str | None
    detail: str
    on_gpu: str
    fix: str

    @property
    def message(self) -> str:
        return f"{self.detail} {self.on_gpu}"

    def __str__(self) -> str:
        number = f" ({self.number})" if self.number else ""
        place = f"  {self.location}" if self.location else ""
        return (
            f"{self.severity}: {self.rule}{number}{place}\n    {self.message}\n    fix: {self.fix}"
        )


@dataclass(frozen=True, slots=True)
class Measurements:
    """What a GPU showed; microseconds are medians of whole calls with an empty queue at the start.

    ``num_launches`` is ``None`` where another profiler holds CUPTI. ``host_us``: until a direct
    call returns; ``direct_us``, ``replayed_us``: until its result is there. ``busy_percent`` takes
    the replay's time on the GPU for the work itself, so it is an estimate from above. ``route``
    says how the replayed calls were served.
    """

    device: str
    num_launches: int | None
    host_us: float
    direct_us: float
    replayed_us: float | None = None
    replayed_host_us: float | None = None
    busy_percent: float | None = None
    route: str = ""

    def __str__(self) -> str:
        launches = "not counted" if self.num_launches is None else self.num_launches
        lines = [
            f"on {self.device}: {launches} kernel launches; a direct call takes "
            f"{self.direct_us:.0f} us, {self.host_us:.0f} us of them on the host"
        ]
        if self.replayed_us is None:
            lines.append(f"no recorded call was timed: {self.route}")
        else:
            lines.append(
                f"a recorded call takes {self.replayed_us:.0f} us, {self.replayed_host_us:.0f} us "
                f"of them on the host: {self.direct_us / self.replayed_us:.2f} times as fast "
                f"({self.route})"
            )
        if self.busy_percent is not None:
            lines.append(f"the GPU is busy for at most {self.busy_percent:.0f} % of a direct call")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """Why a callable cannot be recorded, or that it can. ``findings``: the gravest first."""

    target: str
    findings: tuple[Diagnosis, ...]
    num_operations: int
    measurements: Measurements | None = None

    @property
    def recordable(self) -> bool:
        """True when a call like the examined one would be recorded and replayed."""
        return not (self.refusals or self.of("direct"))

    @property
    def refusals(self) -> tuple[Diagnosis, ...]:
        return self.of("refused")

    def of(self, severity: Severity) -> tuple[Diagnosis, ...]:
        return tuple(f for f in self.findings if f.severity == severity)

    @property
    def verdict(self) -> str:
        if self.refusals:
            return "cannot be recorded as it is"
        if self.of("direct"):
            return "is served directly when called like this"
        return "can be recorded"

    def to_json(self) -> str:
        """One JSON object; ``from_json`` reads it back to an equal report."""
        plain = {**asdict(self), "recordable": self.recordable, "verdict": self.verdict}
        return json.dumps(plain, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Report:
        plain: dict[str, Any] = json.loads(text)
        measured = plain["measurements"]
        return cls(
            target=plain["target"],
            findings=tuple(Diagnosis(**finding) for finding in plain["findings"]),
            num_operations=plain["num_operations"],
            measurements=Measurements(**measured) if measured else None,
        )

    def __str__(self) -> str:
        return "\n".join(self._paragraphs())

    def __rich__(self) -> Any:
        """For ``rich.print`` and typer; the same words with colours."""
        from rich.console import Group
        from rich.text import Text

        head, *rest = self._paragraphs()
        lines = [Text(head, style="bold green" if self.recordable else "bold red")]
        for finding, paragraph in zip(self.findings, rest, strict=False):
            text = Text(paragraph)
            text.stylize(_COLOURS[finding.severity], 0, len(finding.severity))
            lines.append(text)
        return Group(*lines, *map(Text, rest[len(self.findings) :]))

    def _paragraphs(self) -> Iterator[str]:
        counts = ", ".join(
            f"{len(self.of(severity))} {severity}" for severity in _ORDER if self.of(severity)
        )
        found = counts or "no findings"
        yield f"{self.target} {self.verdict}: {self.num_operations} operations, {found}"
        yield from map(str, self.findings)
        if self.measurements is not None:
            yield str(self.measurements)


def in_order(findings: list[Diagnosis]) -> tuple[Diagnosis, ...]:
    """The gravest first; within a severity in the order of discovery."""
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.severity]))
