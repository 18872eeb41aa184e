"""How long from the bytes of a 1080p JPEG to patches, beside transformers' ``Pil`` processor?

Protocol: one process; the two contestants in turns, so that both meet the same machine; the same
picture; answers compared byte for byte first. *Alone*: one call at a time. *Clients*: threads that
each ask again as soon as they are served; a request's time is from asking to holding patches.
*CPU time*: of the whole process in the clients' rounds, per picture: the figure to trust where
others use the machine too.
The picture is made up (smooth shapes, edges, some noise) unless ``--image`` names a JPEG.

    python bench/preprocess.py [--family qwen2_vl] [--clients 16] [--rounds 5] [--image FILE]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.peers import transformers_preprocess
from ostinato.vision.preprocess import Preprocessor, default_config

Ask = Callable[[bytes], object]


def picture() -> bytes:
    """A 1920 x 1080 JPEG of about the size of a photograph's."""
    down, across = np.mgrid[0:1080, 0:1920]
    waves = [np.sin(down / (31 + 9 * c)) + np.cos(across / (43 + 7 * c)) for c in range(3)]
    noise = np.random.default_rng(0).normal(0, 4, (1080, 1920, 3))
    pixels = np.stack(waves, -1) * 55 + 128 + noise
    pixels[::90, :, 1] = 255
    pixels[:, ::120, 0] = 0
    stream = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def alone_ms(ask: Ask, data: bytes, num_calls: int) -> list[float]:
    """Times of calls that follow each other."""
    times = []
    for _ in range(num_calls):
        begin = time.perf_counter()
        ask(data)
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def crowd_ms(ask: Ask, data: bytes, num_clients: int, num_calls: int) -> list[float]:
    """Times of calls by ``num_clients`` threads at once, ``num_calls`` each."""
    times: list[list[float]] = [[] for _ in range(num_clients)]
    barrier = threading.Barrier(num_clients)

    def client(own: list[float]) -> None:
        barrier.wait()
        own += alone_ms(ask, data, num_calls)

    threads = [threading.Thread(target=client, args=(own,)) for own in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for own in times for each in own]


def main() -> None:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="qwen2_vl")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--image", type=Path)
    options = parser.parse_args()
    data = options.image.read_bytes() if options.image else picture()
    config = default_config(options.family)
    theirs = transformers_preprocess.make(config.image)
    with Preprocessor(config, workers=options.workers) as preprocessor:
        contestants: dict[str, Ask] = {
            "ostinato": preprocessor.image,
            "transformers": theirs,
        }
        first = preprocessor.image(data)
        if first.pixel_values.tobytes() != theirs(data).tobytes():
            raise SystemExit("the two do not agree byte for byte; nothing was measured")
        print(
            f"1080p JPEG of {len(data)} bytes -> {first.num_patches} patches, {options.family}, "
            f"{len(os.sched_getaffinity(0))} cores, bytes equal"
        )
        alone: dict[str, list[float]] = {name: [] for name in contestants}
        cpu: dict[str, list[float]] = {name: [] for name in contestants}
        crowd: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(options.rounds):
            for name, ask in contestants.items():
                alone[name] += alone_ms(ask, data, 5)
                begin = time.process_time()
                crowd[name] += crowd_ms(ask, data, options.clients, 2)
                spent_s = time.process_time() - begin
                cpu[name].append(spent_s * 1e3 / (2 * options.clients))
    result = {
        name: {
            "alone_p50_ms": round(statistics.median(alone[name]), 1),
            "clients_p50_ms": round(statistics.median(crowd[name]), 1),
            "cpu_ms": round(statistics.median(cpu[name]), 1),
        }
        for name in contestants
    }
    crowded = f"{options.clients} clients, P50"
    print(f"{'':14}{'alone, P50':>14}{crowded:>20}{'CPU time a picture':>22}")
    for name, row in result.items():
        times = f"{row['alone_p50_ms']:>11} ms{row['clients_p50_ms']:>17} ms{row['cpu_ms']:>19} ms"
        print(f"{name:14}{times}")
    ratio = {
        key: round(result["ostinato"][key] / result["transformers"][key], 3)
        for key in ("alone_p50_ms", "clients_p50_ms", "cpu_ms")
    }
    ratios = f"{ratio['alone_p50_ms']:>11}   {ratio['clients_p50_ms']:>17}   {ratio['cpu_ms']:>19}"
    print(f"{'ratio':14}{ratios}")
    about = {
        "question": "preprocess",
        "family": options.family,
        "cores": len(os.sched_getaffinity(0)),
        "clients": options.clients,
        "rounds": options.rounds,
        "jpeg_bytes": len(data),
        "num_patches": first.num_patches,
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "numpy": np.__version__,
    }
    print(json.dumps({**about, **result, "ratio": ratio}))


if __name__ == "__main__":
    main()
