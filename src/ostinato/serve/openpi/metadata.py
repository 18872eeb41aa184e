"""What a client is told on connecting: the policy's own words, and what this server adds.

Plain values only. The map also answers RoboArena's clients, who look for six names of theirs.
"""

from __future__ import annotations

from typing import Any

from ostinato.errors import ConfigError
from ostinato.serve.openpi.contract import PolicyService
from ostinato.serve.openpi.intake import COMPOSITE, GRIPPER, JOINTS, PROMPTS, STATE
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.openpi.wishes import RESERVED

PROTOCOL_VERSION = 1
WRIST = "wrist"


def metadata_of(service: PolicyService, robots: RobotSettings) -> dict[str, Any]:
    """The metadata frame, and the body of ``GET /v1/actions/metadata``."""
    spec = service.spec
    own = dict(service.metadata())
    inputs = {
        "camera_keys": list(spec.cameras),
        "camera_hw": list(spec.camera_hw),
        "state_dim": spec.state_dim,
        **own.get("input", {}),
        "camera_arrangements": ["HWC", "CHW"],
        "camera_values": ["uint8", "integers 0..255", "floats 0..1", "JPEG", "PNG"],
        "camera_aliases": dict(spec.aliases),
        "rename": dict(robots.intake.rename),
        "resizes_cameras": robots.intake.is_resized,
        "state_names": [STATE, f"{JOINTS} + {GRIPPER}"],
        "prompt_names": list(PROMPTS),
    }
    bounds = None if robots.bounds is None else robots.bounds.describe()
    return {
        **own,
        "input": inputs,
        "output": {**own.get("output", {}), "bounds": bounds},
        "protocol": {
            "name": "openpi",
            "version": PROTOCOL_VERSION,
            "reserved": RESERVED,
            "dialects": ["openpi", "roboarena"],
            "options": sorted(spec.options),
        },
        **_roboarena(service),
    }


def _roboarena(service: PolicyService) -> dict[str, Any]:
    """RoboArena's names for what its clients configure themselves with."""
    spec = service.spec
    return {
        "image_resolution": list(spec.camera_hw),
        "n_external_cameras": sum(name != WRIST for name in spec.cameras),
        "needs_wrist_camera": WRIST in spec.cameras,
        "needs_stereo_camera": False,
        "needs_session_id": False,
        "action_space": "joint_position",
    }


def check_settings(service: PolicyService, robots: RobotSettings) -> None:
    """Raise ``ConfigError`` for settings that do not fit the policy."""
    spec = service.spec
    declared = {*spec.cameras, STATE, JOINTS, GRIPPER, *PROMPTS, *spec.options}
    if spec.composite_hw is not None:
        declared.add(COMPOSITE)
    for sent, name in robots.intake.rename.items():
        if name not in declared:
            raise ConfigError(
                f"rename {sent}={name}: {name!r} is not declared; expected one of "
                f"{', '.join(sorted(declared))}"
            )
    dim = dict(service.metadata()).get("output", {}).get("action_dim")
    if robots.bounds is not None and isinstance(dim, int):
        robots.bounds.check(dim)
