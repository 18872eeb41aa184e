"""A robot's side of openpi's protocol."""

from ostinato_robot.client import ConnectionLost, DeadlineMissed, RobotClient, ServerError
from ostinato_robot.codec import CodecError, packb, unpackb
from ostinato_robot.images import jpeg, resize_with_pad

__all__ = [
    "CodecError",
    "ConnectionLost",
    "DeadlineMissed",
    "RobotClient",
    "ServerError",
    "jpeg",
    "packb",
    "resize_with_pad",
    "unpackb",
]
