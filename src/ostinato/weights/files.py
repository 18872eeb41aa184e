"""Where a checkpoint's files are: in a directory, on the hub, or shipped with the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from ostinato.errors import WeightsError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ASSETS = Path(__file__).parent.parent / "assets"


class Files(Protocol):
    """The files of one checkpoint."""

    @property
    def origin(self) -> str:
        """For messages: the directory or hub name."""

    def find(self, name: str) -> Path | None:
        """A local path of the file, fetched if need be, or ``None`` if there is no such file."""


class LocalFiles:
    """A directory. Never connects."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def origin(self) -> str:
        return str(self._directory)

    def find(self, name: str) -> Path | None:
        path = self._directory / name
        return path if path.is_file() else None


class HubFiles:
    """A repository of the hub. Each file is fetched when it is asked for, or taken from the cache.

    Offline (``HF_HUB_OFFLINE`` or no network) a file that is not cached does not exist.
    """

    def __init__(self, name: str, *, revision: str | None = None) -> None:
        self._name = name
        self._revision = revision

    @property
    def origin(self) -> str:
        return self._name

    def find(self, name: str) -> Path | None:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        try:
            return Path(hf_hub_download(self._name, name, revision=self._revision))
        except EntryNotFoundError:
            return None
        except (
            GatedRepoError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        ) as error:
            raise WeightsError(f"{self._name}: the hub refuses {name}: {error}") from error


class SubFolder:
    """A folder of a checkpoint, as a checkpoint of its own."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    @property
    def origin(self) -> str:
        return f"{self._files.origin}/{self._folder}"

    def find(self, name: str) -> Path | None:
        return self._files.find(f"{self._folder}/{name}")


def find_shipped(model: str) -> Path | None:
    """The configuration of a tiny model that ships with the package, or ``None``.

    Such a model has no weight files; its weights are made on the spot.
    """
    if not re.fullmatch(r"tiny-[a-z0-9.-]+", model):
        return None
    path = _ASSETS / f"{model}.json"
    return path if path.is_file() else None


def list_shipped() -> list[str]:
    """Names of the shipped tiny models, sorted."""
    return sorted(path.stem for path in _ASSETS.glob("tiny-*.json"))


def open_files(model: str | Path, *, revision: str | None = None) -> Files:
    """Files of a directory or, for ``owner/name`` that is no directory, of the hub.

    Raises ``WeightsError`` for anything else, without a connection.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return LocalFiles(path)
    if path.exists():
        raise WeightsError(f"{model} is a file; a checkpoint is a directory or a hub name")
    if isinstance(model, str) and _HUB_NAME.fullmatch(model):
        return HubFiles(model, revision=revision)
    raise WeightsError(
        f"{model} is no directory, no hub name (owner/name) and no shipped model "
        f"({', '.join(list_shipped())})"
    )
