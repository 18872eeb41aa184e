"""From an observation to an action chunk: host work, captions, two replays, host work."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ostinato.errors import OstinatoError
from ostinato.policy.chunking import Prefix
from ostinato.policy.contract import Options, read_options
from ostinato.policy.flux3_action.about import Clock, about, why_direct
from ostinato.policy.flux3_action.captions import Captions
from ostinato.policy.flux3_action.load import Loaded
from ostinato.policy.flux3_action.model import Caption, Observation, draw_noise
from ostinato.policy.flux3_action.prepare import (
    Prepared,
    Recipe,
    noise_for,
    prefix_for,
    prepare,
    recipe,
    unread_fields,
)
from ostinato.policy.flux3_action.regions import Call, Regions
from ostinato.recording.config import GraphConfig
from ostinato.recording.graphed import shared_runner

log = logging.getLogger(__name__)
NUM_KEPT_SEEDS = 4
NUM_CAPTION_BUCKETS = 2
"""Lengths of captions that are recorded before the policy is ready: 80 and 160 tokens."""

NUM_NOTED = 16
"""Sets of unread fields that are named in the log; what names fields anew each time is not."""


class Stages(NamedTuple):
    """The device's work of one request, apart: ``denoise`` takes what ``observe`` gave last."""

    observe: Callable[[], Observation]
    denoise: Callable[[], Tensor]


