"""Enter, on another thread, the thread's numeric modes that a key was made in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def entering(modes: Sequence[Any], device_type: str) -> Iterator[None]:
    """Inference mode, grad mode and autocast as the first four of ``modes`` say; autocast's cache
    off.
    """
    inference, grad, autocast, dtype = modes[:4]
    with (
        torch.inference_mode(inference),
        torch.set_grad_enabled(grad),
        torch.autocast(device_type, enabled=autocast, dtype=dtype, cache_enabled=False),
    ):
        yield
