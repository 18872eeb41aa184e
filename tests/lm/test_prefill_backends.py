"""Prefill backends: the same tokens, recorded as called directly, and one trace for all sizes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.errors import ConfigError, RecordingRefused
from ostinato.lm import fastest, split
from ostinato.lm.backends import FULL, Compiler, Name, PrefillBackend, make_backend
from ostinato.lm.contract import Media, Prompt, Span
from ostinato.lm.fastest import choose_backend, fastest_backend
from ostinato.lm.models.qwen import Qwen
from ostinato.lm.traced import Traced
from ostinato.recording.config import GraphConfig
from tests.lm.engines import GREEDY, OFF, ask, make_engine, tiny
from tests.lm.prefills import BACKENDS, LEVELS, SIZES, inputs_of, logits_of, num_pieces, prefill_of

ON = GraphConfig()
PROMPTS = [[(7 * i + j) % 256 for j in range(n)] for i, n in enumerate((5, 40, 17))]


@pytest.fixture(scope="module", params=LEVELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> Qwen:
    return tiny(name)


@pytest.fixture(scope="module")
def backends(name: str, model: Qwen) -> dict[str, PrefillBackend]:
    return {
        one: make_backend(one, model, num_sequences=2, num_levels=LEVELS[name])
        for one in (*BACKENDS, "disabled")
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_logits_are_bit_exact_to_the_backends_direct_call(
    backend: Name, name: str, model: Qwen, backends: dict[str, PrefillBackend]
) -> None:
    levels = LEVELS[name]
    direct = logits_of(prefill_of(model, backends[backend], OFF, levels), model, levels)
    prefill = prefill_of(model, backends[backend], ON, levels)
    with torch.inference_mode():
        prefill.record()
    recorded = logits_of(prefill, model, levels)
    for got, expected in zip(recorded, direct, strict=True):
        assert got.numpy().tobytes() == expected.numpy().tobytes()
    assert len({logits.numpy().tobytes() for logits in direct}) == 12, "inputs show in the logits"
    stats = prefill.recorded.stats()
    assert stats is not None
    assert (stats.num_recordings, stats.calls["exact"], stats.calls["direct"]) == (6, 16, 0)
    wanted = 1 if backend == "full" else model.config.num_layers + 1
    assert num_pieces(prefill) == {wanted}
    prefill.recorded.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_draws_the_tokens_of_direct_calls(
    backend: Name, name: str, model: Qwen, backends: dict[str, PrefillBackend]
) -> None:
    """Text and media, alone and together, in chunks."""
    rows = model.config.width * (1 + LEVELS[name])

    def encode(media: Sequence[Media]) -> None:
        for item in media:
            generator = torch.Generator().manual_seed(item.source)
            item.rows = torch.randn(item.num_rows, rows, generator=generator)

    def tokens(with_backend: PrefillBackend) -> list[list[int]]:
        engine = make_engine(
            model,
            graph=ON,
            encode=encode,
            backend=with_backend,
            num_levels=LEVELS[name],
            **{"max_batch": 2, "max_chunk": 32, "max_length": 64, "max_chunks": 2},
        )
        media = replace(Prompt.of_text(PROMPTS[1]), spans=(Span(10, 9, Media(b"x", 9, 5)),))
        prompts = [media, *map(Prompt.of_text, PROMPTS)]
        found = [ask(engine, prompt, GREEDY)[0].wait().token_ids for prompt in prompts]
        together = [ask(engine, prompt, GREEDY)[0] for prompt in prompts]
        found += [reply.wait().token_ids for reply in together]
        stats = engine.stats().recordings
        if with_backend.name == "disabled":
            assert "prefill" not in stats
        else:
            assert stats["prefill"].calls["direct"] == 0
        assert stats["decode"].calls["direct"] == 0
        engine.close()
        return found

    expected = tokens(backends["disabled"])
    assert expected[0] != expected[2], "the media show"
    assert tokens(backends[backend]) == expected


def test_one_symbolic_trace_serves_every_number_of_tokens(
    name: str, model: Qwen, backends: dict[str, PrefillBackend]
) -> None:
    """Sizes that were never recorded, a size of one and another cache among them."""
    levels = LEVELS[name]
    traced = backends["tc_piecewise"].forward
    assert isinstance(traced, Traced)
    plain = prefill_of(model, FULL, OFF, levels)
    pieces = prefill_of(model, backends["tc_piecewise"], OFF, levels)
    with torch.inference_mode():
        for size in (1, 2, 3, 24, 31, 100):
            for seed in (0, 1):
                inputs = inputs_of(plain, model, size, levels, seed)
                _, expected = plain.recorded(inputs, size)
                _, got = pieces.recorded(inputs, size)
                assert got.numpy().tobytes() == expected.numpy().tobytes(), size
    assert traced.num_traces == (2 if levels else 1), "text, and media where they bring levels"


def test_a_weight_in_anothers_place_is_seen_by_what_was_traced(
    name: str, model: Qwen, backends: dict[str, PrefillBackend]
) -> None:
    levels = LEVELS[name]
    prefill = prefill_of(model, backends["tc_piecewise"], ON, levels)
    plain = prefill_of(model, FULL, OFF, levels)
    with torch.inference_mode():
        inputs = inputs_of(prefill, model, 8, levels, 0)
        assert prefill.recorded.record(inputs, 8)
        layer = model.layers[1].self_attn  # type: ignore[union-attr]
        former = layer.qkv_proj.weight  # type: ignore[union-attr]
        before = prefill.recorded(inputs, 8)[1].clone()
        try:
            layer.qkv_proj.weight = torch.nn.Parameter(former * 2, requires_grad=False)  # type: ignore[union-attr,operator]
            after = prefill.recorded(inputs, 8)[1]
            assert not torch.equal(after, before)
            assert torch.equal(after, plain.recorded(inputs, 8)[1])
        finally:
            layer.qkv_proj.weight = former  # type: ignore[union-attr]
    prefill.recorded.close()


def test_invariant_answers_are_those_of_the_traced_decoder_too() -> None:
    """One chunk to a step: that is what the trace is made for."""
    model, sizes = tiny(), replace(SIZES, prefill_rungs=(16, 32))

    def answers(name: Name | None) -> list[list[int]]:
        backend = choose_backend(name, model, sizes, graph=OFF, num_levels=3, numerics="invariant")
        engine = make_engine(
            model, backend=backend, numerics="invariant", max_chunk=32, max_batch=2, max_chunks=2
        )
        found = [ask(engine, ids)[0].wait().token_ids for ids in PROMPTS]
        engine.close()
        return found

    assert answers("tc_piecewise") == answers(None)


def broken_at(model: Qwen, monkeypatch: pytest.MonkeyPatch, attend: Any) -> RecordingRefused:
    monkeypatch.setattr("ostinato.lm.traced.attend_marked", attend)
    with pytest.raises(RecordingRefused) as caught:
        make_backend("tc_piecewise", model, num_sequences=2, num_levels=0)
    assert caught.value.rule == "trace"
    return caught.value


def test_a_graph_break_is_an_error_that_names_the_place(
    model: Qwen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(q: Tensor, *args: Any, **how: Any) -> Tensor:
        if q.sum().item() > 0:
            return q * 2
        return split.attend_marked(q, *args, **how)

    refused = broken_at(model, monkeypatch, attend)
    assert str(refused.location).rpartition(":")[0] == __file__


def test_a_trace_for_one_number_of_tokens_only_is_an_error(
    model: Qwen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(q: Tensor, *args: Any, **how: Any) -> Tensor:
        if q.shape[0] == 24:
            return split.attend_marked(q, *args, **how)
        return q

    refused = broken_at(model, monkeypatch, attend)
    assert "dynamic" in str(refused.__cause__)
    assert "constant (24)" in str(refused.__cause__)
    if "User stack" in str(refused.__cause__):  # newer than torch 2.11
        assert str(refused.location).startswith(split.__file__)


def test_unknown_names_are_refused(model: Qwen) -> None:
    for backend, compiler in (("piecewise", "eager"), ("tc_piecewise", "nvcc")):
        with pytest.raises(ConfigError, match="expected one of"):
            make_backend(
                backend,  # type: ignore[arg-type]
                model,
                num_sequences=2,
                num_levels=0,
                compiler=compiler,  # type: ignore[arg-type]
            )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # Inductor's own matters
def test_inductor_is_close_to_direct_calls_within_1e_5(name: str, model: Qwen) -> None:
    """Relative to the largest logit. Its own direct call is bit-exact to what is recorded."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("Inductor needs a C++ compiler, and there is neither g++ nor clang++")
    levels = LEVELS[name]
    compiler: Compiler = "inductor"
    backend = make_backend(
        "tc_piecewise", model, num_sequences=2, num_levels=levels, compiler=compiler
    )
    assert isinstance(backend.forward, Traced)
    assert backend.forward.num_traces == (2 if levels else 1)
    plain = logits_of(prefill_of(model, FULL, OFF, levels), model, levels)
    direct = logits_of(prefill_of(model, backend, OFF, levels), model, levels)
    prefill = prefill_of(model, backend, ON, levels)
    with torch.inference_mode():
        prefill.record()
    recorded = logits_of(prefill, model, levels)
    stats = prefill.recorded.stats()
    assert stats is not None
    assert (stats.calls["exact"], stats.calls["direct"]) == (16, 0)
    for got, own, expected in zip(recorded, direct, plain, strict=True):
        assert got.numpy().tobytes() == own.numpy().tobytes()
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    prefill.recorded.close()