class ActionPolicy:
    """A FLUX 3 Action policy. Any thread may call; calls are served one after the other."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        enable_cuda_graph: bool,
        graph: GraphConfig,
        caption_cache_max_tokens: int,
        offload_text_encoder: bool,
        num_caption_buckets: int = NUM_CAPTION_BUCKETS,
    ) -> None:
        self.config = loaded.config
        self._model = loaded.model
        self._origin = loaded.origin
        first = next(loaded.model.parameters())
        self.device = first.device
        self.dtype = loaded.model.dit.dtype
        self._captions = Captions(
            loaded, self.device, caption_cache_max_tokens, offload=offload_text_encoder
        )
        self._why = why_direct(loaded.model, is_on=enable_cuda_graph and graph.mode != "off")
        self._runner = None if self._why else shared_runner(self.device, graph)
        self._regions = Regions(loaded.model, self._runner, graph, why=self._why)
        self._num_buckets = num_caption_buckets
        self._seeded: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()
        self._lock = threading.Lock()
        self._later: list[Future[Any]] = []
        self._verdict: str | None = None
        self._is_trusted = True
        self._noted: set[tuple[str, ...]] = set()

    # -- one request ----------------------------------------------------------------------------

    def infer(self, observation: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """One chunk; see ``policy.contract`` for observations and options.

        Returns ``actions`` (horizon, D) float32 in robot units, ``model_actions`` (K, D) in model
        space (what a later request sends as left-over), ``timings`` in milliseconds, ``cache`` and
        ``recording`` (how each region was served). Raises as ``Policy.infer`` says, and
        ``OstinatoError`` where the model answers with values that are not finite.
        """
        clock = Clock()
        wishes = read_options(observation, options)
        plan = recipe(self.config, wishes)
        with torch.inference_mode():
            prepared = prepare(self.config, observation, self.device)
        self._note_unread(observation)
        prefix = prefix_for(self.config, wishes)
        clock.lap("preprocess_ms")
        with self._lock, torch.inference_mode():
            uses_cache = wishes.enable_prefix_cache is not False
            captions, was_kept = self._captions_for(prepared.prompt, plan, uses_cache)
            clock.lap("text_ms")
            is_recorded = self._is_trusted and wishes.enable_cuda_graph is not False
            canvas, token = self._inputs(prepared)
            observed = self._regions.observe(canvas, token, is_recorded=is_recorded)
            clock.lap("observation_ms")
            call = self._call(observed, self._noise(wishes), plan, captions, prefix)
            chunk = self._regions.chunk(call, is_recorded=is_recorded).cpu()  # waits for the device
            routes = dict(self._regions.routes)
            clock.lap("denoise_ms")
            self._schedule_work(canvas, token, call, chunk, is_recorded=is_recorded)
        actions = self.config.action_space.decode_actions(chunk, prepared.state)[: plan.horizon]
        if not torch.isfinite(actions).all():
            raise OstinatoError(f"{self._origin}: the model's answer is not finite")
        clock.lap("postprocess_ms")
        return {
            "actions": actions.numpy(),
            "model_actions": chunk.numpy(),
            "timings": clock.timings(),
            "cache": {"enabled": uses_cache, "hit": was_kept},
            "recording": {name: f"{r.route}: {r.reason}" for name, r in routes.items()},
        }

    def stages(self, observation: Mapping[str, Any], **options: Any) -> Stages:
        """The two stages of a request as calls on what is on the device already, for measuring.

        Each may be made any number of times, ``observe`` first, while nothing else is served.
        """
        wishes = read_options(observation, options)
        plan, prefix = recipe(self.config, wishes), prefix_for(self.config, wishes)
        is_recorded = self._is_trusted and wishes.enable_cuda_graph is not False
        with self._lock, torch.inference_mode():
            prepared = prepare(self.config, observation, self.device)
            canvas, token = self._inputs(prepared)
            captions, _ = self._captions_for(prepared.prompt, plan, uses_cache=True)
            noise = self._noise(wishes)

        seen: list[Observation] = []

        def observe() -> Observation:
            with torch.inference_mode():
                seen[:] = [self._regions.observe(canvas, token, is_recorded=is_recorded)]
                return seen[0]

        call = self._call(observe(), noise, plan, captions, prefix)

        def denoise() -> Tensor:
            with torch.inference_mode():
                latest = call._replace(observation=seen[0])
                return self._regions.chunk(latest, is_recorded=is_recorded)

        return Stages(observe, denoise)

    def _note_unread(self, observation: Mapping[str, Any]) -> None:
        """Once for each set of names: a misspelt instruction is an empty one."""
        unread = unread_fields(observation)
        if unread and unread not in self._noted and len(self._noted) < NUM_NOTED:
            self._noted.add(unread)
            log.warning(
                "%s: nothing reads these fields of the observation: %s; "
                "expected images, state, prompt and options",
                self._origin,
                ", ".join(unread),
            )

    def reset(self) -> None:
        """Nothing to forget: what a chunk depends on is in its request."""

    def _captions_for(
        self, prompt: str, plan: Recipe, uses_cache: bool
    ) -> tuple[tuple[Caption, ...], bool]:
        """The instruction's and, where guided, the empty one's; and whether the first was kept."""
        first, was_kept = self._captions.get(prompt, use_cache=uses_cache)
        if not plan.is_guided:
            return (first,), was_kept
        return (first, self._captions.get("")[0]), was_kept

    def _noise(self, wishes: Options) -> tuple[Tensor, Tensor]:
        """On the device; that of a seed is kept, since drawing it costs the host milliseconds."""
        if wishes.noise is not None:
            video, actions = noise_for(self.config, wishes)
            return self._upload(video), self._upload(actions)
        seed = self.config.inference_seed if wishes.seed is None else int(wishes.seed)
        if seed not in self._seeded:
            while len(self._seeded) >= NUM_KEPT_SEEDS:
                self._seeded.popitem(last=False)
            video, actions = draw_noise(self.config, seed)
            self._seeded[seed] = self._upload(video), self._upload(actions)
        return self._seeded[seed]

    def _upload(self, x: Tensor) -> Tensor:
        """To the device, without a wait: through pinned memory."""
        if self.device.type != "cuda":
            return x.to(self.device)
        return x.pin_memory().to(self.device, non_blocking=True)

    def _inputs(self, prepared: Prepared) -> tuple[Tensor, Tensor]:
        return (
            prepared.canvas.to(self.dtype),
            self._upload(prepared.token.to(self.dtype)),
        )

    def _call(
        self,
        observed: Observation,
        noise: tuple[Tensor, Tensor],
        plan: Recipe,
        captions: tuple[Caption, ...],
        prefix: Prefix,
    ) -> Call:
        """Everything on the device."""
        return Call(
            observed,
            *noise,
            self._upload(torch.tensor(plan.guidance)),
            captions,
            Prefix(*(self._upload(x) for x in prefix)),
            plan.num_steps,
            plan.shift,
        )

    # -- recording ------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Record the package's own recipe for captions of the shortest buckets, the longest first:
        the others then fit into its pool.
        """
        config, plan = self.config, recipe(self.config, Options())
        with self._lock, torch.inference_mode():
            canvas = config.arrangement.grey().to(self.device, self.dtype)
            token = torch.zeros(1, config.action_dim, device=self.device, dtype=self.dtype)
            captions, _ = self._captions_for("", plan, uses_cache=True)
            observed = self._regions.record_observation(canvas, token)
            if observed is None:
                return
            noise, prefix = self._noise(Options()), prefix_for(config, Options())
            for k in reversed(range(self._num_buckets)):
                first = self._captions.blank((k + 1) * config.text_pad_multiple)
                call = self._call(observed, noise, plan, (first, *captions[1:]), prefix)
                self._regions.record(call, has_step=False)

    def _schedule_work(
        self, canvas: Tensor, token: Tensor, call: Call, chunk: Tensor, *, is_recorded: bool
    ) -> None:
        """Once the lane is idle: after the first answer, doubt it; record what was missing.

        Neither holds up requests: those that come while the lane records are served directly.
        """
        if self._runner is None or not is_recorded:
            return
        noted = self._regions.take_noted()
        is_first = self._verdict is None
        is_lost = self._regions.takes_restoring()
        if not (noted or is_first or is_lost):
            return
        if is_first:
            self._verdict = "pending"

        def job() -> None:
            with torch.inference_mode():
                if is_first:
                    self._compare(canvas, token, call, chunk)
                if is_lost and self._is_trusted:
                    self._regions.restore(canvas, token)
                for missing in noted if self._is_trusted else ():
                    self._regions.record(missing, has_step=True)

        self._later = [f for f in self._later if not f.done()]
        self._later.append(self._runner.lane.run_when_idle(job))

    def _compare(self, canvas: Tensor, token: Tensor, call: Call, chunk: Tensor) -> None:
        """The first real answer again, directly: equal bytes, or no recording serves any more."""
        assert self._runner is not None
        direct = self._runner.run_in_pool(lambda: self._regions.direct(canvas, token, call).cpu())
        if torch.equal(direct.view(torch.int32), chunk.view(torch.int32)):
            self._verdict = "bit-exact"
            return
        distance = (direct - chunk).abs().max().item()
        self._verdict = f"differs by {distance:.3g}: served directly"
        self._is_trusted = False
        log.error("%s: the recorded answer %s", self._origin, self._verdict)

    def wait_idle(self) -> None:
        """Wait for recordings and comparisons that were put off; their errors are raised here."""
        while self._later:
            self._later.pop().result()

    # -- about ----------------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """Plain values for clients: inputs, output, defaults, capabilities, runtime."""
        runtime = {
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "quantization": self.config.quantization,
            "cuda_graph": self._runner is not None,
            "cuda_graph_reason": self._why,
            "verdict": self._verdict,
        }
        return about(self.config, self._origin) | {"runtime": runtime}

    def stats(self) -> dict[str, Any]:
        """Recordings by region, and what is kept of instructions."""
        return {
            "regions": self._regions.stats(),
            "num_captions": len(self._captions),
            "num_caption_tokens": self._captions.num_tokens,
        }

    def close(self) -> None:
        """Free every recording. The policy still answers, directly."""
        self.wait_idle()
        with self._lock:
            self._regions.close()
