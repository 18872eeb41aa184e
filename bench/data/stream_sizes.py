"""Makes ``stream_sizes.json``: 600 requests of a long-tailed mix of image sizes.

A third of the requests have one of a few popular sizes, the rest draws area and
aspect ratio from wide distributions; one in eight holds several images, one in twenty a short
video. Sizes in patches of a tower that merges 2 x 2.

    python -m bench.data.stream_sizes
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

PATH = Path(__file__).with_name("stream_sizes.json")
NUM_REQUESTS = 600
SEED = 20_261_129
POPULAR = ((28, 28), (14, 14), (56, 56), (40, 30), (68, 120))
MOST = 16_384

Grids = list[tuple[int, int, int]]


def image(draw: random.Random) -> tuple[int, int]:
    """Rows and columns in patches, even."""
    if draw.random() < 0.33:
        return draw.choices(POPULAR, weights=(8, 5, 3, 3, 1))[0]
    area = min(max(math.exp(draw.gauss(math.log(1100), 0.95)), 16), MOST)
    aspect = math.exp(draw.gauss(0.0, 0.4))
    rows = max(2, 2 * round(math.sqrt(area * aspect) / 2))
    return rows, max(2, 2 * round(area / rows / 2))


def request(draw: random.Random) -> Grids:
    kind = draw.random()
    if kind < 0.05:
        rows, columns = draw.choice(((14, 14), (14, 24), (28, 28), (20, 36)))
        return [(draw.randint(2, 12), rows, columns)]
    num_images = draw.randint(2, 4) if kind < 0.05 + 0.125 else 1
    return [(1, *image(draw)) for _ in range(num_images)]


def make() -> list[Grids]:
    draw = random.Random(SEED)
    return [request(draw) for _ in range(NUM_REQUESTS)]


def load() -> list[Grids]:
    """The committed requests."""
    return [[(t, h, w) for t, h, w in grids] for grids in json.loads(PATH.read_text())["requests"]]


def main() -> None:
    requests = make()
    sizes = [sum(t * h * w for t, h, w in grids) for grids in requests]
    content = {
        "seed": SEED,
        "what": "grids (frames, rows, columns) in patches, one list per request",
        "num_distinct_layouts": len({tuple(grids) for grids in requests}),
        "num_distinct_sizes": len(set(sizes)),
        "mean_patches": round(sum(sizes) / len(sizes)),
        "largest": max(sizes),
    }
    lines = ",\n".join("  " + json.dumps(grids) for grids in requests)
    head = json.dumps(content, indent=1).removesuffix("\n}")
    PATH.write_text(f'{head},\n "requests": [\n{lines}\n]\n}}\n')
    print(content)


if __name__ == "__main__":
    main()
