"""Observation to chunk on the tape: recorded equals direct, whatever is asked in whatever order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

import ostinato
from ostinato.errors import InputError, OstinatoError
from ostinato.policy.chunking import guide, make_prefix
from ostinato.policy.contract import Options
from ostinato.policy.flux3_action.captions import Captions
from ostinato.policy.flux3_action.model import draw_noise
from ostinato.policy.flux3_action.policy import ActionPolicy
from ostinato.policy.flux3_action.prepare import prepare, recipe, unread_fields
from ostinato.policy.solver import sample, schedule
from tests.layers.test_fp8 import multiplies
from tests.policy.flux3_action import tiny

LONG = "take the red cup from the shelf and put it on the table, then close the drawer"


@pytest.fixture(scope="module")
def policy() -> Iterator[ActionPolicy]:
    made = ostinato.load_policy(tiny.NAME, device="cpu")
    yield made
    made.close()


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[k].tobytes() == b[k].tobytes() for k in ("actions", "model_actions"))


def direct(policy: ActionPolicy, observation: dict[str, Any], **options: Any) -> dict[str, Any]:
    result = policy.infer(observation, enable_cuda_graph=False, **options)
    assert result["recording"]["denoise"] == "direct: asked for"
    return result


def test_the_first_answer_is_recorded_and_bit_exact(policy: ActionPolicy) -> None:
    first = policy.infer(tiny.observation())
    assert first["recording"] == {"observation": "exact: recorded", "denoise": "exact: recorded"}
    assert first["actions"].shape == (8, 8) and first["actions"].dtype == np.float32
    assert same(first, direct(policy, tiny.observation()))
    assert not same(first, policy.infer(tiny.observation(), seed=1))
    assert not same(first, policy.infer(tiny.observation(seed=1)))
    policy.wait_idle()
    assert policy.metadata["runtime"]["verdict"] == "bit-exact"
    assert set(first["timings"]) == {
        "preprocess_ms",
        "text_ms",
        "observation_ms",
        "denoise_ms",
        "postprocess_ms",
        "total_ms",
    }


def test_any_order_of_wishes_gives_the_direct_answers_and_no_new_recording(
    policy: ActionPolicy,
) -> None:
    """Captions of two buckets, observations, seeds, prefixes and delays; results held."""
    left = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    cases: list[dict[str, Any]] = []
    for i, prompt in enumerate(("", "open the drawer", LONG)):
        for num_left, delay in ((0, 0), (3, 1), (8, 6)):
            cases.append(
                {
                    "observation": tiny.observation(seed=i, prompt=prompt),
                    "seed": i + num_left,
                    "prev_chunk_left_over": left[:num_left] if num_left else None,
                    "inference_delay": delay,
                }
            )
    expected = [direct(policy, **case) for case in cases]
    policy.infer(**cases[-1])  # asks for the longer bucket
    policy.wait_idle()
    before = policy.stats()["regions"]
    order = [*range(len(cases))] * 2
    random.Random(0).shuffle(order)
    held = [(i, policy.infer(**cases[i])) for i in order]
    for i, result in held:
        assert result["recording"]["denoise"].startswith("exact"), cases[i]
        assert same(result, expected[i])
    after = policy.stats()["regions"]
    assert {n: s.num_recorded for n, s in before.items()} == {
        n: s.num_recorded for n, s in after.items()
    }
    assert not same(expected[0], expected[1])


def test_other_numbers_of_steps_are_served_step_by_step(policy: ActionPolicy) -> None:
    wishes = {"num_inference_steps": 3, "sampler_shift": 2.0}
    first = policy.infer(tiny.observation(), **wishes)
    assert same(first, direct(policy, tiny.observation(), **wishes))
    policy.wait_idle()
    policy._regions._known.clear()  # as if its loop had not been worth keeping
    stepped = policy.infer(tiny.observation(), **wishes)
    assert stepped["recording"]["denoise"] == "exact: recorded, step by step"
    assert same(first, stepped)
    policy.wait_idle()


def test_nothing_is_recorded_while_a_robot_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ostinato.load_policy(tiny.NAME, device="cpu")
    lane = made._runner.lane  # type: ignore[union-attr]
    jobs: list[Any] = []
    monkeypatch.setattr(lane, "run_when_idle", lambda job: jobs.append(job) or Future())
    before = made.stats()["regions"]["loop"].num_recorded
    for _ in range(4):
        result = made.infer(tiny.observation(), num_inference_steps=1)
        assert result["recording"]["denoise"] == "direct: not recorded yet"
    assert made.stats()["regions"]["loop"].num_recorded == before
    assert len(jobs) == 1  # for the first call: to doubt its answer and to record its loop
    for job in jobs:  # the lane is idle now
        job()
    made._later.clear()
    result = made.infer(tiny.observation(), num_inference_steps=1)
    assert result["recording"]["denoise"] == "exact: recorded"
    made.close()


def test_recordings_that_are_gone_come_back_when_the_lane_is_idle() -> None:
    made = ostinato.load_policy(tiny.NAME, device="cpu", warm_up=False)
    expected = made.infer(tiny.observation(), enable_cuda_graph=False)
    for _ in range(2):  # as it begins, and after an eviction
        seen = []
        for _ in range(3):
            result = made.infer(tiny.observation())
            assert same(result, expected)
            seen.append([why.partition(":")[0] for why in result["recording"].values()])
            made.wait_idle()
        assert seen == [["direct", "direct"], ["exact", "direct"], ["exact", "exact"]]
        made._regions._observe.close()  # type: ignore[union-attr]
        made._regions._loop.close()  # type: ignore[union-attr]
    made.close()


def test_without_a_replayed_observation_nothing_is_replayed_and_nothing_noted(
    policy: ActionPolicy,
) -> None:
    """The other regions read the observation where its recording leaves it."""
    expected = policy.infer(tiny.observation())
    policy.wait_idle()
    with ostinato.route("direct"):
        result = policy.infer(tiny.observation())
    assert result["recording"] == {
        "observation": "direct: forced",
        "denoise": "direct: the observation was not replayed",
    }
    assert same(result, expected) and policy._later == []


def test_stages_apart_are_the_whole_request(policy: ActionPolicy) -> None:
    expected = policy.infer(tiny.observation(seed=3), seed=2)
    policy.wait_idle()
    for wishes in ({}, {"enable_cuda_graph": False}):
        stages = policy.stages(tiny.observation(seed=3), seed=2, **wishes)
        for _ in range(2):
            stages.observe()
            assert stages.denoise().numpy().tobytes() == expected["model_actions"].tobytes()
        route = policy._regions.routes["denoise"].route
        assert route == ("direct" if wishes else "exact")


def test_given_noise_replaces_the_seeds(policy: ActionPolicy) -> None:
    video, actions = draw_noise(policy.config, 7)
    noise = {"video": video.numpy(), "action": actions.tolist()}
    seeded = policy.infer(tiny.observation(), seed=7)
    assert same(seeded, policy.infer(tiny.observation(), noise=noise))
    half = policy.infer(tiny.observation(), noise={"action": actions})
    assert not same(seeded, half)
    with pytest.raises(InputError, match=r"noise\['action'\] is \(1, 2\); expected \(8, 8\)"):
        policy.infer(tiny.observation(), noise={"action": [[0, 1]]})
    with pytest.raises(InputError, match="video or action"):
        policy.infer(tiny.observation(), noise=[1])


def test_a_prefix_steers_by_the_closed_form(policy: ActionPolicy) -> None:
    """The whole chunk again, step by step, with the guided velocity written out here."""
    model, config = policy._model, policy.config
    left = torch.linspace(-1, 1, 24).view(3, 8)
    result = policy.infer(
        tiny.observation(), prev_chunk_left_over=left, inference_delay=1, execution_horizon=8
    )
    weights = torch.tensor([1, 2 / 3, 1 / 3, 0, 0, 0, 0, 0])[:, None]
    padded = torch.cat((left, torch.zeros(5, 8)))
    with torch.inference_mode():
        prepared = prepare(config, tiny.observation())
        observed = model.observe(prepared.canvas, prepared.token)
        captions = tuple(policy._captions.get(text)[0] for text in (prepared.prompt, ""))
        scales = torch.tensor(config.guidance())

        def answer(step: Any, streams: Any) -> Any:
            time = torch.tensor([step.time])
            v_video, v = model.velocities(observed, *streams, time, scales, captions)
            tau = 1 - step.sigma
            r = ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2
            g = min(10.0, (1 - tau) / tau * r)
            x1 = streams[1] - step.sigma * v
            return v_video, v - g * (padded - x1) * weights

        expected = sample(schedule("cosmos_unipc", 4, 5.0), draw_noise(config, 0), answer)[1]
    torch.testing.assert_close(
        torch.from_numpy(result["model_actions"]), expected, rtol=0, atol=1e-5
    )
    free = policy.infer(tiny.observation())
    assert np.abs(result["model_actions"] - free["model_actions"]).max() > 0.05


def test_actions_are_the_decoded_chunk_cut_to_the_horizon(policy: ActionPolicy) -> None:
    observation = tiny.observation()
    full, short = policy.infer(observation), policy.infer(observation, action_horizon=3)
    assert short["actions"].tobytes() == full["actions"][:3].tobytes()
    expected = full["model_actions"] / 2
    expected[:, -1] = 1 - expected[:, -1]
    np.testing.assert_allclose(full["actions"], expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match="action_horizon is 9; the chunk has 8"):
        policy.infer(observation, action_horizon=9)


def test_unguided_needs_one_pass_only(policy: ActionPolicy) -> None:
    plan = recipe(policy.config, Options(guidance_scale=1.0))
    assert recipe(policy.config, Options()).guidance == (4.0, 1.0)
    assert plan.guidance == (1.0, 1.0) and not plan.is_guided
    assert recipe(policy.config, Options()).is_guided
    one = policy.infer(tiny.observation(), guidance_scale=1.0)
    assert same(one, direct(policy, tiny.observation(), guidance_scale=1.0))
    assert not same(one, policy.infer(tiny.observation()))
    policy.wait_idle()


def test_a_switched_off_policy_gives_the_same_answers(policy: ActionPolicy) -> None:
    off = ostinato.load_policy(tiny.NAME, device="cpu", enable_cuda_graph=False)
    result = off.infer(tiny.observation())
    assert result["recording"] == {"observation": "direct: off", "denoise": "direct: off"}
    assert same(result, policy.infer(tiny.observation()))
    assert off.stats()["regions"] == {} and not off.metadata["runtime"]["cuda_graph"]


def test_what_differs_on_the_first_real_observation_is_served_directly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubtful = ostinato.load_policy(tiny.NAME, device="cpu")
    honest = doubtful._regions.direct
    monkeypatch.setattr(doubtful._regions, "direct", lambda *given: honest(*given) + 1e-3)
    doubtful.infer(tiny.observation())
    doubtful.wait_idle()
    assert "served directly" in doubtful.metadata["runtime"]["verdict"]
    assert "the recorded answer differs by 0.001" in caplog.text
    assert doubtful.infer(tiny.observation())["recording"]["denoise"] == "direct: asked for"
    doubtful.close()


def test_captions_stay_within_their_tokens_and_keep_what_is_used() -> None:
    captions = Captions(tiny.loaded(), tiny.CPU, 400, offload=False)
    with torch.inference_mode():
        first, hit = captions.get("0")
        assert not hit and first.cos.shape == (80, 8) and first.stream.hidden.shape == (80, 64)
        for i in range(500):
            captions.get(str(i % 250))
            assert captions.get("0")[1] or i == 250
            assert captions.num_tokens == 80 * len(captions) <= 400
        kept = captions.get("0")[0]
        assert torch.equal(kept.stream.hidden, first.stream.hidden)
        assert captions.get(LONG)[0].cos.shape[0] == 160 and captions.num_tokens <= 400
        again, hit = captions.get("0", use_cache=False)
        assert not hit and again is not kept
        captions.get("x" * 400)  # longer than everything: served, not kept
        assert captions.num_tokens <= 400


def test_replays_do_not_touch_what_is_kept_of_a_caption(policy: ActionPolicy) -> None:
    policy.infer(tiny.observation(prompt="first"))
    kept = policy._captions.get("first")[0]
    before = [t.clone() for t in (kept.stream.hidden, *kept.stream.joint, kept.cos)]
    for i in range(3):
        policy.infer(tiny.observation(seed=i, prompt=f"other {i}"))
    after = (kept.stream.hidden, *kept.stream.joint, kept.cos)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert policy.infer(tiny.observation(prompt="first"))["cache"]["hit"]
    bypassed = policy.infer(tiny.observation(prompt="first"), enable_prefix_cache=False)
    assert bypassed["cache"] == {"enabled": False, "hit": False}


def test_observations_that_cannot_be(policy: ActionPolicy) -> None:
    with pytest.raises(KeyError, match=r"missing cameras \['left'\]"):
        images = tiny.observation()["images"]
        del images["left"]
        policy.infer(tiny.observation(images=images))
    with pytest.raises(InputError, match="7 values; expected 8"):
        policy.infer(tiny.observation(state=[0] * 7))
    with pytest.raises(InputError, match="expected a map"):
        policy.infer([1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected \(n, 8\)"):
        policy.infer(tiny.observation(), prev_chunk_left_over=[[1.0]])


def test_fields_that_nothing_reads_are_named_once(
    policy: ActionPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"instruction": "open the drawer", "observation.images.left": None, 7: 1}
    observation = tiny.observation() | {"seed": 3, "task": "x"}
    assert unread_fields(observation) == ()
    assert unread_fields(observation | odd) == ("7", "instruction")
    for _ in range(2):
        policy.infer(tiny.observation() | {"instruction": "open the drawer"})
    policy.infer(tiny.observation())
    lines = [r.getMessage() for r in caplog.records if "nothing reads" in r.getMessage()]
    assert len(lines) == 1 and "observation: instruction; expected images" in lines[0]


def test_an_answer_that_is_not_finite_is_an_error(policy: ActionPolicy) -> None:
    with pytest.raises(InputError, match="not finite"):
        policy.infer(tiny.observation(), noise={"action": np.full((8, 8), np.nan)})
    with pytest.raises(OstinatoError, match="not finite"):
        policy.infer(
            tiny.observation(), noise={"action": np.full((8, 8), 1e38)}, guidance_scale=1e38
        )


def test_metadata_is_plain(policy: ActionPolicy) -> None:
    import json

    about = json.loads(json.dumps(policy.metadata))
    assert about["input"]["camera_keys"] == ["wrist", "left", "right"]
    assert about["input"]["camera_hw"] == [360, 640] and about["output"]["action_horizon"] == 8
    assert about["defaults"]["guidance_scale"] == 4.0 and about["runtime"]["cuda_graph"]


def test_offloading_the_text_encoder_changes_no_answer(policy: ActionPolicy) -> None:
    made = ostinato.load_policy(
        tiny.NAME, device="cpu", enable_cuda_graph=False, offload_text_encoder=True
    )
    assert same(made.infer(tiny.observation()), policy.infer(tiny.observation()))


def test_joint_deltas_are_anchored_on_the_state() -> None:
    made = ActionPolicy(
        tiny.loaded_with(action_parameterization="joint_delta", absolute_action_dims=[-1]),
        enable_cuda_graph=False,
        graph=ostinato.GraphConfig(),
        caption_cache_max_tokens=800,
        offload_text_encoder=False,
    )
    observation = tiny.observation()
    result = made.infer(observation)
    steps = result["model_actions"] / 2
    expected = observation["state"] + steps.cumsum(0)
    np.testing.assert_allclose(result["actions"][:, :-1], expected[:, :-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(result["actions"][:, -1], 1 - steps[:, -1], rtol=0, atol=1e-6)


@multiplies
def test_a_one_step_fp8_policy_is_recorded_bit_exact_and_near_bf16() -> None:
    answers = []
    for quantization in ("fp8r", None):
        loaded = tiny.loaded_with(
            torch.bfloat16, quantization=quantization, num_inference_steps=1, guidance_scale=1.0
        )
        made = ActionPolicy(
            loaded,
            enable_cuda_graph=True,
            graph=ostinato.GraphConfig(),
            caption_cache_max_tokens=800,
            offload_text_encoder=False,
        )
        made.warm_up()
        result = made.infer(tiny.observation())
        assert result["recording"]["denoise"] == "exact: recorded"
        assert same(result, direct(made, tiny.observation()))
        answers.append(result["actions"])
        made.close()
    difference = np.abs(answers[0] - answers[1]).max()
    assert 0 < difference < 0.1 < np.abs(answers[1]).max()


def test_one_step_of_a_prefix_uses_the_bound(policy: ActionPolicy) -> None:
    prefix = make_prefix(torch.ones(8, 8), 8, delay=8, horizon=8, max_guidance=2.0)
    x, v = torch.zeros(8, 8), torch.zeros(8, 8)
    assert guide(x, v, 0.9998, prefix).unique().item() == -2.0
