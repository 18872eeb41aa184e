"""Runs models on the references of their operators: one kernel for each operation, as eager code.

What a fused operator saves is measured against this. Attention keeps its kernels (and
``dense_attention`` is none of the gate's operators), since users of eager code have them too.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ostinato.kernels.op import NAMESPACE, Operator, registered

KEPT = ("neighbourhood_attention", "paged_attention")
_PACKAGE = "ostinato.kernels."


@contextmanager
def unfused(keep: Collection[str] = KEPT) -> Iterator[None]:
    """Inside, every operator but those in ``keep`` is its reference, a plain torch function.

    It holds for the whole process, other threads included: nothing may be recorded meanwhile.
    ``torch.compile`` traces into the references.
    """
    places = [
        (module, name, operator)
        for operator in registered()
        if operator.name not in keep
        for module, name in _places_of(operator)
    ]
    kept = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, operator in places:
            setattr(module, name, operator.reference)
        yield
    finally:
        for module, name, packet in kept:
            setattr(module, name, packet)


def _places_of(operator: Operator) -> list[tuple[Any, str]]:
    """Modules and names under which the operators' packages call it."""
    packet = getattr(getattr(torch.ops, NAMESPACE), operator.name).default
    return [
        (module, name)
        for module_name, module in list(sys.modules.items())
        if module_name.startswith(_PACKAGE)
        for name, value in list(vars(module).items())
        if value is packet
    ]
