"""The robot of ``bench/openpi_served.py``: our small client, three raw cameras, one request after
the other's reply. Needs no torch.

Prints one JSON line: of each timed request the round trip, what the reply says, and its hash.

    python -m bench.peers.robot_rounds PORT NUM_WARM NUM_TIMED
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import time
from typing import Any

import numpy as np

CAMERA_HW = (360, 640)
NUM_ASKS = 4
"""Different observations, each with a seed of its own, in turns."""


def ask(k: int) -> dict[str, Any]:
    """Observation ``k`` under openpi's names for DROID; its seed is ``k``."""
    rng = np.random.default_rng(k)
    left, right, wrist = (rng.integers(0, 256, (*CAMERA_HW, 3), dtype=np.uint8) for _ in range(3))
    return {
        "observation/exterior_image_1_left": left,
        "observation/exterior_image_2_left": right,
        "observation/wrist_image_left": wrist,
        "observation/joint_position": rng.uniform(-1, 1, 7),
        "observation/gripper_position": rng.uniform(0, 1, 1),
        "prompt": "pick up the red cup",
    }


def main(port: int, num_warm: int, num_timed: int) -> list[dict[str, Any]]:
    from ostinato_robot import RobotClient

    asks = [{**ask(k), "ostinato": {"seed": k}} for k in range(NUM_ASKS)]
    found: list[dict[str, Any]] = []
    with RobotClient(port=port) as robot:
        for turn in range(num_warm):
            robot.infer(asks[turn % NUM_ASKS])
        gc.collect()
        gc.freeze()
        for turn in range(num_timed):
            k = turn % NUM_ASKS
            began_s = time.perf_counter()
            reply = robot.infer(asks[k])
            round_trip_ms = (time.perf_counter() - began_s) * 1e3
            found.append(
                {
                    "ask": k,
                    "round_trip_ms": round_trip_ms,
                    "server_timing": reply["server_timing"],
                    "recording": reply["recording"],
                    "sha256": hashlib.sha256(reply["actions"].tobytes()).hexdigest(),
                }
            )
    return found


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:4]))))
