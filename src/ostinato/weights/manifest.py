"""A package's ``manifest.json``: what it is, and the checksum of each file it vouches for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from ostinato.errors import WeightsError
from ostinato.weights.config import read_json
from ostinato.weights.files import Files

MANIFEST = "manifest.json"


def sha256_of(path: Path) -> str:
    """Hexadecimal digest, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_manifest(files: Files, kind: str, names: Iterable[str]) -> None:
    """Raise ``WeightsError`` unless the manifest is of ``kind`` and each file has its checksum."""
    path = files.find(MANIFEST)
    if path is None:
        raise WeightsError(f"{files.origin}: {MANIFEST} is missing")
    manifest = read_json(path, f"{files.origin}: {MANIFEST}")
    if manifest.get("kind") != kind:
        raise WeightsError(
            f"{files.origin}: {MANIFEST} is of kind {manifest.get('kind')!r}, expected {kind!r}"
        )
    sums = manifest.get("sha256")
    if not isinstance(sums, dict):
        raise WeightsError(f"{files.origin}: {MANIFEST} has no sha256 map")
    for name in names:
        expected = sums.get(name)
        if expected is None:
            raise WeightsError(f"{files.origin}: {MANIFEST} has no checksum of {name}")
        found = files.find(name)
        if found is None:
            raise WeightsError(f"{files.origin}: {name} is missing")
        actual = sha256_of(found)
        if actual != expected:
            raise WeightsError(
                f"{files.origin}: {name} has checksum {actual}, {MANIFEST} says {expected}"
            )


def write_manifest(directory: Path, kind: str, names: Iterable[str]) -> None:
    """Write the manifest of files that are already there."""
    sums = {name: sha256_of(directory / name) for name in names}
    content = {"kind": kind, "sha256": sums}
    (directory / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")
