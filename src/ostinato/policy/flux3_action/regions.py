"""The three recorded regions: an observation, one solver step, and the loop of all steps.

A chunk costs two replays where its loop is recorded, else one for each step. What the observation
region leaves is read by the other two where it lies (``borrow`` and ``in_place``). Nothing is
recorded while a robot waits: a key that is missing is served directly and noted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from ostinato.errors import RecordingRefused
from ostinato.policy.chunking import Prefix, guide
from ostinato.policy.flux3_action.model import ActionModel, Caption, Observation
from ostinato.policy.solver import Step, sample, schedule
from ostinato.recording.config import GraphConfig
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner
from ostinato.recording.served import Served
from ostinato.recording.stats import Route, Stats

NEVER_ON_THE_PATH = 1 << 62
NUM_OBSERVED = 8
"""Tensors of an ``Observation``: two streams with three rows of modulation each."""
MAX_NOTED = 8
MAX_ASKED = 256
MAX_RESTORED = 16
PASSING = frozenset({"forced", "the lane is recording", "recording is off"})
"""Reasons for a direct observation that say nothing about its recording."""
MAX_LOOPS = 8
"""Loops that are recorded; other numbers of steps are served step by step."""
log = logging.getLogger(__name__)


class Call(NamedTuple):
    """Everything the loop of one chunk takes."""

    observation: Observation
    video: Tensor
    actions: Tensor
    guidance: Tensor
    captions: tuple[Caption, ...]
    prefix: Prefix
    num_steps: int
    shift: float


class Regions:
    """``runner`` is ``None`` where nothing may be recorded; ``why`` says why.

    What is recorded are methods of the model, which nobody writes to: a recording's key names the
    Python values that its callable could read.
    """

    def __init__(
        self, model: ActionModel, runner: Runner | None, graph: GraphConfig, *, why: str = ""
    ) -> None:
        self._model = model
        self._runner = runner
        self._why = why
        self._noted: list[Call] = []
        self._known: set[tuple[tuple[int, ...], int, float]] = set()
        self._known_steps: set[tuple[int, ...]] = set()
        self._is_lost = False
        self._num_restored = 0
        self._asked: set[tuple[tuple[int, ...], int, float]] = set()
        self.routes: dict[str, Route] = {}
        self._observe: Served | None = None
        self._step: Served | None = None
        self._loop: Served | None = None
        if runner is None:
            return
        config = replace(graph, min_hits=NEVER_ON_THE_PATH)

        def serve(name: str, fn: Callable[..., Any], num_in_place: int = 0) -> Served:
            in_place = frozenset(range(num_in_place))
            region = Region(name, fn, in_place=in_place, is_private=True, is_timed=False)
            return runner.serve(region, config)

        self._observe = serve("observation", model.observe)
        self._step = serve("denoise step", model.velocities, NUM_OBSERVED)
        self._loop = serve("denoise loop", model.chunk, NUM_OBSERVED)

    # -- one request ----------------------------------------------------------------------------

    def observe(self, canvas: Tensor, state: Tensor, *, is_recorded: bool) -> Observation:
        """Valid until the next call: where it was replayed, it is the recording's own output."""
        if self._observe is None or not is_recorded:
            self.routes = {"observation": Route("direct", self._why or "asked for")}
            return self._model.observe(canvas, state)
        observation: Observation = self._observe.call((canvas, state), {}, borrow=True)
        route = _last(self._observe)
        self.routes = {"observation": route}
        self._is_lost = route.route == "direct" and route.reason not in PASSING
        return observation

    def chunk(self, call: Call, *, is_recorded: bool) -> Tensor:
        """Actions (K, D) float32 in model space, the caller's own."""
        if self._loop is None or not is_recorded:
            self.routes["denoise"] = Route("direct", self._why or "asked for")
            return self._model.chunk(*call)
        if self.routes["observation"].route == "direct":
            # the observation lies where no recording reads it
            reason = "the observation was not replayed"
            result: Tensor = self._loop.call_directly(reason, lambda: self._model.chunk(*call))
            self.routes["denoise"] = _last(self._loop)
            return result
        if self._has_loop(call) or not self._has_step(call):
            result = self._loop.call(tuple(call), {})
        else:
            return self._by_steps(call)
        self.routes["denoise"] = _last(self._loop)
        if self.routes["denoise"].route == "direct":
            self._note(call)
        return result

    def _by_steps(self, call: Call) -> Tensor:
        """The solver between replays of one step: any number of steps, any shift."""
        step_region = self._step
        assert step_region is not None

        def answer(step: Step, streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            video, actions = streams
            time = call.guidance.new_full((1,), step.time)
            args = (call.observation, video, actions, time, call.guidance, call.captions)
            v_video, v_actions = step_region.call(args, {})
            return v_video, guide(actions, v_actions, step.sigma, call.prefix)

        plan = schedule(self._model.config.sampler, call.num_steps, call.shift)
        actions = sample(plan, (call.video, call.actions), answer)[1]
        route = _last(step_region)
        self.routes["denoise"] = route._replace(reason=f"{route.reason}, step by step")
        self._note(call)
        return actions

    # -- recording ------------------------------------------------------------------------------

    def record_observation(self, canvas: Tensor, state: Tensor) -> Observation | None:
        """Record the first region; what it leaves, or ``None`` where it is served directly."""
        if self._observe is None or not _record(self._observe, (canvas, state)):
            return None
        observation = self.observe(canvas, state, is_recorded=True)
        return None if self.routes["observation"].route == "direct" else observation

    def takes_restoring(self) -> bool:
        """True, a bounded number of times, when the observation's recording is not there."""
        if not self._is_lost or self._num_restored >= MAX_RESTORED:
            return False
        self._is_lost = False
        self._num_restored += 1
        return True

    def restore(self, canvas: Tensor, state: Tensor) -> None:
        """Record the first region (again); chunks that read the new place follow call by call."""
        if self._observe is not None:
            _record(self._observe, (canvas, state))

    def record(self, call: Call, *, has_step: bool) -> None:
        """Record the loop of a call and, with ``has_step``, its step.

        ``call.observation`` must be what the observation region leaves: it is read where it lies.
        Calls that come meanwhile are served directly. What is refused stays direct; why is in
        ``stats()``.
        """
        if self._loop is None or self._step is None:
            return
        if (len(self._known) < MAX_LOOPS or self._has_loop(call)) and _record(self._loop, call):
            self._known.add(_shape_of(call))
        if has_step:
            time = call.guidance.new_full((1,), 0.5)
            args = (call.observation, call.video, call.actions, time, call.guidance, call.captions)
            if _record(self._step, args):
                self._known_steps.add(_step_shape_of(call))

    def direct(self, canvas: Tensor, state: Tensor, call: Call) -> Tensor:
        """The same chunk without any recording, beside whatever else is being served."""
        observation = self._model.observe(canvas, state)
        return self._model.chunk(*call._replace(observation=observation))

    def take_noted(self) -> list[Call]:
        """Calls that no loop was recorded for, since the last time."""
        noted, self._noted = self._noted, []
        return noted

    def _note(self, call: Call) -> None:
        """Once for each shape; again if its recording was there and has been evicted."""
        shape = _shape_of(call)
        has_room = len(self._noted) < MAX_NOTED and len(self._asked) < MAX_ASKED
        if has_room and (shape not in self._asked or shape in self._known):
            self._asked.add(shape)
            self._known.discard(shape)
            self._noted.append(call)

    def _has_loop(self, call: Call) -> bool:
        return _shape_of(call) in self._known

    def _has_step(self, call: Call) -> bool:
        return _step_shape_of(call) in self._known_steps

    def stats(self) -> dict[str, Stats]:
        """By region; empty where nothing may be recorded."""
        served = {"observation": self._observe, "step": self._step, "loop": self._loop}
        if self._runner is None:
            return {}
        return {name: self._runner.stats(s) for name, s in served.items() if s is not None}

    def close(self) -> None:
        """Free every recording."""
        for served in (self._loop, self._step, self._observe):
            if served is not None:
                served.close()
        self._known.clear()
        self._known_steps.clear()
        self._asked.clear()


def _record(served: Served, args: tuple[Any, ...]) -> bool:
    try:
        return served.record(tuple(args), {}) is not None
    except RecordingRefused as refused:
        log.warning("%s is served directly: %s", served.region.name, refused)
        return False


def _last(served: Served) -> Route:
    route = served.counters.last()
    assert route is not None
    return route


def _step_shape_of(call: Call) -> tuple[int, ...]:
    """What a step's key depends on: the lengths of the captions."""
    return tuple(caption.cos.shape[0] for caption in call.captions)


def _shape_of(call: Call) -> tuple[tuple[int, ...], int, float]:
    """What a loop's key depends on."""
    return _step_shape_of(call), call.num_steps, call.shift
