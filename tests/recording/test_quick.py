"""The short way admits a call only if its key is the last one's: every way to differ is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

import ostinato
from ostinato.recording.key import Key, call_of, numeric_modes
from ostinato.recording.quick import QuickCheck
from ostinato.recording.spec import TensorSpec

Args = tuple[Any, ...]


def key_of(args: Args) -> Key:
    structure, tensors = call_of(args, {})
    return Key(structure, tuple(map(TensorSpec.of, tensors)), numeric_modes("cpu"))


def given() -> Args:
    return torch.arange(24.0).reshape(4, 6), torch.arange(6)


@contextmanager
def switched(setter: Callable[[Any], Any], value: Any, back: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(back)


OTHER_ARGS: dict[str, Callable[[], Args]] = {
    "shape": lambda: (torch.arange(24.0).reshape(6, 4), torch.arange(6)),
    "length": lambda: (torch.arange(24.0).reshape(4, 6), torch.arange(7)),
    "stride": lambda: (torch.arange(24.0).reshape(6, 4).t(), torch.arange(6)),
    "dtype": lambda: (torch.arange(24.0).reshape(4, 6).double(), torch.arange(6)),
    "integer": lambda: (torch.arange(24.0).reshape(4, 6), torch.arange(6, dtype=torch.int32)),
    "alignment": lambda: (torch.arange(25.0)[1:].reshape(4, 6), torch.arange(6)),
    "gradient": lambda: (given()[0].requires_grad_(), given()[1]),
    "parameter": lambda: (torch.nn.Parameter(given()[0]), given()[1]),
    "fewer": lambda: given()[:1],
    "more": lambda: (*given(), torch.ones(1)),
    "number": lambda: (given()[0], 3),
    "order": lambda: given()[::-1],
}

OTHER_MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": lambda: torch.inference_mode(),
    "grad": lambda: torch.enable_grad(),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default dtype": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    "matmul": lambda: switched(torch.set_float32_matmul_precision, "medium", "highest"),
    "math sdp": lambda: switched(torch.backends.cuda.enable_math_sdp, False, True),
    "flash sdp": lambda: switched(torch.backends.cuda.enable_flash_sdp, False, True),
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "cudnn benchmark": lambda: switched(torch._C._set_cudnn_benchmark, True, False),
    "cudnn tf32": lambda: switched(torch._C._set_cudnn_allow_tf32, False, True),
    "accumulation": lambda: switched(torch._C._set_cublas_allow_fp16_accumulation, True, False),
}


@pytest.fixture
def check() -> Iterator[QuickCheck]:
    with torch.no_grad():
        made = QuickCheck.of(object(), 0, given())  # type: ignore[arg-type]
        assert made is not None
        yield made


def test_the_same_description_is_admitted(check: QuickCheck) -> None:
    for _ in range(3):
        assert check.admits(given()) and key_of(given()) == key_of(given())
    assert check.admits(tuple(t + 1 for t in given()))


@pytest.mark.parametrize("name", OTHER_ARGS)
def test_other_arguments_are_not(check: QuickCheck, name: str) -> None:
    other = OTHER_ARGS[name]()
    assert key_of(other) != key_of(given())
    assert not check.admits(other)


@pytest.mark.parametrize("name", OTHER_MODES)
def test_other_modes_are_not(check: QuickCheck, name: str) -> None:
    before = key_of(given())
    with OTHER_MODES[name]():
        assert key_of(given()) != before
        assert not check.admits(given())
    assert check.admits(given())


def test_calls_are_served_alike_with_and_without() -> None:
    weight = torch.randn(6, 6)
    graphed = ostinato.graph(lambda x, i: (x @ weight)[:, i])
    with torch.no_grad():
        for turn in range(6):
            for make in (given, given, given, *OTHER_ARGS.values()):
                args = make()
                if len(args) != 2 or not isinstance(args[1], torch.Tensor):
                    continue
                if args[0].shape != (4, 6) or args[0].dtype != torch.float32:
                    continue
                x = args[0] * (turn + 1)
                index = args[1] % 6
                assert torch.equal(graphed(x, index), (x @ weight)[:, index])
        assert graphed._only._quick is not None
        assert graphed.stats().calls["exact"] > 20
    graphed.close()


def test_the_short_way_can_be_wrong(check: QuickCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above see it: with one comparison left out, another call is admitted."""
    monkeypatch.setattr(check, "_tensors_match", lambda *args: True)
    assert check.admits(OTHER_ARGS["dtype"]())
