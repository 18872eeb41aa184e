"""The content cache: what is the same, who computes, what is kept."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ostinato.errors import ConfigError
from ostinato.vision.content_cache import ContentCache, ContentKey, content_key
from ostinato.vision.preprocess import ImageOptions, VideoOptions


def key(content: object, options: object = ImageOptions(), model: str = "m") -> ContentKey:
    return content_key(content, kind="image", options=options, model=model)


def test_keys_tell_apart_what_is_not_the_same() -> None:
    same_bytes = np.arange(72, dtype=np.uint8)
    image = Image.frombytes("RGB", (6, 4), same_bytes.tobytes())
    palette = Image.frombytes("P", (6, 4), same_bytes[:24].tobytes())
    other_palette = palette.copy()
    palette.putpalette(bytes(range(256)) * 3)
    other_palette.putpalette(bytes(range(255, -1, -1)) * 3)
    different = [
        key(image),
        key(Image.frombytes("RGB", (4, 6), same_bytes.tobytes())),
        key(Image.frombytes("YCbCr", (6, 4), same_bytes.tobytes())),
        key(Image.frombytes("L", (9, 8), same_bytes.tobytes())),
        key(palette),
        key(other_palette),
        key(same_bytes.tobytes()),
        key(same_bytes),
        key(same_bytes.reshape(4, 6, 3)),
        key(same_bytes.reshape(6, 4, 3)),
        key(same_bytes.view(np.int8).reshape(6, 4, 3)),
        key(same_bytes.view(np.float32)),
        key(same_bytes.view(np.int32)),
        key(same_bytes.view(">i4")),
        key([same_bytes[:36], same_bytes[36:]]),
        key([same_bytes[:35], same_bytes[35:]]),
        key(image, ImageOptions(max_pixels=5_000)),
        key(image, ImageOptions(max_pixels=5_001)),
        key(image, ImageOptions(min_pixels=5_000)),
        key(image, VideoOptions()),
        key(image, model="other weights"),
        content_key(image, kind="video", options=ImageOptions(), model="m"),
    ]
    assert len(set(different)) == len(different)
    assert key(image) == key(image.copy())
    assert key(same_bytes.reshape(4, 6, 3)) == key(np.asfortranarray(same_bytes.reshape(4, 6, 3)))


def test_no_key_for_what_has_no_content() -> None:
    for content in ("path.png", 7, None, np.array([None])):
        with pytest.raises(TypeError):
            key(content)


def test_six_by_four_and_four_by_six_do_not_share_a_result() -> None:
    cache: ContentCache[tuple[int, int]] = ContentCache(100, lambda _: 1)
    for size in ((6, 4), (4, 6)):
        image = Image.frombytes("L", size, bytes(range(24)))

        def compute(image: Image.Image = image) -> tuple[int, int]:
            return image.size

        assert cache.get(key(image), compute) == size
    assert cache.stats().num_misses == 2


def refuse_to_compute() -> bytes:
    raise AssertionError("computed twice")


def test_single_flight() -> None:
    cache: ContentCache[bytes] = ContentCache(100, len)
    started, go = threading.Event(), threading.Event()

    def compute() -> bytes:
        started.set()
        assert go.wait(10)
        return b"value"

    with ThreadPoolExecutor(16) as pool:
        first = pool.submit(cache.get, "key", compute)
        assert started.wait(10)
        others = [pool.submit(cache.get, "key", refuse_to_compute) for _ in range(15)]
        wait_until(lambda: cache.stats().num_joined == 15)
        go.set()
        values = [future.result(10) for future in (first, *others)]
    assert all(value is values[0] for value in values)
    stats = cache.stats()
    assert (stats.num_misses, stats.num_joined, stats.num_entries) == (1, 15, 1)
    assert cache.get("key", refuse_to_compute) is values[0]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def fail_while_others_wait(
    failure: BaseException, num_waiters: int
) -> tuple[ContentCache[bytes], list[object], int]:
    """One computation raises ``failure`` while others wait; their outcomes, and recomputations."""
    cache: ContentCache[bytes] = ContentCache(100, len)
    started, go = threading.Event(), threading.Event()
    num_again = []

    def fail() -> bytes:
        started.set()
        assert go.wait(10)
        raise failure

    def again() -> bytes:
        num_again.append(1)
        return b"second"

    def ask(compute: Callable[[], bytes]) -> object:
        try:
            return cache.get("key", compute)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(num_waiters + 1) as pool:
        first = pool.submit(ask, fail)
        assert started.wait(10)
        others = [pool.submit(ask, again) for _ in range(num_waiters)]
        wait_until(lambda: cache.stats().num_joined == num_waiters)
        go.set()
        assert first.result(10) is failure
        return cache, [future.result(10) for future in others], len(num_again)


def test_waiters_of_a_failed_computation_get_its_error() -> None:
    failure = ValueError("broken image")
    cache, outcomes, num_again = fail_while_others_wait(failure, 5)
    assert outcomes == [failure] * 5
    assert num_again == 0
    assert cache.get("key", lambda: b"later") == b"later"  # a failure is not kept


@pytest.mark.parametrize(
    "failure",
    [asyncio.CancelledError(), concurrent.futures.CancelledError(), KeyboardInterrupt()],
)
def test_waiters_of_a_cancelled_computation_compute_again(failure: BaseException) -> None:
    _, outcomes, num_again = fail_while_others_wait(failure, 5)
    assert outcomes == [b"second"] * 5
    assert num_again == 1


def test_a_size_that_cannot_be_told_leaves_no_waiter_behind() -> None:
    cache: ContentCache[object] = ContentCache(10, len)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cache.get("key", lambda: 7)
    assert cache.get("key", lambda: b"fits") == b"fits"


def test_a_computation_that_asks_for_itself_is_an_error() -> None:
    cache: ContentCache[bytes] = ContentCache(10, len)
    with pytest.raises(RuntimeError, match="waits for itself"):
        cache.get("key", lambda: cache.get("key", lambda: b"x"))
    assert cache.get("key", lambda: b"y") == b"y"


def test_the_least_recently_used_goes_first() -> None:
    cache: ContentCache[bytes] = ContentCache(10, len)
    for name in ("a", "b"):
        cache.get(name, lambda: b"12345")
    cache.get("a", refuse_to_compute)
    cache.get("c", lambda: b"1234")
    assert cache.peek("b") is None
    assert cache.peek("a") == b"12345"
    assert cache.peek("c") == b"1234"
    stats = cache.stats()
    assert (stats.num_bytes, stats.num_entries, stats.num_evicted) == (9, 2, 1)


def test_an_oversized_entry_is_served_and_evicts_nothing() -> None:
    cache: ContentCache[bytes] = ContentCache(10, len)
    cache.get("small", lambda: b"12345")
    assert cache.get("large", lambda: b"12345678901") == b"12345678901"
    assert cache.peek("large") is None
    assert cache.peek("small") == b"12345"
    assert cache.stats().num_oversized == 1


def test_nothing_is_kept_with_no_bytes() -> None:
    cache: ContentCache[bytes] = ContentCache(0, len)
    assert cache.get("key", lambda: b"1") == b"1"
    assert cache.get("key", lambda: b"2") == b"2"
    with pytest.raises(ConfigError, match="got -1"):
        ContentCache(-1, len)


def test_clear() -> None:
    cache: ContentCache[bytes] = ContentCache(10, len)
    cache.get("key", lambda: b"1")
    cache.clear()
    assert (cache.stats().num_bytes, cache.stats().num_entries) == (0, 0)
    assert cache.get("key", lambda: b"2") == b"2"


@settings(max_examples=50, deadline=None)
@given(
    max_bytes=st.integers(0, 30),
    requests=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=60),
)
def test_the_bound_holds_and_answers_are_right(
    max_bytes: int, requests: list[tuple[int, int]]
) -> None:
    cache: ContentCache[bytes] = ContentCache(max_bytes, len)
    for name, size in requests:
        expected = bytes([name]) * size
        assert cache.get((name, size), lambda expected=expected: expected) == expected
        stats = cache.stats()
        assert stats.num_bytes <= max_bytes
        held = [cache.peek(k) for k in {*requests}]
        assert stats.num_bytes == sum(len(value) for value in held if value is not None)


def test_many_threads_under_a_small_bound() -> None:
    cache: ContentCache[bytes] = ContentCache(40, len)

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for name in random.integers(0, 12, 400):
            expected = bytes([int(name)]) * 7
            assert cache.get(int(name), lambda expected=expected: expected) == expected

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    stats = cache.stats()
    assert stats.num_bytes == 7 * stats.num_entries <= 40
    assert stats.num_hits + stats.num_misses + stats.num_joined >= 8 * 400
