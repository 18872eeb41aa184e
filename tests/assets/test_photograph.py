"""The photograph and the video made from it."""

from __future__ import annotations

import io

import av
import numpy as np
from PIL import Image

from ostinato.assets.photograph import CLIP_FPS, CLIP_SIDE, clip_bytes, photograph_bytes


def test_the_video_shows_the_photograph_from_its_top_to_its_bottom() -> None:
    with av.open(io.BytesIO(clip_bytes())) as container:
        assert container.streams.video[0].average_rate == CLIP_FPS
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 16
    photograph = Image.open(io.BytesIO(photograph_bytes()))
    for frame, box in ((frames[0], (0, 0, 320, 320)), (frames[-1], (60, 175, 260, 375))):
        expected = np.asarray(photograph.resize((CLIP_SIDE, CLIP_SIDE), box=box), np.float32)
        assert np.abs(frame - expected).mean() < 8  # a lossy codec
        other = np.asarray(photograph.resize((CLIP_SIDE, CLIP_SIDE)).rotate(180), np.float32)
        assert np.abs(frame - other).mean() > 20
