"""A key is equal for equal calls and for nothing else; the switches of torch are in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from ostinato.recording.key import MODE_NAMES, Key, call_of, numeric_modes
from ostinato.recording.spec import TensorSpec
from tests.recording.test_tree import DISTINCT, values


def key_of(*args: Any, **kwargs: Any) -> Key:
    structure, tensors = call_of(args, kwargs)
    return Key(structure, tuple(map(TensorSpec.of, tensors)), numeric_modes("cpu"))


@settings(max_examples=100, deadline=None)
@given(values)
def test_equal_calls_have_equal_keys_that_print(value: Any) -> None:
    a, b = key_of(value, name=value), key_of(value, name=value)
    assert a == b and hash(a) == hash(b) and str(a) == str(b)


def test_different_arguments_have_different_keys() -> None:
    keys = {key_of(v) for v in DISTINCT} | {key_of(name=v) for v in DISTINCT}
    keys |= {key_of(other=v) for v in DISTINCT}
    assert len(keys) == 3 * len(DISTINCT)


def test_nan_is_equal_to_itself_by_bits() -> None:
    assert key_of(math.nan) == key_of(float("nan"))


@contextmanager
def switched(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    assert before != value
    put(value)
    try:
        yield
    finally:
        put(before)


CUDA, CUDNN = torch.backends.cuda, torch.backends.cudnn

SWITCHES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast16": lambda: torch.autocast("cpu", torch.float16),
    "dtype": lambda: switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "matmul": lambda: switched(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"
    ),
    "deterministic": lambda: switched(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "flash": lambda: switched(CUDA.flash_sdp_enabled, CUDA.enable_flash_sdp, False),
    "efficient": lambda: switched(
        CUDA.mem_efficient_sdp_enabled, CUDA.enable_mem_efficient_sdp, False
    ),
    "math": lambda: switched(CUDA.math_sdp_enabled, CUDA.enable_math_sdp, False),
    "sdp_cudnn": lambda: switched(CUDA.cudnn_sdp_enabled, CUDA.enable_cudnn_sdp, False),
    "sdp_reduction": lambda: switched(
        CUDA.fp16_bf16_reduction_math_sdp_allowed,
        CUDA.allow_fp16_bf16_reduction_math_sdp,
        True,
    ),
    "cudnn": lambda: CUDNN.flags(enabled=False),
    "cudnn_benchmark": lambda: CUDNN.flags(benchmark=True),
    "cudnn_deterministic": lambda: CUDNN.flags(deterministic=True),
    "bf16_reduction": lambda: switched(
        lambda: CUDA.matmul.allow_bf16_reduced_precision_reduction,
        lambda v: setattr(CUDA.matmul, "allow_bf16_reduced_precision_reduction", v),
        False,
    ),
    "fp16_reduction": lambda: switched(
        lambda: CUDA.matmul.allow_fp16_reduced_precision_reduction,
        lambda v: setattr(CUDA.matmul, "allow_fp16_reduced_precision_reduction", v),
        False,
    ),
}


def test_every_switch_gives_a_key_of_its_own() -> None:
    plain = numeric_modes("cpu")
    seen = {plain}
    assert len(plain) == len(MODE_NAMES)
    for switch in SWITCHES.values():
        with switch():
            seen.add(numeric_modes("cpu"))
    assert numeric_modes("cpu") == plain
    assert len(seen) == len(SWITCHES) + 1


@pytest.mark.parametrize("generation", [(1, 0), 3])
def test_generation_and_addresses_are_fields(generation: Any) -> None:
    key = key_of(torch.zeros(2))
    assert len({key, key._replace(generation=generation), key._replace(addresses=(16,))}) == 3


def test_printing() -> None:
    text = str(key_of(torch.zeros(2), 1.5, scale=True))
    assert text.startswith("[float32[2] cpu] in (*, 1.5, scale=True); ")
    assert "grad_mode=True" in text and "inference_mode" not in text
