"""An observation in a file: JSON that names image files, or arrays in ``.npz`` or ``.safetensors``.

What is inside has the names of a request (see ``policy.contract``): ``images`` or
``observation.images.<camera>``, ``state``, ``prompt``, options. Decoding is all that happens here;
the policy says what does not fit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.errors import ConfigError, InputError

SUFFIXES = (".json", ".npz", ".safetensors")
_IMAGES = ("images.", "observation.images.")


def read_observation(path: Path) -> dict[str, Any]:
    """The observation in a file, by its suffix.

    JSON: image files are named relative to the file; lists of numbers are taken as they are. Arrays
    are named ``images.<camera>`` (H, W, 3) uint8, ``state``, ``prev_chunk_left_over``, ``noise.…``;
    texts and numbers are 0-d arrays in ``.npz``, JSON in the metadata of ``.safetensors``.
    Raises ``ConfigError`` for a file that cannot be read, ``InputError`` for such an image.
    """
    readers = {".json": _from_json, ".npz": _from_npz, ".safetensors": _from_safetensors}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"--observation {str(path)!r}; expected one of {', '.join(SUFFIXES)}")
    try:
        return reader(path)
    except OSError as error:
        raise ConfigError(f"--observation {str(path)!r}: {error.strerror or error}") from None


def _from_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"--observation {str(path)!r} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--observation {str(path)!r} holds no object")
    images = content.get("images")
    if isinstance(images, dict):
        content["images"] = {n: _image(path.parent, n, v) for n, v in images.items()}
    for name, value in content.items():
        if name.startswith(_IMAGES[1]):
            content[name] = _image(path.parent, name, value)
    return content


def _image(folder: Path, name: str, value: Any) -> Any:
    """The decoded file (H, W, 3) uint8 where ``value`` names one."""
    if not isinstance(value, str):
        return value
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(folder / value) as image:
            return np.array(image.convert("RGB"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"image {name}: {folder / value} cannot be read: {error}") from None


def _from_npz(path: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, AttributeError, KeyError) as error:
        raise ConfigError(f"--observation {str(path)!r} is no .npz of arrays: {error}") from None
    return _joined({n: a.item() if a.ndim == 0 else a for n, a in found.items()})


def _from_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as stored:
            names = list(stored.keys())
            found: dict[str, Any] = {name: stored.get_tensor(name) for name in names}
            plain = stored.metadata() or {}
    except SafetensorError as error:
        raise ConfigError(f"--observation {str(path)!r} is no .safetensors: {error}") from None
    return _joined(found | {name: _plain(value) for name, value in plain.items()})


def _plain(value: str) -> Any:
    """JSON where it is some, else the text itself."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _joined(flat: dict[str, Any]) -> dict[str, Any]:
    """``images.<camera>`` and ``noise.<stream>`` as maps; everything else by its own name."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        group, dot, rest = name.partition(".")
        if dot and group in ("images", "noise"):
            found.setdefault(group, {})[rest] = value
        else:
            found[name] = value
    return found
