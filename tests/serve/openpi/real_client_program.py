"""Runs in the environment of the published openpi-client and knows nothing of Ostinato.

``python real_client_program.py PORT HEIGHT WIDTH``; prints one JSON line of what it got.
"""

import json
import sys
import time

import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy

port, hw = int(sys.argv[1]), (int(sys.argv[2]), int(sys.argv[3]))


def picture(seed):
    return np.random.default_rng(seed).integers(0, 256, (*hw, 3), np.uint8)


droid = {
    "observation/exterior_image_1_left": picture(1),
    "observation/exterior_image_2_left": picture(2),
    "observation/wrist_image_left": picture(0),
    "observation/joint_position": np.linspace(-1, 1, 7),
    "observation/gripper_position": np.array([0.5]),
    "prompt": "pick up the cup",
}
plain = {
    "images": {"wrist": picture(0), "left": picture(1), "right": picture(2)},
    "state": np.append(np.linspace(-1, 1, 7), 0.5),
    "prompt": "pick up the cup",
}
found = {"answers": [], "numpy": np.__version__}
policy = WebsocketClientPolicy("127.0.0.1", port)
found["metadata"] = policy.get_server_metadata()
for observation in (droid, plain):
    began = time.monotonic()
    reply = policy.infer(observation)
    actions = reply["actions"]
    found["answers"].append(
        {
            "seconds": time.monotonic() - began,
            "actions": actions.tobytes().hex(),
            "dtype": str(actions.dtype),
            "shape": list(actions.shape),
            "server_timing": reply["server_timing"],
        }
    )
broker = ActionChunkBroker(policy, action_horizon=3)
steps = [broker.infer(droid) for _ in range(4)]
found["steps"] = [step["actions"].tobytes().hex() for step in steps]
try:
    policy.infer({**plain, "state": np.zeros(3)})
except RuntimeError as error:
    found["error"] = str(error)
try:
    policy.infer(plain)
except Exception as error:
    found["after_error"] = type(error).__name__
again = WebsocketClientPolicy(f"ws://127.0.0.1:{port}/openpi/policy")
found["again"] = again.infer(plain)["actions"].tobytes().hex()
print(json.dumps(found))
