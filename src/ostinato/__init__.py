"""Ostinato removes host launch overhead from multimodal inference.

Public names only, loaded at first use: importing the package touches no GPU and no environment.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.policy.contract import Policy
    from ostinato.policy.load import load_policy
    from ostinato.recording.config import GraphConfig
    from ostinato.recording.doctor import doctor
    from ostinato.recording.graphed import Graphed, graph
    from ostinato.recording.routes import route
    from ostinato.vision.encoder import Encoded, Encoder, load_encoder
    from ostinato.vlm.chat import Chat
    from ostinato.vlm.load import load_chat

_HOMES = {
    "graph": "ostinato.recording.graphed",
    "Graphed": "ostinato.recording.graphed",
    "GraphConfig": "ostinato.recording.config",
    "doctor": "ostinato.recording.doctor",
    "route": "ostinato.recording.routes",
    "load_encoder": "ostinato.vision.encoder",
    "load_chat": "ostinato.vlm.load",
    "load_policy": "ostinato.policy.load",
    "Chat": "ostinato.vlm.chat",
    "Policy": "ostinato.policy.contract",
    "Encoder": "ostinato.vision.encoder",
    "Encoded": "ostinato.vision.encoder",
}

__all__ = [
    "Chat",
    "Encoded",
    "Encoder",
    "GraphConfig",
    "Graphed",
    "Policy",
    "doctor",
    "graph",
    "load_chat",
    "load_encoder",
    "load_policy",
    "route",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ostinato' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
