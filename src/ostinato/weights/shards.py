"""Which file holds which tensor, and reading only those that are asked for.

The published layout: ``model.safetensors``, or shards named by ``model.safetensors.index.json``.
Shapes come from the files' headers, before any tensor is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostinato.errors import WeightsError
from ostinato.weights.config import read_json
from ostinato.weights.files import Files

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class StoredTensors(Mapping[str, tuple[int, ...]]):
    """Stored names (as in the files) to shapes, for the names that ``wanted`` accepts.

    Opens only files that hold such names, and of those only the headers until ``read``.
    Raises ``WeightsError`` for files that are missing, broken, or do not hold what the index says.
    """

    def __init__(self, files: Files, wanted: Callable[[str], bool]) -> None:
        self._origin = files.origin
        self._paths: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for shard, names in _names_by_shard(files, wanted).items():
            path = files.find(shard)
            if path is None:
                raise WeightsError(f"{files.origin}: {shard} is missing")
            with _opened(path, self._origin) as handle:
                present = set(handle.keys())
                for name in sorted(filter(wanted, present)) if names is None else names:
                    if name not in present:
                        raise WeightsError(f"{files.origin}: {shard} does not hold {name}")
                    self._paths[name] = path
                    self._shapes[name] = tuple(handle.get_slice(name).get_shape())

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def read(
        self, names: Iterable[str], *, device: torch.device, dtype: torch.dtype | None
    ) -> Iterator[tuple[str, Tensor]]:
        """Each name with its tensor on ``device``, cast to ``dtype`` if one is given.

        Tensors own their memory: the files may change or go afterwards.
        """
        by_path: dict[Path, list[str]] = defaultdict(list)
        for name in names:
            by_path[self._paths[name]].append(name)
        for path, in_file in by_path.items():
            with _opened(path, self._origin) as handle:
                for name in in_file:
                    tensor: Tensor = handle.get_tensor(name)
                    yield name, tensor.to(device=device, dtype=dtype, copy=True)


def _names_by_shard(files: Files, wanted: Callable[[str], bool]) -> dict[str, list[str] | None]:
    """Files to open; ``None`` instead of names for a file that no index describes."""
    index = files.find(INDEX)
    if index is None:
        return {SINGLE: None}
    weight_map = read_json(index, f"{files.origin}: {INDEX}").get("weight_map")
    if not isinstance(weight_map, dict):
        raise WeightsError(f"{files.origin}: {INDEX} has no weight_map")
    shards: dict[str, list[str] | None] = {}
    for name in sorted(filter(wanted, weight_map)):
        shard = weight_map[name]
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise WeightsError(f"{files.origin}: {INDEX} names a file elsewhere: {shard!r}")
        names = shards.setdefault(shard, [])
        assert names is not None
        names.append(name)
    return shards


@contextmanager
def _opened(path: Path, origin: str) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt", device="cpu") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{origin}: {path.name} cannot be read: {error}") from error
