"""``numerics="invariant"`` with Triton kernels and CUDA graphs, bf16: equal bytes in any company.

Alone means: directly called, in an engine or a batch that has seen nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from ostinato import GraphConfig
from ostinato.lm.build import EngineSizes, build_engine, invariant_sizes
from ostinato.lm.contract import LmConfig, Prompt
from ostinato.lm.engine import Engine
from ostinato.lm.models.qwen import Qwen
from ostinato.recording.runner import Runner
from ostinato.vision.contract import Grid, VisionConfig
from ostinato.vision.encoder import Encoder
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import tower_rungs
from tests.gpu.regions import DEVICE
from tests.gpu.test_encoder import QWEN2_5, QWEN3, _NoPreprocessor, make_patches, make_tower
from tests.lm.engines import OFF, ask
from tests.lm.mixes import PARAMS as MIXED
from tests.lm.mixes import Answer, Mix, answer, encoder, fresh, shown, words

pytestmark = [pytest.mark.gpu, pytest.mark.device]

CHUNK = 128
SIZES: dict[str, Any] = {
    "page_size": 16,
    "max_batch": 32,
    "max_chunk": CHUNK,
    "max_length": 2560,
    "prefill_rungs": (32, CHUNK),
}
CONFIG = LmConfig(
    model_type="qwen3_vl",
    width=1024,
    num_layers=8,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    inner_width=3072,
    num_tokens=4099,  # rows of logits begin at every alignment
    theta=1e6,
    eps=1e-6,
    max_positions=4096,
    has_qkv_bias=False,
    has_head_norm=True,
    is_tied=False,
    rope_sections=(24, 20, 20),
    is_interleaved=True,
)
PARAMS = replace(MIXED, max_tokens=40)
START = words(3 * CHUNK, 1)
PROMPTS: tuple[Prompt, ...] = (
    shown(words(5, 2)),
    shown(START[:CHUNK]),
    shown(START + words(70, 3)),
    shown(START[:CHUNK] + words(200, 4)),
    shown(START + words(30, 5), (100, 60, 1)),
    shown(START + words(30, 5), (100, 60, 2)),
    shown(START + words(12, 6), (100, 60, 1), (390, 6, 3)),
    shown(words(2300, 7)),  # more blocks of keys than programs
)


def make_decoder() -> Qwen:
    model = Qwen(CONFIG)
    generator = torch.Generator(DEVICE).manual_seed(0)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            drawn = torch.randn(parameter.shape, generator=generator, device=DEVICE)
            drawn = drawn * 0.1 + 1 if drawn.dim() == 1 else drawn * drawn.shape[-1] ** -0.5
            setattr(module, name, torch.nn.Parameter(drawn.bfloat16(), requires_grad=False))
    model.frequencies, model.axes = model.frequencies.to(DEVICE), model.axes.to(DEVICE)
    return model.eval()


def make(model: Qwen, graph: GraphConfig, num_pages: int = 400) -> Engine:
    engine = build_engine(
        model,
        EngineSizes(num_pages=num_pages, **SIZES),
        graph=graph,
        eos_ids=frozenset({258}),
        encode=encoder(model),
        num_levels=3,
        numerics="invariant",
        warm_up=graph.mode != "off",
    )
    engine.start()
    return engine


@dataclass
class Case:
    model: Qwen
    alone: list[Answer]


@pytest.fixture(scope="module")
def case() -> Case:
    model = make_decoder()
    found = []
    for prompt in PROMPTS:
        engine = make(model, OFF)
        found.append(answer(ask(engine, fresh(prompt), PARAMS)[0]))
        engine.close()
    assert len(set(map(str, found))) == len(PROMPTS)
    return Case(model, found)


@pytest.fixture(scope="module")
def engine(case: Case) -> Iterator[Engine]:
    engine = make(case.model, GraphConfig())
    yield engine
    engine.close()


@pytest.mark.parametrize("seed", range(4))
def test_any_mix_gives_every_request_its_own_bytes(case: Case, engine: Engine, seed: int) -> None:
    draw = random.Random(seed)
    plan = [
        (draw.randrange(len(PROMPTS)), draw.choice((0, 0, 0, 2, 6)), draw.choice((0, 0, 0, 1, 5)))
        for _ in range(40)
    ]
    mix = Mix(engine, PROMPTS, PARAMS)
    mix.play(plan)
    assert mix.different(case.alone) == []
    assert mix.num_cached % CHUNK == 0
    assert mix.num_cached > 0 or seed == 0
    for name, steps in engine.stats().recordings.items():
        assert steps.calls["direct"] == 0, (name, steps.refusals)


def test_preemption_changes_no_byte(case: Case) -> None:
    engine = make(case.model, OFF, num_pages=160)
    mix = Mix(engine, PROMPTS, PARAMS)
    mix.play([(which, 0, 0) for which in (7, 1, 0, 0, 0, 2, 3, 4, 5, 6, 0)])
    assert engine.stats().num_preempted > 0
    engine.close()
    assert mix.different(case.alone) == []


def test_a_second_decode_rung_would_show(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.lm import build

    def two(sizes: EngineSizes) -> EngineSizes:
        return replace(invariant_sizes(sizes), decode_rungs=(1, sizes.max_batch))

    monkeypatch.setattr(build, "invariant_sizes", two)
    engine = make(case.model, OFF)
    for which in range(len(PROMPTS)):
        mix = Mix(engine, PROMPTS, PARAMS)
        mix.play([(which, 0, 0)])
        if mix.different(case.alone):
            break
    else:
        pytest.fail("one row and 32 rows give equal bytes here: nothing was compared")
    engine.close()


GRIDS: tuple[Grid, ...] = (
    (1, 14, 14),
    (1, 6, 10),
    (3, 14, 24),
    (1, 28, 28),
    (1, 2, 2),
    (1, 40, 44),
)


@pytest.mark.parametrize("config", [QWEN3, QWEN2_5], ids=lambda c: c.model_type)
def test_any_batch_gives_each_image_its_own_bytes(config: VisionConfig) -> None:
    tower = make_tower(config)
    runner = Runner.on(DEVICE)
    rungs = tower_rungs(config, top=1024, bottom=256, ratio=2.0)

    def encoder_with(graph: GraphConfig) -> Encoder:
        recorded = RecordedTower(tower, runner, graph, rungs, numerics="invariant")
        recorded.warm_up()
        return Encoder(recorded, _NoPreprocessor())  # type: ignore[arg-type]

    def encoded(encoder: Encoder, order: list[int]) -> list[bytes]:
        patches = [make_patches([GRIDS[i]], config.patch_width, i) for i in order]
        found = encoder.encode_patches(torch.cat(patches), [GRIDS[i] for i in order])
        return [one.packed.cpu().view(torch.uint8).numpy().tobytes() for one in found]

    off, on = encoder_with(OFF), encoder_with(GraphConfig(promote_hits=2))
    try:
        alone = [encoded(off, [i])[0] for i in range(len(GRIDS))]
        draw = random.Random(0)
        for _ in range(12):
            order = [draw.randrange(len(GRIDS)) for _ in range(draw.randint(1, 8))]
            assert encoded(on, order) == [alone[i] for i in order]
        calls = on.stats().calls
        assert calls["rung"] + calls["exact"] > calls["direct"]  # the largest image is direct
    finally:
        off.close()
        on.close()
        runner.close()
