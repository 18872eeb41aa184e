"""``ostinato.graph``: the plain use of a runner, for any callable or module."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ostinato.errors import ConfigError, RecordingRefused
from ostinato.recording import tree
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.lane import log
from ostinato.recording.region import GateInputs, Region
from ostinato.recording.runner import Runner
from ostinato.recording.served import Served
from ostinato.recording.stats import Route, Stats
from ostinato.state import is_active

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of one call."""

GrowsByName = Mapping[str, Mapping[int, Grows | Axis]]
"""Parameter name -> dimension -> how it grows."""

_runners: dict[tuple[torch.device, int | None], Runner] = {}
_runners_lock = threading.Lock()


def shared_runner(device: torch.device, config: GraphConfig) -> Runner:
    """The process's runner for a device (and an explicit budget): all plain uses share its lane.

    It lives as long as the process, as the library handles and workspaces of its thread do.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    with _runners_lock:
        key = (device, config.budget_bytes)
        if key not in _runners:
            _runners[key] = Runner.on(device, config)
        return _runners[key]


class Graphed:
    """A callable whose calls are recorded once and replayed. Call it like the original.

    Results are the caller's own. Attributes of a module pass through. Inside another recording, a
    trace or a foreign capture it is the plain callable.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None,
        config: GraphConfig,
        grows: GrowsByName | None,
        writes: Sequence[str],
        state: Sequence[torch.Tensor],
        gate_inputs: GateInputs | None,
    ) -> None:
        if not callable(fn):
            raise ConfigError(f"graph() got {fn!r}; expected a callable or a module")
        if config.mode == "ladder" and not grows:
            raise ConfigError(
                "mode='ladder' needs a description of what grows; expected "
                "grows={'name': {dimension: Axis(...)}}"
            )
        self.__wrapped__ = fn
        self._fn = fn
        self._name = name or str(getattr(fn, "__qualname__", type(fn).__qualname__))
        self._config = config
        self._grows = dict(grows or {})
        self._writes = tuple(writes)
        self._state = tuple(state)
        self._gate_inputs = gate_inputs
        self._served: dict[torch.device, Served] = {}
        self._only: Served | None = None
        self._lock = threading.Lock()
        self._is_named = bool(self._grows or self._writes)
        self._signature = inspect.signature(_called(fn)) if self._is_named else None
        self._check_names()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_active():
            return self._fn(*args, **kwargs)
        served = self._only
        if served is not None and not self._is_named:
            return served.call(args, kwargs)
        args, kwargs = self._bound(args, kwargs)
        return self._served_for(args, kwargs).call(args, kwargs)

    def record(self, *args: Any, **kwargs: Any) -> Graphed:
        """Record now for calls like this one, or, with ``grows``, the whole ladder, largest first.

        Raises ``RecordingRefused`` with rule, place and fix when it cannot be recorded.
        """
        args, kwargs = self._bound(args, kwargs)
        self._served_for(args, kwargs).record(args, kwargs)
        return self

    def borrow(self, *args: Any, **kwargs: Any) -> Any:
        """Like a call, but a recorded result is the static one: valid until the next replay of
        its key.
        """
        args, kwargs = self._bound(args, kwargs)
        return self._served_for(args, kwargs).call(args, kwargs, borrow=True)

    def why(self) -> Route | None:
        """How this thread's last call was served, and why; None before its first."""
        return self._only.counters.last() if self._only is not None else None

    def stats(self) -> Stats:
        """Counters and bytes of this callable, with its device's totals. Raises before the first
        call.
        """
        if self._only is None:
            raise ConfigError(
                f"{self._name} has not been called yet; expected a call before stats()"
            )
        return self._only.runner.stats(self._only)

    def recordings(self) -> list[Entry]:
        """Every recording in service."""
        return [entry for served in self._served.values() for entry in served.recordings.entries()]

    def close(self) -> None:
        """Free the recordings of this callable. Later calls record anew."""
        for served in self._served.values():
            served.close()
        self._served.clear()
        self._only = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._fn, name)

    # -- from names to numbers ------------------------------------------------------------------

    def _check_names(self) -> None:
        if self._signature is None:
            return
        known = list(self._signature.parameters)
        for name in (*self._grows, *self._writes):
            if name not in known:
                raise ConfigError(
                    f"{self._name} has no parameter {name!r}; expected one of {', '.join(known)}"
                )

    def _bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """One spelling for a call, so that numbered inputs are the same ones each time."""
        if self._signature is None:
            return args, dict(kwargs)
        bound = self._signature.bind(*args, **kwargs)
        return bound.args, bound.kwargs

    def _served_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Served:
        if self._only is not None:
            return self._only
        with self._lock:
            return self._only or self._begin(args, kwargs)

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Served:
        """Put the callable in service where its first call computes; under the lock."""
        tensors: list[torch.Tensor] = []
        tree.flatten((args, dict(kwargs)), tensors)
        device = self._device(tensors)
        runner = shared_runner(device, self._config)
        served = runner.serve(self._region(args, kwargs), self._config)
        self._served[device] = served
        self._only = served
        return served

    def _device(self, tensors: Sequence[torch.Tensor]) -> torch.device:
        """Where the call computes: the first CUDA tensor of the arguments or the module, else the
        CPU.
        """
        fn = self._fn
        held = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
        for tensor in (*tensors, *held):
            if tensor.is_cuda:
                return tensor.device
        return torch.device("cpu")

    def _region(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Region:
        numbers = self._numbers(args, kwargs) if self._is_named else {}
        grows = {
            numbers[name]: {dim: g if isinstance(g, Grows) else Grows(g) for dim, g in dims.items()}
            for name, dims in self._grows.items()
        }
        return Region(
            name=self._name,
            fn=self._fn,
            grows=grows,
            writes=frozenset(numbers[name] for name in self._writes),
            state=self._state,
            gate_inputs=self._gate_inputs,
            asks_identity=True,
        )

    def _numbers(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """Parameter name -> the number of its tensor among all tensors of a call."""
        assert self._signature is not None
        bound = self._signature.bind(*args, **kwargs).arguments
        numbers: dict[str, int] = {}
        tensors: list[torch.Tensor] = []
        for name, value in bound.items():
            if name in self._grows or name in self._writes:
                if not isinstance(value, torch.Tensor):
                    raise ConfigError(
                        f"{self._name}: parameter {name!r} is a {type(value).__qualname__}; "
                        "expected a tensor, since it is declared to grow or to be written"
                    )
                numbers[name] = len(tensors)
            tree.flatten(value, tensors, f"argument {name!r}")
        return numbers


def _called(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn.forward if isinstance(fn, torch.nn.Module) else fn


def graph(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    config: GraphConfig | None = None,
    grows: GrowsByName | None = None,
    writes: Iterable[str] = (),
    state: Iterable[torch.Tensor] = (),
    gate_inputs: GateInputs | None = None,
) -> Any:
    """Record a callable's GPU work once per key and replay it; also a decorator.

    ``grows``: parameter name -> dimension -> ``Axis`` or ``Grows``, for recordings that serve every
    size up to a rung. ``writes``: parameters the callable writes to; they are written back.
    ``state``: tensors it writes to that trial calls must not spoil (then ``gate_inputs`` must
    point to scratch). ``gate_inputs``: further calls, ``(args, kwargs)`` each, to check
    recordings with, or a function from a rung's sizes to such.

    Returns a ``Graphed``. Raises ``ConfigError`` for settings that contradict each other, and at a
    call ``UnkeyableArgument`` for an argument without an exact place in a key.
    """
    options: dict[str, Any] = {
        "name": name,
        "config": config or GraphConfig(),
        "grows": grows,
        "writes": tuple(writes),
        "state": tuple(state),
        "gate_inputs": gate_inputs,
    }
    if fn is None:
        return lambda given: Graphed(given, **options)
    return Graphed(fn, **options)


def warm_up(graphed: Graphed, calls: Iterable[Call]) -> list[RecordingRefused]:
    """Record calls that will come, ``(args, kwargs)`` each, the largest first.

    Smaller recordings then fit into the pool memory of the larger ones, so that all of them take
    little more than the largest alone. Returns the refusals; their calls are served directly.
    """
    refusals = []
    for args, kwargs in _largest_first(calls):
        try:
            graphed.record(*args, **kwargs)
        except RecordingRefused as refused:
            log.warning("warm-up: served directly: %s", refused)
            refusals.append(refused)
    return refusals


def _largest_first(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=_num_bytes, reverse=True)


def _num_bytes(call: Call) -> int:
    tensors: list[torch.Tensor] = []
    tree.flatten((call[0], dict(call[1])), tensors)
    return sum(t.numel() * t.element_size() for t in tensors)
