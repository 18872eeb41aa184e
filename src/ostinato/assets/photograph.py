"""The photograph that ships with the package (``ATTRIBUTION.txt`` says whose it is), and a short
video made from it on the spot.
"""

from __future__ import annotations

import io
from importlib.resources import files

NAME = "photograph.jpg"
CLIP_SIDE = 224
CLIP_FPS = 8


def photograph_bytes() -> bytes:
    """The JPEG file, 320 x 375 pixels."""
    return (files("ostinato.assets") / NAME).read_bytes()


def clip_bytes(num_frames: int = 16) -> bytes:
    """An MP4 file: the camera pans down the photograph and comes closer."""
    import av
    import numpy as np
    from PIL import Image

    target = io.BytesIO()
    with (
        Image.open(io.BytesIO(photograph_bytes())) as photograph,
        av.open(target, "w", format="mp4") as container,
    ):
        stream = container.add_stream("mpeg4", rate=CLIP_FPS)
        stream.width = stream.height = CLIP_SIDE
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 2_000_000
        for index in range(num_frames):
            done = index / max(num_frames - 1, 1)
            side = 320 - round(120 * done)
            left, top = (320 - side) // 2, round((375 - side) * done)
            view = photograph.resize(
                (CLIP_SIDE, CLIP_SIDE), box=(left, top, left + side, top + side)
            )
            container.mux(
                stream.encode(av.VideoFrame.from_ndarray(np.asarray(view), format="rgb24"))
            )
        container.mux(stream.encode())
    return target.getvalue()
