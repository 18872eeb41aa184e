"""Encoders of published width on the GPU: right for every batch, and never waiting for it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from ostinato import GraphConfig
from ostinato.layers.mlp import pack_mlps
from ostinato.layers.rotary import axial_frequencies
from ostinato.recording.runner import Runner
from ostinato.vision.contract import Grid, VisionConfig
from ostinato.vision.encoder import Encoded, Encoder
from ostinato.vision.models.qwen2_5_vl import Qwen2_5VL
from ostinato.vision.models.qwen3_vl import Qwen3VL
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import tower_rungs
from ostinato.vision.tower import Tower
from tests.gpu.regions import DEVICE, HAS_GPU

pytestmark = [pytest.mark.gpu, pytest.mark.device]

TOP = 16_384
TOLERANCE = 3e-2  # of a rung against the unpadded direct call, bf16
EXACT: tuple[list[Grid], ...] = (
    [(1, 14, 14)],
    [(1, 28, 28)],
    [(1, 28, 28)] * 4,
    [(3, 14, 24), (1, 10, 6)],
)

QWEN3 = VisionConfig(
    model_type="qwen3_vl",
    depth=4,
    width=1152,
    num_heads=16,
    mlp_width=4304,
    out_width=4096,
    patch_size=16,
    temporal_patch_size=2,
    merge_size=2,
    activation="gelu_pytorch_tanh",
    position_side=48,
    deepstack_blocks=(1, 2, 3),
)
QWEN2_5 = VisionConfig(
    model_type="qwen2_5_vl",
    depth=4,
    width=1280,
    num_heads=16,
    mlp_width=3420,
    out_width=3584,
    patch_size=14,
    temporal_patch_size=2,
    merge_size=2,
    activation="silu",
    window_side=4,
    full_attention_blocks=(1, 3),
)


class _NoPreprocessor:
    def close(self) -> None:
        return None


@dataclass
class Pair:
    """The same tower behind recordings and with recording off."""

    recorded: Encoder
    direct: Encoder
    tower: RecordedTower


def make_tower(config: VisionConfig) -> Tower:
    tower = (Qwen3VL if config.position_side else Qwen2_5VL)(config)
    tower = tower.to_empty(device=DEVICE)
    tower.rotary.frequencies.copy_(axial_frequencies(config.head_dim, config.rope_theta))
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    with torch.no_grad():
        for name, parameter in tower.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, device=DEVICE)
            is_scale = "norm" in name and name.endswith("weight")
            parameter.copy_(0.1 * drawn + 1.0 if is_scale else 0.03 * drawn)
            parameter.data = parameter.data.bfloat16()
    pack_mlps(tower)
    return tower.eval().requires_grad_(False)


@pytest.fixture(scope="module", params=[QWEN3, QWEN2_5], ids=lambda c: c.model_type)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if not HAS_GPU:
        pytest.skip("no CUDA device")
    config = request.param
    tower = make_tower(config)
    runner = Runner.on(DEVICE)
    graph = GraphConfig(promote_hits=1 << 30)
    rungs = tower_rungs(config, top=TOP, bottom=256, ratio=1.9)
    recorded = RecordedTower(tower, runner, graph, rungs)
    off = RecordedTower(tower, runner, GraphConfig(mode="off"), rungs[:1])
    recorded.warm_up()
    for grids in EXACT:
        layout = recorded.layouts.exact(grids)
        recorded.record(recorded.exact_rung(layout), layout)
    preprocessor = _NoPreprocessor()
    yield Pair(Encoder(recorded, preprocessor), Encoder(off, preprocessor), recorded)  # type: ignore[arg-type]
    recorded.close()
    runner.close()


def draw_batch(draw: random.Random) -> list[Grid]:
    """1 to 12 images and videos, odd grids among them, at most TOP patches together."""
    if draw.random() < 0.25:
        return list(draw.choice(EXACT))
    grids: list[Grid] = []
    left = draw.choice((600, 3000, TOP))
    for _ in range(draw.randint(1, 12)):
        frames = draw.choice((1, 1, 1, 2, 5))
        rows, columns = (2 * draw.randint(1, 40) for _ in range(2))
        if frames * rows * columns <= left:
            grids.append((frames, rows, columns))
            left -= frames * rows * columns
    return grids or [(1, 2, 2)]


def make_patches(grids: list[Grid], width: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    num_rows = sum(t * h * w for t, h, w in grids)
    drawn = torch.randn(num_rows, width, generator=generator, device=DEVICE)
    return drawn.bfloat16()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def check(got: list[Encoded], want: list[Encoded], num_patches: int) -> str:
    """Equal bytes where one exact recording served the batch, else close; the route."""
    routes = {e.route for e in got}
    is_one_exact = len(routes) == 1 and all(
        r.route == "exact" and dict(r.rung).get("patches") == num_patches for r in routes
    )
    for ours, theirs in zip(got, want, strict=True):
        assert ours.grid_thw == theirs.grid_thw
        assert ours.packed.shape == theirs.packed.shape
        assert ours.packed.isfinite().all()
        if is_one_exact:
            assert torch.equal(ours.packed, theirs.packed), (
                ours.route,
                distance(ours.packed, theirs.packed),
            )
        else:
            assert distance(ours.packed, theirs.packed) <= TOLERANCE, ours.route
    return "one exact" if is_one_exact else "+".join(sorted({r.route for r in routes}))


def test_random_batches_equal_the_direct_call(pair: Pair) -> None:
    draw = random.Random(5)
    width = pair.recorded.config.patch_width
    routes: set[str] = set()
    held: list[tuple[list[Encoded], list[torch.Tensor], list[Grid], int]] = []
    for seed in range(40):
        grids = draw_batch(draw)
        patches = make_patches(grids, width, seed)
        got = pair.recorded.encode_patches(patches, grids)
        routes.add(check(got, pair.direct.encode_patches(patches, grids), len(patches)))
        held.append((got, [e.packed.clone() for e in got], grids, seed))
    assert "one exact" in routes and "rung" in routes
    for got, copies, grids, seed in reversed(held):
        for encoded, copied in zip(got, copies, strict=True):
            assert torch.equal(encoded.packed, copied), "a held result changed"
        again = pair.recorded.encode_patches(make_patches(grids, width, seed), grids)
        for encoded, first, copied in zip(again, got, copies, strict=True):
            assert encoded.route == first.route
            assert torch.equal(encoded.packed, copied), f"other bytes by {encoded.route}"


def test_the_comparison_sees_a_swapped_image(pair: Pair) -> None:
    grids: list[Grid] = [(1, 20, 30), (1, 20, 30)]
    patches = make_patches(grids, pair.recorded.config.patch_width, 1)
    got = pair.recorded.encode_patches(patches.roll(600, 0), grids)
    want = pair.direct.encode_patches(patches, grids)
    with pytest.raises(AssertionError):
        check(got, want, len(patches))


CASES: tuple[tuple[str, list[Grid]], ...] = (
    ("exact", [(1, 28, 28)]),
    ("rung", [(1, 26, 30), (2, 6, 10)]),
    ("direct", [(1, 130, 130)]),
)


@pytest.mark.parametrize(("route", "grids"), CASES, ids=[c[0] for c in CASES])
def test_no_call_waits_for_the_device(pair: Pair, route: str, grids: list[Grid]) -> None:
    encoder = pair.direct if route == "direct" else pair.recorded
    patches = make_patches(grids, encoder.config.patch_width, 3)
    first = encoder.encode_patches(patches, grids)
    assert (first[0].route.route == "direct") is (route == "direct")
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            encoder.encode_patches(patches, grids)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("route", "grids"), CASES, ids=[c[0] for c in CASES])
def test_a_call_returns_while_the_device_is_busy(pair: Pair, route: str, grids: list[Grid]) -> None:
    """Also for copies from ordinary memory, which torch's own check does not see."""
    encoder = pair.direct if route == "direct" else pair.recorded
    patches = make_patches(grids, encoder.config.patch_width, 3)
    want = encoder.encode_patches(patches, grids)
    encoder.encode_patches(patches, grids)  # its memory will be there when the device sleeps
    torch.cuda.synchronize()
    asleep = torch.cuda.Event()
    torch.cuda._sleep(800_000_000)  # some 0.4 s
    asleep.record()
    got = encoder.encode_patches(patches, grids)
    is_busy = not asleep.query()
    torch.cuda.synchronize()
    assert is_busy, "the call waited for the device"
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.packed, b.packed)


def test_the_check_sees_a_wait(pair: Pair) -> None:
    torch.cuda.synchronize()
    asleep = torch.cuda.Event()
    torch.cuda._sleep(800_000_000)
    asleep.record()
    torch.zeros(1, device=DEVICE).item()
    assert asleep.query()
