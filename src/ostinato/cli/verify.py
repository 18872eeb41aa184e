"""``ostinato verify``: the user's weights on the user's images, recorded against direct."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ostinato
from ostinato.cli.encode import kind_of
from ostinato.cli.wiring import make_item, to_host
from ostinato.errors import ConfigError, InputError

MIN_COSINE = 0.999


@dataclass(frozen=True, slots=True)
class Comparison:
    """One file, served by its route and directly. Smallest cosine over the rows of all outputs,
    largest difference of any value, and that difference over the largest value.
    """

    file: str
    route: str | None = None
    cosine: float | None = None
    largest_difference: float | None = None
    relative_difference: float | None = None
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.file}: {self.error}"
        return (
            f"{self.file}: {self.route}  cosine {self.cosine:.7f}  "
            f"largest difference {self.largest_difference:.3g} "
            f"({self.relative_difference:.3g} of the largest value)"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """All files together. ``routes``: how many files were served by which route."""

    comparisons: tuple[Comparison, ...]
    min_cosine: float

    @property
    def served(self) -> list[Comparison]:
        return [c for c in self.comparisons if c.error is None]

    @property
    def is_good(self) -> bool:
        """Whether something was compared and nothing is further off than allowed."""
        return bool(self.served) and all((c.cosine or 0) >= self.min_cosine for c in self.served)

    def summary(self) -> dict[str, Any]:
        routes: dict[str, int] = {}
        for c in self.served:
            routes[str(c.route)] = routes.get(str(c.route), 0) + 1
        return {
            "files": len(self.comparisons),
            "compared": len(self.served),
            "routes": routes,
            "cosine": min((c.cosine or 0.0 for c in self.served), default=None),
            "largest_difference": max(
                (c.largest_difference or 0.0 for c in self.served), default=None
            ),
            "min_cosine": self.min_cosine,
            "is_good": self.is_good,
        }

    def to_json(self) -> str:
        files = [asdict(comparison) for comparison in self.comparisons]
        return json.dumps({**self.summary(), "results": files}, indent=2)

    def __str__(self) -> str:
        facts = self.summary()
        routes = ", ".join(f"{count} {route}" for route, count in facts["routes"].items()) or "none"
        last = f"{'good' if self.is_good else 'NOT GOOD'}: {facts['compared']} of {facts['files']} "
        last += f"files compared ({routes})"
        if self.served:
            last += f", cosine at least {facts['cosine']:.7f} (allowed {self.min_cosine})"
        if self.served and set(facts["routes"]) == {"direct"}:
            last += "; no recording took part"
        return "\n".join([*map(str, self.comparisons), last])


def find_files(directory: Path) -> list[str]:
    """The files of a directory tree, sorted; hidden ones left out."""
    if not directory.is_dir():
        raise ConfigError(f"--images {str(directory)!r} is no directory")
    found = sorted(
        str(path)
        for path in directory.rglob("*")
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(directory).parts)
    )
    if not found:
        raise ConfigError(f"--images {str(directory)!r} holds no file")
    return found


def verify(
    encoder: ostinato.Encoder, files: Iterable[str], *, min_cosine: float = MIN_COSINE
) -> Verdict:
    """Serve each file twice and compare."""
    return Verdict(tuple(_compare(encoder, file) for file in files), min_cosine)


def _compare(encoder: ostinato.Encoder, file: str) -> Comparison:
    (prepared,) = encoder.preprocessor.batch([make_item(kind_of(file), file, {})])
    if isinstance(prepared, InputError):
        return Comparison(file, error=str(prepared))
    (served,) = encoder.encode_items([prepared])
    with ostinato.route("direct"):
        (direct,) = encoder.encode_items([prepared])
    if direct.route.route != "direct":
        raise RuntimeError(f"a forced direct call was served by route {direct.route.route}")
    ours, theirs = to_host(served.packed), to_host(direct.packed)
    difference = float(np.abs(ours - theirs).max())
    largest = float(np.abs(theirs).max())
    return Comparison(
        file,
        served.route.route,
        smallest_cosine(ours, theirs),
        difference,
        difference / largest if largest else math.inf if difference else 0.0,
    )


def smallest_cosine(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    """Over the rows; two rows of zeros are equal."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    both_zero = (a == 0).all(axis=1) & (b == 0).all(axis=1)
    cosines = np.where(both_zero, 1.0, products / np.where(lengths == 0, 1.0, lengths))
    return float(cosines.min())
