"""``ostinato encode``: files in, embeddings out, and how each was served."""

from __future__ import annotations

import json
import mimetypes
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ostinato
from ostinato.cli.wiring import make_item, to_host
from ostinato.errors import ConfigError, InputError
from ostinato.serve.pooling.codec import pack_safetensors
from ostinato.vision.preprocess import Patches


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of one file. ``error`` names the rule that it breaks."""

    file: str
    kind: str
    error: str | None = None
    grid_thw: tuple[int, int, int] | None = None
    tokens: int = 0
    width: int = 0
    deepstack_levels: int = 0
    route: str | None = None
    reason: str | None = None
    took_ms: float = 0.0

    def __str__(self) -> str:
        if self.error is not None or self.grid_thw is None:
            return f"{self.file}: {self.error}"
        grid = " x ".join(map(str, self.grid_thw))
        return (
            f"{self.file}: {grid} patches -> {self.tokens} x {self.width}  {self.route}  "
            f"{self.took_ms:.1f} ms  ({self.reason})"
        )


def kind_of(path: str) -> str:
    """``video`` by the file's name, else ``image``."""
    guessed = mimetypes.guess_type(path)[0] or ""
    is_video = guessed.startswith("video/") or Path(path).suffix.lower() in (".mkv", ".webm")
    return "video" if is_video else "image"


def encode_files(
    encoder: ostinato.Encoder, files: Sequence[str], options: dict[str, Any]
) -> tuple[list[FileResult], dict[str, np.ndarray[Any, Any]]]:
    """One result per file, and the arrays of those that could be served, named by their place."""
    results: list[FileResult] = []
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for index, file in enumerate(files):
        kind = kind_of(file)
        began_s = time.perf_counter()
        (prepared,) = encoder.preprocessor.batch([make_item(kind, file, options)])
        if isinstance(prepared, InputError):
            results.append(FileResult(file, kind, str(prepared)))
            continue
        assert isinstance(prepared, Patches)
        (encoded,) = encoder.encode_items([prepared])
        main = to_host(encoded.embeddings)
        took_ms = (time.perf_counter() - began_s) * 1e3
        arrays[f"item.{index}.embeddings"] = main
        for k, level in enumerate(encoded.deepstack):
            arrays[f"item.{index}.deepstack.{k}"] = to_host(level)
        results.append(
            FileResult(
                file,
                kind,
                None,
                encoded.grid_thw,
                main.shape[0],
                main.shape[1],
                len(encoded.deepstack),
                encoded.route.route,
                encoded.route.reason,
                round(took_ms, 3),
            )
        )
    return results, arrays


def write_file(
    path: Path, results: Sequence[FileResult], arrays: dict[str, np.ndarray[Any, Any]]
) -> None:
    """One safetensors file, the same names as the server's."""
    metadata = {
        f"item.{index}.{name}": value if isinstance(value, str) else json.dumps(value)
        for index, result in enumerate(results)
        for name, value in asdict(result).items()
        if value is not None and name in ("file", "kind", "error", "grid_thw", "route", "reason")
    }
    try:
        path.write_bytes(pack_safetensors(arrays, metadata))
    except OSError as error:
        raise ConfigError(f"--out {str(path)!r}: {error.strerror}") from None


def as_json(results: Sequence[FileResult]) -> str:
    """A list, one object per file."""
    return json.dumps([asdict(result) for result in results], indent=2)
