"""Whether somebody else is tracing or capturing the calls of this thread."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

_C: Any = torch._C
_is_compiling = torch.compiler.is_compiling
_num_dispatch_modes = _C._len_torch_dispatch_stack
_num_function_modes = _C._len_torch_function_stack
_trace = _C._get_tracing_state
_transform = _C._functorch.peek_interpreter_stack
_is_capturing = getattr(_C, "_cuda_isCurrentStreamCapturing", lambda: False)


def is_foreign(device_type: str) -> bool:
    """True inside a trace, a dispatch or function mode, a functorch transform, forward-mode
    differentiation, or a CUDA capture.

    A recording would be invisible to those, so a ``Graphed`` is the plain callable there.
    """
    if _is_compiling() or _num_dispatch_modes() or _num_function_modes():
        return True
    if _trace() is not None or _transform() is not None or forward_ad._current_level >= 0:
        return True
    return device_type == "cuda" and bool(_is_capturing())
