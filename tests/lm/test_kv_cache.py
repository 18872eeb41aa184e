"""No page is lost or shared wrongly, in any order of taking, naming, reusing and releasing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.lm.contract import Media, Prompt, Span
from ostinato.lm.kv_cache import PagePool, chain_of

STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "extend", "free"]), st.integers(0, 7), st.integers(1, 4)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(1, 12))
def test_every_page_is_free_or_held_by_exactly_its_sequences(
    steps: list[tuple[str, int, int]], num_pages: int
) -> None:
    """A model of it: what each sequence wrote is what stands in its pages until it releases them.

    Sequence k begins with the digests (k % 2, 0), (k % 2, 1), ...: half of them share prefixes.
    """
    pool = PagePool(num_pages, first=3)
    held: dict[int, list[int]] = {}
    content: dict[int, bytes] = {}
    for what, k, count in steps:
        digests = [f"{k % 2}:{i}".encode() for i in range(8)]
        if what == "start" and k not in held:
            reused = pool.reuse(digests[:count])
            assert [content[page] for page in reused] == digests[: len(reused)]
            held[k] = reused
        if what == "extend" and k in held and len(held[k]) + count <= 8:
            before = pool.num_free
            taken = pool.take(count)
            assert (taken is None) == (count > before)
            others = [page for pages in held.values() for page in pages]
            for page in taken or ():
                assert page not in others
                content[page] = digests[len(held[k])]
                held[k].append(page)
                pool.name(page, content[page])
        if what == "free" and k in held:
            pool.release(held.pop(k))
        holders = Counter(page for pages in held.values() for page in pages)
        assert pool.num_free == num_pages - len(holders)
        assert all(3 <= page < 3 + num_pages for page in holders)
        for page, expected in holders.items():
            assert pool.holders(page) == expected
        for k, pages in held.items():
            assert [content[page] for page in pages] == [
                f"{k % 2}:{i}".encode() for i in range(len(pages))
            ]


def test_known_pages_are_given_up_last_and_oldest_first() -> None:
    pool = PagePool(4)
    pages = pool.take(3)
    assert pages is not None
    for page, digest in zip(pages, (b"a", b"b", b"c"), strict=True):
        pool.name(page, digest)
    pool.release(pages)
    assert pool.num_free == 4
    assert pool.take(2) == [3, pages[2]]  # the empty one, then the tail of the chain
    assert pool.reuse([b"a", b"b", b"c"]) == pages[:2]


def prompt(ids: list[int], content: bytes = b"", start: int = 4, first: int = 0) -> Prompt:
    text = Prompt.of_text(ids)
    spans = (Span(start, 4, Media(content, 8, None), first),) if content else ()
    return replace(text, spans=spans)


def test_digests_tell_ids_positions_media_and_what_came_before_apart() -> None:
    ids = list(range(16))
    one = chain_of(prompt(ids, b"x"), 4).digests
    assert len(one) == 4
    assert chain_of(prompt(ids, b"x"), 4).digests == one
    other_image = chain_of(prompt(ids, b"y"), 4).digests
    assert other_image[0] == one[0]
    assert all(a != b for a, b in zip(other_image[1:], one[1:], strict=True))
    assert chain_of(prompt(ids, b"x", first=4), 4).digests[1] != one[1]
    assert chain_of(prompt([9, *ids[1:]], b"x"), 4).digests[3] != one[3]
    moved = replace(prompt(ids, b"x"), positions=prompt(ids).positions + np.int32(1))
    assert chain_of(moved, 4).digests[0] != one[0]
    assert len(chain_of(prompt(ids[:15], b"x"), 4).digests) == 3
