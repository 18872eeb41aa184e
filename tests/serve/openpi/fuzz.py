"""A fuzzer of the codec: real messages with bytes flipped, cut, doubled, spliced and lengths blown
up, in a process whose memory is bounded. ``python -m tests.serve.openpi.fuzz SECONDS SEED``
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time

import numpy as np

from ostinato.errors import InputError
from ostinato.serve.openpi.codec import CodecError, packb, unpackb
from ostinato.serve.openpi.intake import Intake, IntakeSettings
from ostinato.serve.openpi.messages import read_frame, read_generation
from ostinato.serve.openpi.wishes import read_wishes
from tests.serve.openpi.observations import droid, encoded, picture, plain
from tests.serve.openpi.stub import SPEC

MAX_BYTES = 300 * 2**20
"""Above what the process holds when it begins."""
HEADS = bytes([0x80, 0x8F, 0x90, 0x9F, 0xC1, 0xC4, 0xC6, 0xC9, 0xCB, 0xD8, 0xDB, 0xDD, 0xDF, 0xFF])


def corpus() -> list[bytes]:
    """Messages of every dialect, and the corners of the format."""
    jpeg = encoded(picture(0), "JPEG")
    wishes = {"request_id": "a", "deadline_ms": 50, "rtc": {"prefix": np.zeros((2, 8)), "delay": 1}}
    return [
        packb(droid()),
        packb(plain(ostinato=wishes)),
        packb(droid(endpoint="infer", session_id="s")),
        packb({"input": {"task": "x", "observation": plain()}, "parameters": {"seed": 1}}),
        packb(plain(images={"wrist": jpeg, "left": jpeg, "right": encoded(picture(1), "PNG")})),
        packb([np.array(1.0), np.float32(1.5), np.array(["a", "bc"]), {}, [], 2**40, -5, "é"]),
    ]


def mutated(draw: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = draw.choice(HEADS)
        elif kind == 2:
            del data[at : at + draw.randint(1, 50)]
        elif kind == 3:
            data[at:at] = data[at : at + draw.randint(1, 50)]
        elif kind == 4:
            other = draw.choice(seeds)
            data[at:] = other[draw.randrange(len(other)) :]
        else:
            data[at : at + 4] = b"\xff" * 4
    return bytes(data)


def run(seconds: float, seed: int) -> dict[str, float]:
    """Anything but ``InputError`` escapes and ends the run."""
    draw, seeds, intake = random.Random(seed), corpus(), Intake(SPEC, IntakeSettings())
    counts = {"messages": 0, "values": 0, "observations": 0}
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        data = mutated(draw, seeds)
        counts["messages"] += 1
        try:
            unpackb(data)
            counts["values"] += 1
        except CodecError:
            pass
        for read in (read_frame, lambda d: read_generation(d, is_msgpack=True, is_numpy=True)):
            try:
                observation, others = intake.read(read(data).entries)
                read_wishes(others, SPEC.options)
                assert observation["state"].shape == (8,)
                counts["observations"] += 1
            except InputError:
                pass
    return counts


def main() -> None:
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MAX_BYTES, mapped + MAX_BYTES))
    counts = run(float(sys.argv[1]), int(sys.argv[2]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**counts, "grown_bytes": peak - base}))


if __name__ == "__main__":
    main()
