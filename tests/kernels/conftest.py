"""Kernel tests run Triton's interpreter; it has to be chosen before the first kernel is defined."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
