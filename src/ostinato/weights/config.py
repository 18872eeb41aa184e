"""Reads ``config.json`` and ``generation_config.json`` of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.errors import WeightsError
from ostinato.weights.files import Files


def read_config(files: Files) -> dict[str, Any]:
    """The configuration as published. ``WeightsError`` if it is not there or is no JSON object."""
    path = files.find("config.json")
    if path is None:
        raise WeightsError(f"{files.origin}: no config.json (offline, only cached files are seen)")
    return read_json(path, f"{files.origin}: config.json")


def read_generation_config(files: Files) -> dict[str, Any] | None:
    """How the publisher means replies to be drawn; ``None`` where that is not said."""
    path = files.find("generation_config.json")
    return read_json(path, f"{files.origin}: {path.name}") if path is not None else None


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object; ``WeightsError`` beginning with ``what`` otherwise."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{what} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise WeightsError(f"{what} holds {type(value).__name__}, not an object")
    return value
