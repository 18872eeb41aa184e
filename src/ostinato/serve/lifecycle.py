"""What a server's routes need of whoever owns the model: where it is in its life, and how full."""

from __future__ import annotations

from typing import Protocol

from ostinato.serve.device_thread import Phase


class Lifecycle(Protocol):
    """Starts, tells how far it is, stops. ``DeviceThread`` is one; ``openai/front.py`` another."""

    @property
    def phase(self) -> Phase: ...

    @property
    def error(self) -> BaseException | None:
        """What ended it, if something did."""

    @property
    def num_queued(self) -> int:
        """What waits now."""

    def start(self) -> None:
        """Begin the warm-up; returns at once."""

    def wait_until_settled(self, timeout_s: float) -> Phase:
        """Wait for the end of the warm-up, however it ends."""

    def stop(self) -> None:
        """Refuse what comes, end what waits, finish what runs. May block."""
