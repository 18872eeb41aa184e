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
    """``"file:line"`` of the innermost frame outside torch, the recorder and the
    standard library.
    """
    frame = user_frame(sys._getframe(1))
    return location_of(frame) if frame is not None else None


def user_frame(frame: FrameType | None, *, keep_torch: bool = False) -> FrameType | None:
    """The innermost frame of the user's code from ``frame`` outwards, or of torch's if
    that counts.
    """
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_machinery(path) or (keep_torch and is_torch(path)):
            return frame
        frame = frame.f_back
    return None


def location_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def is_torch(path: str) -> bool:
    return path.startswith(_OWN[0] + os.sep)


def called_from_torch(depth: int) -> bool:
    """True if the frame ``depth`` levels above the caller of this function is torch's own code."""
    frame = sys._getframe(depth + 1)
    return is_torch(frame.f_code.co_filename)


def is_machinery(path: str) -> bool:
    """True for files of torch, the recorder and the standard library."""
    if path.startswith("<frozen") or path == "<string>":
        return True
    if any(path.startswith(folder + os.sep) for folder in _OWN):
        return True
    return path.startswith(_STDLIB + os.sep) and "site-packages" not in path
