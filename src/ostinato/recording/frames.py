"""Finds the line of the user's code that is running now."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

import torch

_OWN = (
    os.path.dirname(os.path.abspath(torch.__file__)),
    os.path.dirname(os.path.abspath(__file__)),
)
_STDLIB = sysconfig.get_paths()["stdlib"]


def user_location() -> str | None:
    """``"file:line"`` of the innermost frame outside torch, the recorder and the standard library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_machinery(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def called_from_torch(depth: int) -> bool:
    """True if the frame ``depth`` levels above the caller of this function is torch's own code."""
    frame = sys._getframe(depth + 1)
    return frame.f_code.co_filename.startswith(_OWN[0] + os.sep)


def _is_machinery(path: str) -> bool:
    if path.startswith("<frozen") or path == "<string>":
        return True
    if any(path.startswith(folder + os.sep) for folder in _OWN):
        return True
    return path.startswith(_STDLIB + os.sep) and "site-packages" not in path
