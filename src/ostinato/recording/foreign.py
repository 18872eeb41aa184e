"""Whether somebody else is tracing or capturing the calls of this thread."""

from __future__ import annotations

import torch

_C = torch._C


def is_foreign(device_type: str) -> bool:
    """True inside a trace, a dispatch or function mode, a functorch transform, or a CUDA capture.

    A recording would be invisible to those, so a ``Graphed`` is the plain callable there.
    """
    return bool(
        torch.compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._get_tracing_state() is not None
        or _C._functorch.peek_interpreter_stack() is not None
        or (device_type == "cuda" and torch.cuda.is_current_stream_capturing())
    )
