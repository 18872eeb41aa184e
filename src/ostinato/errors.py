"""Every exception that Ostinato raises on purpose.

::

    OstinatoError
    ├── ConfigError (ValueError)         a setting that cannot be what it is
    ├── InputError (ValueError)          an image, video, observation or prompt we cannot serve
    │   ├── RefusedItem                  one of several items of a request; says which
    │   └── PromptTooLong                a prompt and its reply beyond the model's context
    ├── UnkeyableArgument (TypeError)    an argument that has no exact place in a key
    ├── WeightsError (ValueError)        a checkpoint that does not fit the model
    ├── DeviceError (RuntimeError)       a device that is visible and cannot be used
    ├── Overloaded (RuntimeError)        a server that is full or not ready; says when to try again
    ├── DeadlineMissed (TimeoutError)    an answer that would come too late to be of use
    ├── Superseded (RuntimeError)        a request whose session has sent a newer one
    ├── UnsafeActions (RuntimeError)     actions that no robot may get
    ├── RouteUnavailable (RuntimeError)  a forced route that cannot serve the call
    └── RecordingRefused (RuntimeError)  a callable that cannot be recorded: rule, place, fix
        ├── CaptureFailed                the backend gave up half-way
        └── GateFailed                   the recording does not answer like the direct call

Messages name the value that was wrong and what was expected.
"""

from __future__ import annotations


class OstinatoError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(OstinatoError, ValueError):
    """A setting that cannot be what it is."""


class InputError(OstinatoError, ValueError):
    """A request's content cannot be served; the message names the rule it breaks."""


class RefusedItem(InputError):
    """One of several items of a request cannot be served; ``place`` is where it stands."""

    def __init__(self, place: str, cause: InputError) -> None:
        self.place = place
        self.cause = cause
        super().__init__(f"{place}: {cause}")


class PromptTooLong(InputError):
    """A prompt and its reply do not fit into the model's context; ``place``: the field, if any."""

    def __init__(self, reason: str, *, place: str | None = None) -> None:
        self.place = place
        super().__init__(reason)


class UnkeyableArgument(OstinatoError, TypeError):
    """An argument whose value has no exact, closed place in a key."""


class WeightsError(OstinatoError, ValueError):
    """A checkpoint with a missing, extra, or wrongly shaped tensor."""


class DeviceError(OstinatoError, RuntimeError):
    """A device that is visible and cannot be used."""


class Overloaded(OstinatoError, RuntimeError):
    """A server is full or not ready; ``retry_after_s`` says when to try again."""

    def __init__(self, reason: str, *, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(reason)


class DeadlineMissed(OstinatoError, TimeoutError):
    """An answer that would come too late to be of use."""


class Superseded(OstinatoError, RuntimeError):
    """A request that was dropped because its session has sent a newer one."""


class UnsafeActions(OstinatoError, RuntimeError):
    """A policy's actions are not finite or out of bounds; they are not sent."""


class RouteUnavailable(OstinatoError, RuntimeError):
    """A forced route cannot serve this call."""


class RecordingRefused(OstinatoError, RuntimeError):
    """A callable, or one key of it, cannot be recorded.

    ``rule`` is a short stable name (``"host-read"``, ``"input-write"``), ``location`` is
    ``"file:line"`` of the caller's code or ``None``, ``fix`` says what to change.
    """

    def __init__(
        self, reason: str, *, rule: str, location: str | None = None, fix: str | None = None
    ) -> None:
        self.reason = reason
        self.rule = rule
        self.location = location
        self.fix = fix
        place = f" at {location}" if location else ""
        advice = f"; {fix}" if fix else ""
        super().__init__(f"[{rule}] {reason}{place}{advice}")


class CaptureFailed(RecordingRefused):
    """The backend could not finish a recording; the process is as it was before."""


class GateFailed(RecordingRefused):
    """A recording was made and does not answer like the direct call."""
