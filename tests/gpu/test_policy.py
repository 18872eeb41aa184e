"""A small FLUX 3 Action policy on the device: recorded equals direct, in both precisions.

Heads are 128 wide and rows 256, so that the fused operators serve.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ostinato import GraphConfig
from ostinato.kernels.dense_attention import cudnn, dense_attention
from ostinato.policy.flux3_action.load import load_seeded
from ostinato.policy.flux3_action.policy import ActionPolicy
from tests.gpu.regions import DEVICE
from tests.policy.flux3_action import orders, tiny
from tests.policy.flux3_action.orders import LONG, same

pytestmark = pytest.mark.device
ROWS_OF_A_PUBLISHED_STREAM = 340


def make(quantization: str | None, *, offload: bool = False, **package: Any) -> ActionPolicy:
    raw = tiny.raw(quantization=quantization, **package)
    raw["package"]["dit_config"] |= {
        "hidden_size": 256,
        "num_heads": 2,
        "axes_dim": [32, 32, 32, 32],
    }
    loaded = load_seeded(
        raw,
        "test",
        device=torch.device(DEVICE),
        dtype=torch.bfloat16,
        text_device=torch.device("cpu") if offload else None,
    )
    policy = ActionPolicy(
        loaded,
        enable_cuda_graph=True,
        graph=GraphConfig(),
        caption_cache_max_tokens=800,
        offload_text_encoder=offload,
    )
    policy.warm_up()
    return policy


@pytest.mark.parametrize("quantization", [None, "fp8r"])
def test_recorded_answers_equal_direct_ones_bit_exact(quantization: str | None) -> None:
    policy = make(quantization)
    cases = [
        tiny.observation(seed=i, prompt=prompt) | {"seed": i}
        for i, prompt in enumerate(("", "open the drawer", LONG))
    ]
    policy.infer(cases[0])
    policy.wait_idle()  # the first answer has been doubted
    direct = [policy.infer(case, enable_cuda_graph=False) for case in cases]
    held = [(i, policy.infer(cases[i])) for i in (2, 0, 1, 1, 2, 0)]
    for i, result in held:
        assert result["recording"] == orders.RECORDED
        assert same(result, direct[i])
    assert policy.metadata["runtime"]["verdict"] == "bit-exact"
    policy.close()


def test_step_by_step_equals_the_loop_bit_exact() -> None:
    policy = make(None)
    wishes = {"num_inference_steps": 3}
    loop = policy.infer(tiny.observation(), **wishes)
    policy.wait_idle()
    policy._regions._known.clear()
    stepped = policy.infer(tiny.observation(), **wishes)
    assert stepped["recording"]["denoise"] == "exact: recorded, step by step"
    assert same(loop, stepped)
    policy.close()


@pytest.mark.parametrize("quantization", [None, "fp8r"])
def test_any_order_of_requests_gives_the_direct_answers(quantization: str | None) -> None:
    """Instructions, observations, seeds, left-over chunks and delays; results held."""
    policy = make(quantization, chunk_size=orders.CHUNK)
    held = policy.stats()["regions"]["loop"].device_bytes_held
    orders.assert_any_order_gives_the_direct_answers(policy, rounds=4)
    assert policy.stats()["regions"]["loop"].device_bytes_held == held
    policy.close()


def test_the_text_encoder_visits_the_device_and_changes_no_answer() -> None:
    offloaded, resident = make(None, offload=True), make(None)
    case = tiny.observation(prompt=LONG)
    assert same(offloaded.infer(case), resident.infer(case))
    weights = offloaded._captions._loaded.text.parameters()
    assert {p.device.type for p in weights} == {"cpu"}
    for policy in (offloaded, resident):
        policy.close()


def test_five_hundred_captions_stay_within_the_bound() -> None:
    policy = make(None)
    first = policy.infer(tiny.observation(prompt="0"))
    policy.wait_idle()
    for i in range(500):
        policy.infer(tiny.observation(prompt=str(i)))
        assert policy.stats()["num_caption_tokens"] <= 800
    again = policy.infer(tiny.observation(prompt="0"))
    assert not again["cache"]["hit"] and same(again, first)
    assert again["recording"] == orders.RECORDED
    policy.close()


@pytest.mark.parametrize("rows", [1, 80, ROWS_OF_A_PUBLISHED_STREAM, 3173])
def test_dense_attention_stays_near_exact_softmax_close(rows: int) -> None:
    """Three bf16 units of the largest value: weights are rounded once, the result once."""
    generator = torch.Generator(DEVICE).manual_seed(rows)
    q, k, v = torch.randn(3, rows, 2, 128, generator=generator, device=DEVICE).bfloat16()
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) / 128**0.5
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.float())
    difference = (dense_attention(q, k, v).float() - expected).abs().max()
    assert difference <= 3 * 2**-7 * v.float().abs().max()
    assert torch.equal(dense_attention(q, k, v), dense_attention(q, k, v))


def test_dense_attention_is_cudnns_where_that_serves() -> None:
    q = torch.zeros(ROWS_OF_A_PUBLISHED_STREAM, 2, 128, device=DEVICE, dtype=torch.bfloat16)
    is_hopper = q.is_cuda and torch.cuda.get_device_capability() >= cudnn.MIN_CAPABILITY
    assert (q.is_cuda and cudnn.is_preferred(q)) == is_hopper
