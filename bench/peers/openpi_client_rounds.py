"""Runs in the environment of the published openpi-client: round trips to several servers in turn.

``python openpi_client_rounds.py NUM_ROUNDS CORE PORT...``, on that core alone; prints one JSON
line, milliseconds per port.
"""

import json
import os
import sys
import time

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

num_rounds, core, ports = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
os.sched_setaffinity(0, {core})
pictures = [np.random.default_rng(k).integers(0, 256, (360, 640, 3), np.uint8) for k in range(3)]
observation = {
    "observation/exterior_image_1_left": pictures[0],
    "observation/exterior_image_2_left": pictures[1],
    "observation/wrist_image_left": pictures[2],
    "observation/joint_position": np.zeros(7),
    "observation/gripper_position": np.zeros(1),
    "prompt": "pick up the cup",
}
policies = {port: WebsocketClientPolicy("127.0.0.1", int(port)) for port in ports}
times = {port: [] for port in ports}
for turn in range(num_rounds + 20):
    for port, policy in policies.items():
        began = time.perf_counter()
        policy.infer(observation)
        if turn >= 20:
            times[port].append((time.perf_counter() - began) * 1e3)
print(json.dumps(times))
