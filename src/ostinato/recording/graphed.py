"""``ostinato.graph``: the plain use of a runner, for any callable or module."""

from __future__ import annotations

import copy
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ostinato.errors import ConfigError, RecordingRefused
from ostinato.recording import tree
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.lane import log
from ostinato.recording.parameters import GrowsByName, Numbers, Parameters
from ostinato.recording.region import GateInputs, Region
from ostinato.recording.runner import Runner
from ostinato.recording.served import Served
from ostinato.recording.stats import Counters, Route, Stats
from ostinato.state import is_active

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of one call."""

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


_OWN = frozenset(
    f"_{name}"
    for name in (
        *("fn", "name", "config", "grows", "writes", "parameters", "state", "gate_inputs"),
        *("counters", "served", "only", "last_stats", "attribute", "lock"),
    )
)


class Graphed:
    """A callable whose calls are recorded once and replayed. Call it like the original.

    Results are the caller's own. Attributes of a module pass through, also when they are set. As a
    decorator of a method it serves each object by recordings of its own. Inside another recording,
    a trace or a foreign capture it is the plain callable.
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
        if not isinstance(config, GraphConfig):
            raise ConfigError(f"config is {config!r}; expected a GraphConfig")
        if isinstance(writes, str):
            raise ConfigError(f"writes is {writes!r}; expected names in a list")
        for held in state:
            if not isinstance(held, torch.Tensor):
                raise ConfigError(f"state holds {held!r}; expected tensors")
        if config.mode == "ladder" and not grows:
            raise ConfigError(
                "mode='ladder' needs a description of what grows; expected "
                "grows={'name': {dimension: Axis(...)}}"
            )
        self.__wrapped__ = fn
        self._fn = fn
        self._name = name or str(getattr(fn, "__qualname__", type(fn).__qualname__))
        self._config = config
        self._grows = grows
        self._writes = tuple(writes)
        self._parameters = Parameters(fn, self._name, grows or {}, self._writes)
        self._state = tuple(state)
        self._gate_inputs = gate_inputs
        self._counters = Counters()
        self._served: dict[Numbers, Served] = {}
        self._only: Served | None = None
        self._last_stats: Stats | None = None
        self._attribute: str | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_active():
            return self._fn(*args, **kwargs)
        served = self._only
        if served is not None:
            return served.call(args, kwargs)
        served, call = self._served_for(args, kwargs)
        return served.call(*call)

    def record(self, *args: Any, **kwargs: Any) -> Graphed:
        """Record now for calls like this one, or, with ``grows``, the whole ladder, largest first.

        Raises ``RecordingRefused`` with rule, place and fix when it cannot be recorded.
        """
        served, call = self._served_for(args, kwargs)
        served.record(*call)
        return self

    def borrow(self, *args: Any, **kwargs: Any) -> Any:
        """Like a call, but a recorded result is the static one: valid until the next replay of
        its key.
        """
        served, call = self._served_for(args, kwargs)
        return served.call(*call, borrow=True)

    def why(self) -> Route | None:
        """How this thread's last call was served, and why; None before its first."""
        return self._counters.last()

    def stats(self) -> Stats:
        """Counters and bytes of this callable, with its device's totals; after ``close`` as it left
        them. Raises before the first call.
        """
        served = list(self._served.values())
        if served:
            return served[0].runner.stats(*served)
        if self._last_stats is None:
            raise ConfigError(
                f"{self._name} has not been called yet; expected a call before stats()"
            )
        return self._last_stats

    def recordings(self) -> list[Entry]:
        """Every recording in service."""
        return [entry for served in self._served.values() for entry in served.recordings.entries()]

    def close(self) -> None:
        """Free the recordings of this callable. Later calls record anew."""
        with self._lock:
            served = list(self._served.values())
            for some in served:
                some.close()
            if served:
                self._last_stats = served[0].runner.stats(*served)
            self._served.clear()
            self._only = None

    # -- in place of what it wraps --------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._fn, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or name.startswith("__"):
            object.__setattr__(self, name, value)
        elif name.startswith("_"):
            raise AttributeError(
                f"{name!r} cannot be set here; set it on what was given to graph()"
            )
        else:
            setattr(self._fn, name, value)

    def __delattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)
        delattr(self._fn, name)

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method: each object gets recordings of its own, kept beside its attributes."""
        is_method = isinstance(self._fn, types.FunctionType)  # other callables bind nothing
        if instance is None or self._attribute is None or not is_method:
            return self
        try:
            kept = instance.__dict__
        except AttributeError:
            raise ConfigError(
                f"{self._name} is a method of a {type(instance).__qualname__}, which has no "
                "__dict__; expected an object that can keep its recordings"
            ) from None
        bound = self._copy_for(types.MethodType(self._fn, instance))
        return kept.setdefault(self._attribute, bound)

    def __deepcopy__(self, memo: dict[int, Any]) -> Graphed:
        return self._copy_for(copy.deepcopy(self._fn, memo))

    def _copy_for(self, fn: Callable[..., Any]) -> Graphed:
        """The same settings for another callable; no recordings."""
        return Graphed(
            fn,
            name=self._name,
            config=self._config,
            grows=self._grows,
            writes=self._writes,
            state=self._state,
            gate_inputs=self._gate_inputs,
        )

    # -- in service -----------------------------------------------------------------------------

    def _served_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Served, Call]:
        """The region for calls whose named parameters have these numbers, made at first sight, and
        the call in its one spelling.
        """
        args, kwargs, numbers = self._parameters.bound(args, kwargs)
        served = self._served.get(numbers)
        if served is None:
            with self._lock:
                served = self._served.get(numbers) or self._begin(args, kwargs, numbers)
        return served, (args, kwargs)

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], numbers: Numbers) -> Served:
        """Put the callable in service where its first call computes; under the lock."""
        if self._served:
            runner = next(iter(self._served.values())).runner
        else:
            tensors: list[torch.Tensor] = []
            tree.flatten((args, dict(kwargs)), tensors)
            runner = shared_runner(self._device(tensors), self._config)
        served = runner.serve(self._region(dict(numbers)), self._config, self._counters)
        self._served[numbers] = served
        if not self._parameters.are_declared:
            self._only = served
        return served

    def _device(self, tensors: Sequence[torch.Tensor]) -> torch.device:
        """Where the call computes: the first CUDA tensor of the arguments or the module, else the
        CPU.
        """
        owner = getattr(self._fn, "__self__", self._fn)
        held = list(owner.parameters()) if isinstance(owner, torch.nn.Module) else []
        for tensor in (*tensors, *held):
            if tensor.is_cuda:
                return tensor.device
        return torch.device("cpu")

    def _region(self, numbers: Mapping[str, int]) -> Region:
        parameters = self._parameters
        grown = [name for name in parameters.grows if name in numbers]
        return Region(
            name=self._name,
            fn=self._fn,
            grows={numbers[name]: parameters.grows[name] for name in grown},
            writes=frozenset(numbers[name] for name in parameters.writes if name in numbers),
            state=self._state,
            gate_inputs=self._gate_inputs,
            asks_identity=True,
        )


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
        "writes": writes if isinstance(writes, str) else tuple(writes),
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
