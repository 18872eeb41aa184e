"""Runs an operator's kernel under the interpreter against its reference, as the gate would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton

from ostinato.kernels.gate import first_wrong_answer
from ostinato.kernels.op import Operator, registered

interprets_loops = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
    and tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4),
    reason="Triton's interpreter before 3.7 cannot run loops with numpy 2.4 or newer",
)


def operator(name: str) -> Operator:
    """The registered operator of that name."""
    return next(op for op in registered() if op.name == name)


def assert_agrees(name: str, *args: Any) -> None:
    """The kernel agrees with the reference on every adversarial input that stands for ``args``."""
    with np.errstate(all="ignore"):
        reason = first_wrong_answer(operator(name), args)
    assert not reason, reason
