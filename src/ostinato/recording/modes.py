"""The dispatch mode that the probe, the doctor and the tape share: operators one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.recording.calls import Call, decompose, is_composite, is_foreign_subclass


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands each operator below autograd to ``on_operator``.

    Tensor subclasses turn into plain operators first, and composite operators, which arrive whole
    in inference mode, into their parts.
    """

    supports_higher_order_operators = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: the guard would import the whole of dynamo (seconds) at the first recording."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def on_operator(self, call: Call) -> Any:
        raise NotImplementedError

    def on_higher_order(self, call: Call) -> Any:
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_foreign_subclass(kind) for kind in types):
            return NotImplemented
        call = Call(func, args, kwargs or {})
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self.on_higher_order(call)
        if func.namespace == "prim":  # a fake tensor asks for its device
            return func(*call.args, **call.kwargs)
        if is_composite(call):
            with self:
                return decompose(call)
        return self.on_operator(call)
