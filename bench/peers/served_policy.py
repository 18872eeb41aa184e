"""The server of ``bench/openpi_served.py``: random weights behind the app that ``ostinato serve``
builds, in a process of its own.

Answers every ask of the robot in process first, directly, and prints their hashes as one JSON line.
Ends with standard input.

    python -m bench.peers.served_policy VARIANT [--dry]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import torch

from bench.peers.robot_rounds import CAMERA_HW, NUM_ASKS, ask
from ostinato.bench.policy_package import load_variant
from ostinato.bench.policy_peers import make_policy
from ostinato.cli.policy_greeting import greet_policy
from ostinato.cli.policy_wiring import PolicyAdapter
from ostinato.cli.run_server import run_app
from ostinato.policy.flux3_action.load import Loaded
from ostinato.serve.openpi.app import build_policy_app
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.settings import ServerSettings


def in_process(loaded: Loaded) -> list[str]:
    """sha256 of the actions of every ask: no server, no recording."""
    policy = make_policy(loaded, is_recorded=False)
    try:
        return [digest(policy.infer(observation_of(k), seed=k)["actions"]) for k in range(NUM_ASKS)]
    finally:
        policy.close()


def observation_of(k: int) -> dict[str, Any]:
    """What the server should have understood."""
    sent = ask(k)
    cameras = {
        "left": sent["observation/exterior_image_1_left"],
        "right": sent["observation/exterior_image_2_left"],
        "wrist": sent["observation/wrist_image_left"],
    }
    joints = sent["observation/joint_position"], sent["observation/gripper_position"]
    state = np.concatenate(joints).astype(np.float32)
    return {"images": cameras, "state": state, "prompt": sent["prompt"]}


def digest(actions: Any) -> str:
    return hashlib.sha256(np.asarray(actions).tobytes()).hexdigest()


def stop_with_stdin() -> None:
    """As Ctrl-C once nobody holds the other end any more."""

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args()
    device = torch.device("cpu") if options.dry else torch.device("cuda", 0)
    model = "tiny-flux3-action" if options.dry else None
    loaded = load_variant(options.variant, device, model)
    expected = loaded.config.arrangement.camera_hw
    if tuple(expected) != CAMERA_HW:
        raise ValueError(f"the policy's cameras are {expected}; expected {CAMERA_HW}")
    print(json.dumps(in_process(loaded)), flush=True)
    service = PolicyAdapter(options.variant, make_policy(loaded, is_recorded=True))
    settings = ServerSettings(port=0)
    stop_with_stdin()
    return run_app(
        build_policy_app(service, settings, RobotSettings()),
        settings,
        name=service.name,
        is_once=False,
        echo=lambda text: print(text, flush=True),
        greeting=greet_policy,
    )


if __name__ == "__main__":
    sys.exit(main())
