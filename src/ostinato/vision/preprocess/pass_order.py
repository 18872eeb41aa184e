"""In which order the installed Pillow resizes: across then down, or down then across.

Between the passes values are rounded to bytes, so the order shows in the result. Pillow does not
state it and has changed it; here a rule is believed only after it has been tried.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from PIL import Image

Size = tuple[int, int]  # height, width
Rule = Callable[[Size, Size], bool]

_BICUBIC = Image.Resampling.BICUBIC


def always_across_first(old: Size, new: Size) -> bool:
    """Pillow up to 12."""
    return False


def down_first_if_it_shrinks_much_more(old: Size, new: Size) -> bool:
    """Pillow 13: down first where it takes away more than twice the lines that across does."""
    return new[0] < old[0] and old[0] - new[0] > 2 * (old[1] - new[1])


@lru_cache(maxsize=1)
def down_first_rule() -> Rule | None:
    """The rule that the installed Pillow follows, or ``None`` where neither known one fits."""
    cases = list(_cases())
    for rule in (down_first_if_it_shrinks_much_more, always_across_first):
        if all(rule(old, new) == seen for old, new, seen in cases):
            return rule
    return None


def observe(old: Size, new: Size, seed: int) -> bool | None:
    """Whether Pillow goes down first from ``old`` to ``new``; ``None`` where it does not show."""
    noise = np.random.default_rng(seed).integers(0, 256, old, dtype=np.uint8)
    image = Image.fromarray(noise)
    at_once = image.resize(new[::-1], _BICUBIC).tobytes()
    across = image.resize((new[1], old[0]), _BICUBIC).resize(new[::-1], _BICUBIC).tobytes()
    down = image.resize((old[1], new[0]), _BICUBIC).resize(new[::-1], _BICUBIC).tobytes()
    if (at_once == across) == (at_once == down):
        return None
    return at_once == down


def _cases() -> list[tuple[Size, Size, bool]]:
    random = np.random.default_rng(0)
    cases = []
    for seed in range(48):
        old_height, old_width, new_width = (int(n) for n in random.integers(24, 96, 3))
        on_the_edge = old_height - 2 * (old_width - new_width) + int(random.integers(-2, 3))
        new_height = on_the_edge if seed % 2 else int(random.integers(24, 96))
        old, new = (old_height, old_width), (min(max(new_height, 8), 192), new_width)
        seen = observe(old, new, seed)
        if seen is not None:
            cases.append((old, new, seen))
    return cases
