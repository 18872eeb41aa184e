"""The photograph that ships with the package (``ATTRIBUTION.txt`` says whose it is)."""

from __future__ import annotations

from importlib.resources import files

NAME = "photograph.jpg"


def photograph_bytes() -> bytes:
    """The JPEG file, 320 x 375 pixels."""
    return (files("ostinato.assets") / NAME).read_bytes()
