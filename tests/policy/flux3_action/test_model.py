"""Pieces against one full forward, and against the model written a second time in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostinato.policy.chunking import no_prefix
from ostinato.policy.flux3_action.model import draw_noise, guided
from ostinato.policy.flux3_action.positions import action_ids, text_ids, video_ids
from ostinato.policy.flux3_action.vae import vae_tables
from ostinato.policy.solver import Step, sample, schedule
from tests.policy.flux3_action import tiny
from tests.policy.flux3_action.references import PlainDit, encode_frame

TIME = torch.tensor([0.833])


@pytest.fixture(autouse=True)
def _no_grad():  # type: ignore[no-untyped-def]
    with torch.inference_mode():
        yield


def canvas() -> Tensor:
    pixels = torch.rand(1, 3, 104, 136, generator=torch.Generator().manual_seed(3))
    return pixels * 2 - 1


def state() -> Tensor:
    return torch.linspace(-1, 1, 8)[None]


def test_position_ids_of_droid() -> None:
    assert action_ids(32, 15.0)[:9, 0].tolist() == [6, 13, 20, 26, 33, 40, 46, 53, 60]
    assert action_ids(32, 15.0)[-1].tolist() == [213, 0, 0, 0]
    frames = video_ids(range(1, 9), 17, 20, 15.0)
    assert frames[::340, 0].tolist() == [26, 53, 80, 106, 133, 160, 186, 213]
    assert frames[340 + 20 + 3].tolist() == [53, 1, 3, 0]
    assert video_ids([0], 17, 20, 15.0)[339].tolist() == [0, 16, 19, 0]
    assert text_ids(80)[79].tolist() == [0, 0, 0, 79]


def test_latents_equal_a_dense_masked_reference_close() -> None:
    model = tiny.loaded()
    tables = tuple(
        (getattr(model.model, f"vae_cos_{i}"), getattr(model.model, f"vae_sin_{i}"))
        for i in range(4)
    )
    assert model.model.vae.config.grids(104, 136) == [(26, 34), (13, 17), (7, 9), (4, 5)]
    latents = model.model.vae(canvas(), tables)
    expected = encode_frame(tiny.published(model), model.model.vae.config, canvas().double())
    torch.testing.assert_close(latents.double(), expected, rtol=0, atol=1e-4)
    assert expected.abs().mean() > 0.1 and latents.shape == (4, 5, 96)


def test_a_canvas_of_odd_size_is_padded_with_zeros_close() -> None:
    model = tiny.loaded()
    vae, pixels = model.model.vae, canvas()[:, :, :103, :134]
    tables = vae_tables(vae.config, (103, 134), device=tiny.CPU, dtype=torch.float32)
    expected = encode_frame(tiny.published(model), vae.config, pixels.double())
    torch.testing.assert_close(vae(pixels, tables).double(), expected, rtol=0, atol=1e-4)


def test_velocities_equal_one_full_forward_written_plainly_close() -> None:
    model = tiny.loaded()
    m, config = model.model, model.config
    text = tiny.context(model, "open the drawer")
    video, actions = draw_noise(config, 0)
    observed = m.observe(canvas(), state())
    caption = m.caption(text)
    got = m.velocities(observed, video, actions, TIME, torch.ones(2), (caption,))

    weights = tiny.published(model)
    cells = encode_frame(weights, m.vae.config, canvas().double()).flatten(0, 1)
    names, t = config.streams, TIME.item()
    streams = {
        "txt": (text.double(), text_ids(80), 0.0),
        names[0]: (video.double(), video_ids([1, 2], 4, 5, 15.0), t),
        names[1]: (cells, video_ids([0], 4, 5, 15.0), 0.0),
        names[2]: (actions.double(), action_ids(8, 15.0), t),
        names[3]: (state().double(), torch.zeros(1, 4, dtype=torch.int64), 0.0),
    }
    expected = PlainDit(weights, config).forward(streams)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-5)
        assert theirs.abs().mean() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cached_pieces_equal_one_full_forward_bit_exact(dtype: torch.dtype) -> None:
    """Values computed once per caption, observation and step, or everything anew: equal bytes."""
    model = tiny.loaded_with(dtype)
    m, config = model.model, model.config
    dit = m.dit
    video, actions = draw_noise(config, 0)
    pixels, token = canvas().to(dtype), state().to(dtype)
    contexts = [tiny.context(model, text) for text in ("open the drawer", "")]
    scales = torch.tensor([4.0, 1.0])
    captions = tuple(m.caption(c) for c in contexts)
    observed = m.observe(pixels, token)
    for _ in range(2):  # the second time with values that were used before
        got = m.velocities(observed, video, actions, TIME, scales, captions)

    answers = []
    for context in contexts:
        fresh = m.caption(context)
        again = m.observe(pixels, token)
        streams = (
            fresh.stream,
            dit.encode_stream(dit.video, video, dit.time_code(TIME), m._tables(0)),
            again.video,
            dit.encode_stream(dit.action, actions, dit.time_code(TIME), m._tables(2)),
            again.state,
        )
        tables = (torch.cat((fresh.cos, m.content_cos)), torch.cat((fresh.sin, m.content_sin)))
        segments = torch.cat(
            [torch.full((len(s.hidden),), i, dtype=torch.int32) for i, s in enumerate(streams)]
        )
        answers.append(dit.denoise(streams, dit.time_code(TIME), tables, segments))
    for i in range(2):
        expected = guided(answers[0][i], answers[1][i], scales[i]).float()
        assert torch.equal(got[i], expected)


def test_a_scale_of_one_is_not_the_conditional_pass_alone() -> None:
    """The unguided policy runs one pass; two passes at scale one agree only closely."""
    c, u = torch.tensor([1.0, 3.0]), torch.tensor([0.5, 5.0])
    assert guided(c, u, torch.tensor(4.0)).tolist() == [2.5, -3.0]
    assert guided(c, u, torch.tensor(1.0)).tolist() == [1.0, 3.0]


def test_guidance_rounds_in_the_velocities_dtype() -> None:
    c, u = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = u + 4.3 * (c - u)  # what eager code with a Python scale computes
    assert torch.equal(guided(c, u, torch.tensor(4.3)), expected)


def test_the_chunk_is_its_steps() -> None:
    model = tiny.loaded()
    m, config = model.model, model.config
    video, actions = draw_noise(config, 1)
    caption, observed = m.caption(tiny.context(model, "a")), m.observe(canvas(), state())
    one = torch.ones(2)
    got = m.chunk(observed, video, actions, one, (caption,), no_prefix(8, 8), 4, 5.0)

    def answer(step: Step, streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return m.velocities(observed, *streams, torch.tensor([step.time]), one, (caption,))

    plan = schedule("cosmos_unipc", 4, 5.0)
    assert torch.equal(got, sample(plan, (video, actions), answer)[1])


def test_noise_is_drawn_channels_first_and_transposed() -> None:
    config = tiny.loaded().config
    video, actions = draw_noise(config, 5)
    generator = torch.Generator().manual_seed(5)
    first = torch.randn(1, 96, 2, 4, 5, generator=generator)
    second = torch.randn(1, 8, 8, generator=generator)
    assert video.shape == (40, 96) and torch.equal(video[20 + 5 + 2], first[0, :, 1, 1, 2])
    assert torch.equal(actions, second[0].T)
    assert not torch.equal(actions, draw_noise(config, 6)[1])


def test_the_state_and_the_picture_count() -> None:
    model = tiny.loaded()
    m = model.model
    video, actions = draw_noise(model.config, 0)
    caption = m.caption(tiny.context(model, "a"))

    def run(pixels: Tensor, token: Tensor) -> Tensor:
        observed = m.observe(pixels, token)
        return m.velocities(observed, video, actions, TIME, torch.ones(2), (caption,))[1]

    base = run(canvas(), state())
    assert (run(-canvas(), state()) - base).abs().max() > 1e-2
    assert (run(canvas(), -state()) - base).abs().max() > 1e-2
