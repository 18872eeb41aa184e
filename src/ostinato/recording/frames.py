"""Finds the line of the user's code that is running now."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

import torch

TORCH = os.path.dirname(os.path.abspath(torch.__file__))
RECORDER = os.path.dirname(os.path.abspath(__file__))
_OWN = (TORCH, RECORDER)
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
    return path.startswith(TORCH + os.sep)


def called_from(*folders: str) -> bool:
    """True if the torch function that a function mode looks at was called by code of a folder."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in ("function", "__torch_function__"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(folders)


def is_machinery(path: str) -> bool:
    """True for files of torch, the recorder and the standard library."""
    if path.startswith("<frozen") or path == "<string>":
        return True
    if any(path.startswith(folder + os.sep) for folder in _OWN):
        return True
    return path.startswith(_STDLIB + os.sep) and "site-packages" not in path
