"""``model_type`` of a checkpoint to the tower that serves it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ostinato.errors import WeightsError
from ostinato.vision.contract import VisionConfig
from ostinato.vision.fields import Fields
from ostinato.vision.models import qwen2_5_vl, qwen2_vl, qwen3_vl
from ostinato.vision.tower import Tower


@dataclass(frozen=True, slots=True)
class Family:
    """How one kind of tower is configured, built and named in checkpoints."""

    read_config: Callable[[Fields], VisionConfig]
    build: Callable[[VisionConfig], Tower]
    published_names: tuple[tuple[str, str], ...]

    def published_name(self, name: str) -> str:
        """A parameter's name in checkpoints, without ``visual.``."""
        for pattern, replacement in self.published_names:
            name = re.sub(pattern, replacement, name)
        return name


FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(qwen2_vl.read_config, qwen2_vl.Qwen2VL, qwen2_vl.PUBLISHED_NAMES),
    "qwen2_5_vl": Family(qwen2_5_vl.read_config, qwen2_5_vl.Qwen2_5VL, qwen2_5_vl.PUBLISHED_NAMES),
    "qwen3_vl": Family(qwen3_vl.read_config, qwen3_vl.Qwen3VL, qwen3_vl.PUBLISHED_NAMES),
}


def find_family(model_type: object) -> Family:
    """The family of ``model_type``; a tower's own type (``…_vision``) is known too.

    Raises ``WeightsError`` naming the type and the known ones.
    """
    family = FAMILIES.get(str(model_type).removesuffix("_vision"))
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise WeightsError(f"no vision tower for model_type {model_type!r}; known are {known}")
    return family