class Clock:
    """Seconds of each span between two looks, one after the other."""

    def __init__(self, spans: list[float]) -> None:
        self.now = 0.0
        self.spans = spans
        self.num_looks = 0

    def __call__(self) -> float:
        self.num_looks += 1
        if self.num_looks % 2 == 0:
            self.now += self.spans[(self.num_looks // 2 - 1) // fastest.NUM_TIMED]
        return self.now


def test_the_fastest_is_measured_once_and_kept(tmp_path: Path) -> None:
    model = tiny()
    graph = GraphConfig(cache_dir=tmp_path)

    def chosen(spans: list[float], graph: GraphConfig = graph) -> tuple[str, int]:
        clock = Clock(spans)
        found = fastest_backend(model, SIZES, graph=graph, num_levels=3, timer=clock)
        return found.name, clock.num_looks

    looks = 2 * fastest.NUM_TIMED * len(fastest.CANDIDATES)
    assert chosen([1.0, 0.5]) == ("breakable", looks)
    assert chosen([0.5, 1.0]) == ("breakable", 0), "as an earlier start measured"
    elsewhere = replace(graph, cache_dir=tmp_path / "other")
    assert chosen([1.0, 0.99], elsewhere) == ("full", looks), "noise is no reason"
    assert chosen([0.5, 1.0], replace(graph, cache_dir=None)) == ("full", looks)


def test_what_cannot_be_recorded_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.lm import apart

    def refused(*args: Any, **how: Any) -> Tensor:
        raise RecordingRefused("no", rule="test")

    monkeypatch.setattr(apart, "attend_into", refused)
    found = fastest_backend(tiny(), SIZES, graph=ON, num_levels=3, timer=Clock([1.0, 0.5]))
    assert found.name == "full"


def test_nothing_is_measured_where_nothing_may_depend_on_it(model: Qwen) -> None:
    def chosen(name: Name | None, graph: GraphConfig = ON) -> PrefillBackend:
        return choose_backend(name, model, SIZES, graph=graph, num_levels=0)

    assert chosen(None) is FULL
    assert chosen("breakable").forward is not None
