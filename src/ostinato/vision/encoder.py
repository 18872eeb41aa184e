"""Images and videos to embeddings: preprocess, pack, run, and give everybody their own back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ostinato.errors import ConfigError, InputError, Overloaded
from ostinato.kernels.card import num_processors_of
from ostinato.kernels.gate import Numerics
from ostinato.kernels.select import selector_of
from ostinato.recording.config import GraphConfig
from ostinato.recording.graphed import shared_runner
from ostinato.recording.stats import Route, Stats
from ostinato.vision.bounded import BoundedCache
from ostinato.vision.contract import EncoderOutput, Grid, Layout, VisionConfig
from ostinato.vision.layout import check_grid
from ostinato.vision.load import load_tower
from ostinato.vision.packing import Packer, Packing
from ostinato.vision.prepared import Prepared
from ostinato.vision.preprocess import (
    ImageItem,
    ImageOptions,
    Limits,
    Patches,
    Preprocessor,
    VideoItem,
    VideoOptions,
    default_config,
    load_config,
)
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import top_patches_of, tower_rungs

PLAN_BYTES = 64 << 20
"""Host bytes of the layouts of batches whose plan is remembered."""

_PLAN_OWN_BYTES = 4096


class _Plan(NamedTuple):
    """How one batch of grids is served, as long as the same recordings are there."""

    packer: Packer
    packing: Packing
    calls: tuple[Prepared, ...]


@dataclass(frozen=True, eq=False)
class Encoded:
    """What became of one image or video. The tensors are the caller's own.

    ``embeddings``: (tokens, width), on the encoder's device, its dtype. ``deepstack``: one
    (tokens, width) per level, empty for towers without. ``grid_thw``: frames, rows and columns of
    patches. ``route``: how the call that held it was served, and why.
    """

    embeddings: torch.Tensor
    deepstack: tuple[torch.Tensor, ...]
    grid_thw: Grid
    route: Route

    @property
    def packed(self) -> torch.Tensor:
        """(tokens, width * (1 + levels)): embeddings first, then the DeepStack levels."""
        if not self.deepstack:
            return self.embeddings
        return torch.cat([self.embeddings, *self.deepstack], dim=1)


class _Stages:
    """Adds the time since the last stage ended to the stage that ends now."""

    def __init__(self, stage_ms: dict[str, float] | None) -> None:
        self._stage_ms = {} if stage_ms is None else stage_ms
        self._since_s = time.perf_counter()

    def ends(self, stage: str) -> None:
        now_s = time.perf_counter()
        self._stage_ms[stage] = self._stage_ms.get(stage, 0.0) + (now_s - self._since_s) * 1e3
        self._since_s = now_s


class Encoder:
    """A vision tower behind recordings. Any thread may call it.

    Made by ``load_encoder``. ``config`` holds the tower's sizes.
    """

    def __init__(self, recorded: RecordedTower, preprocessor: Preprocessor) -> None:
        self._recorded = recorded
        self._preprocessor = preprocessor
        self._plans: BoundedCache[tuple[Grid, ...], _Plan] = BoundedCache(PLAN_BYTES)
        self._is_closed = False

    @property
    def config(self) -> VisionConfig:
        return self._recorded.tower.config

    @property
    def device(self) -> torch.device:
        return self._recorded.device

    @property
    def dtype(self) -> torch.dtype:
        return self._recorded.dtype

    @property
    def preprocessor(self) -> Preprocessor:
        return self._preprocessor

    def encode(
        self,
        images: Iterable[Any] = (),
        videos: Iterable[Any] = (),
        *,
        image_options: ImageOptions | None = None,
        video_options: VideoOptions | None = None,
    ) -> list[Encoded]:
        """Encode images, then videos: PIL, array, tensor, path or bytes each; in this order.

        Raises ``InputError`` for the first item that cannot be served (``encode_each`` serves the
        others), ``Overloaded`` when the encoder is closed.
        """
        return [
            _or_raise(r)
            for r in self.encode_each(
                images, videos, image_options=image_options, video_options=video_options
            )
        ]

    def encode_each(
        self,
        images: Iterable[Any] = (),
        videos: Iterable[Any] = (),
        *,
        image_options: ImageOptions | None = None,
        video_options: VideoOptions | None = None,
    ) -> list[Encoded | InputError]:
        """Like ``encode``; an item that cannot be served is its ``InputError`` in the list."""
        if self._is_closed:
            raise Overloaded("the encoder is closed", retry_after_s=1)
        for name, given in (("images", images), ("videos", videos)):
            if isinstance(given, (str, bytes, Path)):
                raise InputError(
                    f"{name} is a {type(given).__name__}; expected a list of images or videos"
                )
        items: list[ImageItem | VideoItem] = [
            ImageItem(image, image_options or ImageOptions()) for image in images
        ]
        items += [VideoItem(video, video_options or VideoOptions()) for video in videos]
        prepared = self._preprocessor.batch(items)
        good = [p for p in prepared if isinstance(p, Patches)]
        encoded = iter(self.encode_items(good) if good else ())
        return [next(encoded) if isinstance(p, Patches) else p for p in prepared]

    def encode_items(
        self, items: Sequence[Patches], *, stage_ms: dict[str, float] | None = None
    ) -> list[Encoded]:
        """Encode what a ``Preprocessor`` made, in order.

        Milliseconds of the host are added to ``stage_ms`` under ``pack``, ``upload``, ``replay``;
        on a GPU none of them waits for the device.
        """
        values, grids = [p.tensor for p in items], [p.grid_thw for p in items]
        return self._encode(values, grids, stage_ms=stage_ms)

    def encode_patches(
        self, pixel_values: torch.Tensor, grid_thw: torch.Tensor | Sequence[Sequence[int]]
    ) -> list[Encoded]:
        """Encode what the published processors produce.

        ``pixel_values``: (sum of t*h*w, patch_width), floating, any device. ``grid_thw``: one
        (frames, rows, columns) in patches per item; a host tensor or numbers (a device tensor
        would have to be waited for: ``InputError``).
        """
        grids = [check_grid(grid, self.config.merge_size) for grid in _host_grids(grid_thw)]
        num_patches = sum(t * h * w for t, h, w in grids)
        if pixel_values.dim() != 2 or pixel_values.shape[0] != num_patches:
            raise InputError(
                f"pixel_values has shape {tuple(pixel_values.shape)}; expected ({num_patches}, "
                f"{self.config.patch_width}) for the grids {grids}"
            )
        return self._encode(pixel_values, grids)

    def _encode(
        self,
        values: torch.Tensor | Sequence[torch.Tensor],
        grids: Sequence[Grid],
        stage_ms: dict[str, float] | None = None,
    ) -> list[Encoded]:
        """``values``: of all items in one tensor, or one tensor for each."""
        recorded, clock = self._recorded, _Stages(stage_ms)
        packing, calls = self._plan(tuple(grids))[1:]
        split: Iterable[Sequence[torch.Tensor]]
        is_whole = False
        if isinstance(values, torch.Tensor) and len(calls) == 1:
            split, is_whole = [[values]], True
        elif isinstance(values, torch.Tensor):
            counts = [t * h * w for t, h, w in grids]
            split = packing.split(torch.split(values, counts) if counts else ())
        else:
            split = packing.split(values)
        results: list[list[Encoded]] = []
        clock.ends("pack")
        with nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode():
            for call, parts in zip(calls, split, strict=True):
                patches = self._on_device(parts, call.layout)
                clock.ends("upload")
                output, route = recorded.run(patches, call)
                results.append(_split(output, call.layout, route))
                recorded.note(call.layout)
                clock.ends("replay")
        return results[0] if is_whole else packing.restore(results)

    def _plan(self, grids: tuple[Grid, ...]) -> _Plan:
        """How to split the batch into calls, and what each needs besides patches; remembered while
        the same recordings are there.
        """
        recorded, packer = self._recorded, self._recorded.packer
        known = self._plans.get(grids)
        if known is not None and known.packer is packer:
            return known
        packing = packer.pack(
            [recorded.estimates.load_of(recorded.layouts.item_size(grid)) for grid in grids]
        )
        calls = tuple(
            recorded.prepare(
                recorded.layouts.exact([grids[i] for i in call.items]),
                None if call.rung is None else call.rung.source,
            )
            for call in packing.calls
        )
        plan = _Plan(packer, packing, calls)
        num_bytes = _PLAN_OWN_BYTES + sum(call.num_bytes for call in calls)
        self._plans.put(grids, plan, num_bytes)
        return plan

    def _on_device(self, parts: Sequence[torch.Tensor], layout: Layout) -> torch.Tensor:
        """(T, patch_width) on the tower's device in its dtype; host values through
        pinned memory.
        """
        width, device, dtype = self.config.patch_width, self.device, self.dtype
        if len(parts) == 1:
            only = parts[0]
            is_ready = only.dtype == dtype and only.device == device
            if is_ready and only.dim() == 2 and only.shape[1] == width:
                return only
        for part in parts:
            if part.dim() != 2 or part.shape[1] != width or not part.is_floating_point():
                raise InputError(
                    f"patches are {part.dtype} {tuple(part.shape)}; expected floating (patches, "
                    f"{width})"
                )
        if device.type == "cuda" and not any(part.is_cuda for part in parts):
            staged = torch.empty(layout.num_patches, width, dtype=dtype, pin_memory=True)
            torch.cat(tuple(parts), out=staged) if _has(parts, dtype) else _fill(staged, parts)
            return staged.to(device, non_blocking=True)
        moved = [part.to(device, dtype) for part in parts]
        return moved[0] if len(moved) == 1 else torch.cat(moved)

    def warm_up(
        self,
        progress: Callable[[int, int], None] = lambda done, total: None,
        *,
        is_brief: bool = False,
    ) -> None:
        """Record the whole ladder, largest first, so that no request ever waits for a recording.

        ``is_brief``: for batches of up to eight images and frames; what larger ones need is
        recorded between requests, once it is wanted.
        """
        with torch.inference_mode():
            self._recorded.warm_up(progress, is_brief=is_brief)

    def stats(self) -> Stats:
        """How calls were served, what is recorded, what it holds."""
        return self._recorded.stats()

    def close(self) -> None:
        """Free the recordings and stop the preprocessing threads.

        Images and videos raise ``Overloaded`` from now on; patches are served, directly.
        """
        self._is_closed = True
        self._recorded.close()
        self._preprocessor.close()


def load_encoder(
    model: str | Path | nn.Module,
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | None = None,
    graph: GraphConfig | None = None,
    numerics: Numerics = "fast",
    quantization: str | None = None,
    top_patches: int | None = None,
    warm_up: bool = True,
    workers: int = 2,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Encoder:
    """Load a vision tower and put it behind recordings.

    ``model``: a checkpoint directory, a hub name, a shipped tiny model, or a loaded transformers
    module (a tower or a model that has one). ``device``: ``auto`` is the module's own, else the GPU
    where there is one. ``dtype``: as stored when ``None``. ``top_patches``: the largest recorded
    size, 16,384 or on the CPU 1,024 if ``None``; larger inputs are served directly. ``warm_up``:
    record the ladder now (else when idle, size by size). ``limits``: what one image or video may
    cost. ``numerics``: ``reference`` lets only operators run fused that are bit-exact to torch's;
    ``invariant``: an item's bytes do not depend on what it is encoded with.
    ``quantization="fp8"``: E4M3 linear layers, rounded at load; see ``load_tower``. Raises
    ``WeightsError``, ``ConfigError`` or ``DeviceError``.
    """
    if numerics not in ("fast", "reference", "invariant"):
        raise ConfigError(f"numerics is {numerics!r}; expected fast, reference or invariant")
    graph = graph or GraphConfig()
    place = _device_of(model, device)
    tower = load_tower(model, device=place, dtype=dtype, quantization=quantization).eval()
    where = next(tower.parameters()).device
    if graph.cache_dir is not None:
        selector_of(where).keep_in(Path(graph.cache_dir).expanduser())
    runner = shared_runner(where, graph)
    rungs = tower_rungs(
        tower.config,
        top=top_patches or top_patches_of(where.type),
        ratio=graph.ladder_ratio,
        num_processors=num_processors_of(where),
    )
    recorded = RecordedTower(tower, runner, graph, rungs, numerics=numerics)
    preprocessor = Preprocessor(
        _processing(model, tower.config), limits=limits or Limits(), workers=workers
    )
    encoder = Encoder(recorded, preprocessor)
    if warm_up and graph.mode != "off":
        encoder.warm_up(progress)
    return encoder


def _device_of(model: Any, device: str | torch.device) -> str | torch.device | None:
    if device != "auto":
        return device
    if isinstance(model, nn.Module):
        return None
    return "cuda" if torch.cuda.is_available() else "cpu"


def _processing(model: Any, config: VisionConfig) -> Any:
    if isinstance(model, (str, Path)) and Path(model).is_dir():
        return load_config(model, config.model_type)
    return default_config(config.model_type)


def _host_grids(grid_thw: torch.Tensor | Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    if isinstance(grid_thw, torch.Tensor):
        if grid_thw.device.type != "cpu":
            raise InputError(
                f"grid_thw is on {grid_thw.device}; expected a host tensor, since reading it from "
                "the device would wait for the device"
            )
        if grid_thw.dim() != 2 or grid_thw.shape[1] != 3:
            raise InputError(f"grid_thw has shape {tuple(grid_thw.shape)}; expected (items, 3)")
        numbers: list[list[int]] = grid_thw.tolist()
        return numbers
    return grid_thw


def _has(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> bool:
    return all(part.dtype == dtype for part in parts)


def _fill(staged: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    start = 0
    for part in parts:
        staged[start : start + part.shape[0]].copy_(part)
        start += part.shape[0]


def _split(output: EncoderOutput, layout: Layout, route: Route) -> list[Encoded]:
    """One result per item, in the layout's order."""
    if len(layout.grids) == 1:
        return [Encoded(output.embeddings, tuple(output.deepstack), layout.grids[0], route)]
    tokens = list(layout.item_tokens)
    main = torch.split(output.embeddings, tokens)
    levels = [torch.split(level, tokens) for level in output.deepstack]
    return [
        Encoded(main[i], tuple(level[i] for level in levels), grid, route)
        for i, grid in enumerate(layout.grids)
    ]


def _or_raise(result: Encoded | InputError) -> Encoded:
    if isinstance(result, InputError):
        raise result
    return result
