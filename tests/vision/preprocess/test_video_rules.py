"""Frame sampling, frame sizes and times by the published rules."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostinato.errors import InputError
from ostinato.vision.preprocess import VideoConfig, default_config
from ostinato.vision.preprocess.resize import pixel_bounds, video_size
from ostinato.vision.preprocess.sampling import Sampling, frame_times, sample_frames

from .published_rules import published, published_sample, published_size

VIDEO = {family: default_config(family).video for family in ("qwen2_vl", "qwen3_vl")}
families = st.sampled_from(sorted(VIDEO))


@settings(max_examples=300, deadline=None)
@given(
    family=families,
    total=st.integers(2, 3_000),
    rate=st.one_of(st.sampled_from([24.0, 25.0, 30.0, 30_000 / 1001]), st.floats(0.5, 240)),
    fps=st.one_of(st.none(), st.floats(0.1, 60)),
    limits=st.one_of(st.none(), st.tuples(st.integers(2, 900), st.integers(2, 900)).map(sorted)),
)
def test_sampling(
    family: str, total: int, rate: float, fps: float | None, limits: list[int] | None
) -> None:
    config = VIDEO[family]
    if limits is not None:
        config = replace(config, min_frames=limits[0], max_frames=limits[1])
    ours = sample_frames(config, total, rate, Sampling(fps=fps))
    assert ours == published_sample(config, total, rate, fps=fps)
    assert ours == sorted(ours)
    assert 0 <= ours[0] <= ours[-1] < total


@settings(max_examples=100, deadline=None)
@given(family=families, total=st.integers(2, 500), share=st.floats(0.01, 1))
def test_sampling_a_number(family: str, total: int, share: float) -> None:
    number = max(2, int(total * share))
    config = VIDEO[family]
    if family == "qwen2_vl" and round(number / 2) * 2 > total:
        return  # the published rule asks for more frames than there are
    own = replace(config, fps=1e-9) if family == "qwen2_vl" else config
    ours = sample_frames(own, total, 30.0, Sampling(num_frames=number))
    assert ours == published_sample(SimpleFps(config), total, 30.0, num_frames=number)


class SimpleFps:
    """``config`` without a rate, as the published call with ``num_frames`` wants it."""

    def __init__(self, config: VideoConfig) -> None:
        self._config = config
        self.fps = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._config, name)


def test_per_call_limits_stand_alone() -> None:
    for config in VIDEO.values():
        few = sample_frames(config, 900, 30.0, Sampling(max_frames=2))
        many = sample_frames(config, 900, 30.0, Sampling(min_frames=800))
        assert few == published_sample(replace(config, min_frames=2, max_frames=2), 900, 30.0)
        changed = replace(config, min_frames=800, max_frames=800)
        assert many == published_sample(changed, 900, 30.0)
        with pytest.raises(InputError, match="min_frames 5 is larger than max_frames 4"):
            sample_frames(config, 900, 30.0, Sampling(min_frames=5, max_frames=4))


@pytest.mark.parametrize("family", sorted(VIDEO))
def test_very_short_videos(family: str) -> None:
    assert sample_frames(VIDEO[family], 1, 30.0) == [0]
    assert sample_frames(VIDEO[family], 2, 30.0) == [0, 1]
    with pytest.raises(InputError, match="at least 1 frame, got 0"):
        sample_frames(VIDEO[family], 0, 30.0)


@settings(max_examples=400, deadline=None)
@given(
    family=families,
    num_frames=st.integers(2, 800),
    height=st.integers(1, 2_500),
    width=st.integers(1, 2_500),
    bounds=st.tuples(st.integers(1, 2_000_000), st.integers(1, 30_000_000)).map(sorted),
    cap=st.booleans(),
)
@example("qwen3_vl", 2, 1, 2_000, [4096, 25_165_824], False)
def test_sizes(
    family: str, num_frames: int, height: int, width: int, bounds: list[int], cap: bool
) -> None:
    config, (low, high) = replace(VIDEO[family], cap_pixels_per_frame=cap), bounds
    try:
        expected = published_size(config, num_frames, height, width, low, high)
    except ValueError:  # the published rule refuses extreme ratios, and nothing else
        with pytest.raises(InputError, match=r"\[aspect-ratio\]"):
            video_size(config, num_frames, height, width, min_pixels=low, max_pixels=high)
        return
    ours = video_size(config, num_frames, height, width, min_pixels=low, max_pixels=high)
    assert ours == expected
    assert min(ours) >= config.factor


@settings(max_examples=100, deadline=None)
@given(
    indices=st.lists(st.integers(0, 10_000), min_size=1, max_size=40).map(sorted),
    rate=st.floats(1, 120),
    temporal=st.integers(1, 4),
)
def test_times(indices: list[int], rate: float, temporal: int) -> None:
    expected = published("prompt", "_calculate_timestamps")(
        SimpleNamespace(), list(indices), rate, temporal
    )
    if temporal > 1:
        ours = frame_times(indices, rate, temporal)
        assert len(ours) == len(expected)
        if temporal == 2:
            assert list(ours) == expected
    assert all(time >= 0 for time in frame_times(indices, rate, temporal))


@given(low=st.none() | st.integers(1, 10**8), high=st.none() | st.integers(1, 10**8))
def test_bounds_are_always_ordered(low: int | None, high: int | None) -> None:
    config = VIDEO["qwen3_vl"]
    if low is not None and high is not None and low > high:
        with pytest.raises(InputError, match=r"\[pixel-bounds\]"):
            pixel_bounds(config, low, high)
        return
    bounds = pixel_bounds(config, low, high)
    assert 1 <= bounds[0] <= bounds[1]
    assert bounds[0] == low or low is None
    assert bounds[1] == high or high is None
