"""Prefill backends on the device: the same tokens, recorded as called directly, bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ostinato import state
from ostinato.errors import RecordingRefused
from ostinato.lm.backends import FULL, Name, PrefillBackend, make_backend
from ostinato.lm.fastest import CANDIDATES, SECTION, choose_backend
from ostinato.lm.load import load_decoder
from ostinato.lm.models.qwen import Qwen
from ostinato.lm.traced import Traced
from ostinato.recording import cuda
from ostinato.recording.config import GraphConfig
from ostinato.recording.cuda_breakable import is_installed
from ostinato.recording.pieces import direct
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner
from tests.gpu.regions import DEVICE, T, same
from tests.lm.prefills import BACKENDS, LEVELS, SIZES, logits_of, num_pieces, prefill_of

pytestmark = pytest.mark.filterwarnings("default")  # the tracer's and Inductor's own matters
OFF, ON = GraphConfig(mode="off"), GraphConfig()
MIB = 1 << 20
CAPTURES = ("own", "package")


@pytest.fixture(scope="module", params=LEVELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> Qwen:
    return load_decoder(name, device=torch.device("cuda", 0))


@pytest.fixture(scope="module")
def backends(name: str, model: Qwen) -> dict[str, PrefillBackend]:
    return {
        one: make_backend(one, model, num_sequences=2, num_levels=LEVELS[name]) for one in BACKENDS
    }


@pytest.fixture(params=CAPTURES)
def capture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who captures a breakable recording."""
    if request.param == "own":
        monkeypatch.setattr(cuda, "is_installed", lambda: False)
    elif not is_installed():
        pytest.skip("the package breakable-cuda-graphs is not installed")
    return str(request.param)


def check(backend: Name, name: str, model: Qwen, backends: dict[str, PrefillBackend]) -> None:
    levels = LEVELS[name]
    plain = logits_of(prefill_of(model, FULL, OFF, levels), model, levels)
    direct_calls = logits_of(prefill_of(model, backends[backend], OFF, levels), model, levels)
    prefill = prefill_of(model, backends[backend], ON, levels)
    with torch.inference_mode():
        prefill.record()
    recorded = logits_of(prefill, model, levels)
    stats = prefill.recorded.stats()
    assert stats is not None
    assert (stats.num_recordings, stats.calls["exact"], stats.calls["direct"]) == (6, 16, 0), (
        stats.refusals
    )
    wanted = 1 if backend == "full" else model.config.num_layers + 1
    assert num_pieces(prefill) == {wanted}
    for got, own, expected in zip(recorded, direct_calls, plain, strict=True):
        assert same(got, own), "bit-exact to the backend's own direct call"
        assert torch.equal(got.argmax(-1), expected.argmax(-1)), "the tokens of direct calls"
    prefill.recorded.close()


@pytest.mark.parametrize("backend", ["full", "tc_piecewise"])
def test_recorded_prefill_is_the_direct_one(
    backend: Name, name: str, model: Qwen, backends: dict[str, PrefillBackend]
) -> None:
    check(backend, name, model, backends)
    if backend == "tc_piecewise":
        traced = backends[backend].forward
        assert isinstance(traced, Traced)
        assert traced.num_traces == (2 if LEVELS[name] else 1)


def test_breakable_prefill_is_the_direct_one(
    capture: str, name: str, model: Qwen, backends: dict[str, PrefillBackend]
) -> None:
    check("breakable", name, model, backends)


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's own
def test_inductor_is_close_to_direct_calls_within_1e_4() -> None:
    """Relative to the largest logit, float32; what is recorded is its own direct call."""
    model, levels = load_decoder("tiny-qwen2.5-vl", device=torch.device("cuda", 0)), 0
    backend = make_backend(
        "tc_piecewise", model, num_sequences=2, num_levels=levels, compiler="inductor"
    )
    plain = logits_of(prefill_of(model, FULL, OFF, levels), model, levels)
    own = logits_of(prefill_of(model, backend, OFF, levels), model, levels)
    prefill = prefill_of(model, backend, ON, levels)
    with torch.inference_mode():
        prefill.record()
    recorded = logits_of(prefill, model, levels)
    stats = prefill.recorded.stats()
    assert stats is not None
    assert (stats.calls["exact"], stats.calls["direct"]) == (16, 0), stats.refusals
    for got, direct_call, expected in zip(recorded, own, plain, strict=True):
        assert same(got, direct_call)
        assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()
    prefill.recorded.close()


def test_the_fastest_is_chosen_by_times_that_are_kept(tmp_path: Path) -> None:
    model = load_decoder("tiny-qwen3-vl", device=torch.device("cuda", 0))
    graph = GraphConfig(cache_dir=tmp_path)
    chosen = choose_backend(None, model, SIZES, graph=graph, num_levels=3)
    (file,) = tmp_path.glob("*.json")
    (times,) = json.loads(file.read_text())[SECTION].values()
    assert set(times) == set(CANDIDATES)
    assert all(1.0 < microseconds < 1e5 for microseconds in times.values())
    assert chosen.name in CANDIDATES
    if times["full"] < times["breakable"]:
        assert chosen.name == "full"


# -- pieces, whoever captures them -------------------------------------------------------------


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner.on(DEVICE)
    yield made
    made.close()


def double_into(out: T, x: T) -> None:
    torch.mul(x, 2.0, out=out)


def layered(num_layers: int) -> Region:
    def fn(x: T) -> T:
        for _ in range(num_layers):
            x = x + 1
            out = x.new_empty(x.shape)
            direct(double_into, out, x)
            x = out * 0.5
        return x

    return Region(f"{num_layers} layers", fn, is_breakable=True)


def test_the_arguments_of_direct_calls_share_the_pools_memory(capture: str, runner: Runner) -> None:
    x, held = torch.arange(2.0 * MIB, device=DEVICE), []  # sums of these are exact
    for num_layers in (2, 16):
        served = runner.serve(layered(num_layers), GraphConfig(mode="exact"))
        entry = served.record((x,), {})
        assert entry is not None
        assert entry.recorded.num_pieces == num_layers + 1
        expected = x
        for _ in range(num_layers):
            expected = expected + 1
        assert same(served.call((x,), {}), expected)
        held.append(sum(generation.pool.bytes_held() for generation in runner.cache))
        served.close()
    assert held[1] <= held[0] + 4 * x.numel() * x.element_size(), "not two for each layer"


def test_a_capture_that_fails_between_pieces_leaves_the_next_one_well(
    capture: str, runner: Runner
) -> None:
    def broken(x: T) -> T:
        out = x.new_empty(x.shape)
        direct(double_into, out, x + 1)
        if state.is_recording():
            raise ValueError("broken on purpose")
        return out + 1

    x = torch.arange(1000.0, device=DEVICE)
    served = runner.serve(Region("broken", broken, is_breakable=True), GraphConfig(mode="exact"))
    with pytest.raises(RecordingRefused, match="broken on purpose"):
        served.record((x,), {})
    well = runner.serve(layered(3), GraphConfig(mode="exact"))
    assert well.record((x,), {}) is not None
    assert same(well.call((x,), {}), x + 1 + 1 + 1)
    assert same(torch.rand(3, device=DEVICE).sign(), torch.ones(3, device=DEVICE))
