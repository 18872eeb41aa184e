"""Pages of a paged cache: who holds which, and which hold a known prefix. Plain bookkeeping.

A page is *held* by one or more sequences, or free. A full page whose content is known keeps it
after it is freed, until its room is needed: least recently freed first. Content is named by a
chained digest, so that a page is found only behind the very pages it was computed behind.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from ostinato.lm.contract import Prompt, Span


class PagePool:
    """Pages ``first`` to ``first + num_pages``. Used by one thread."""

    def __init__(self, num_pages: int, *, first: int = 0) -> None:
        self.num_pages = num_pages
        self._holders: dict[int, int] = {}
        self._empty = list(range(first + num_pages - 1, first - 1, -1))
        self._cached: OrderedDict[int, bytes] = OrderedDict()  # free, content known; oldest first
        self._digests: dict[int, bytes] = {}
        self._pages: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Pages that can be taken, those with known content among them."""
        return len(self._empty) + len(self._cached)

    def take(self, count: int) -> list[int] | None:
        """``count`` pages for one holder, or ``None`` (and nothing taken) if there are too few."""
        if count > self.num_free:
            return None
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._empty:
            page = self._empty.pop()
        else:
            page, digest = self._cached.popitem(last=False)
            del self._pages[digest], self._digests[page]
        self._holders[page] = 1
        return page

    def reuse(self, digests: Iterable[bytes]) -> list[int]:
        """The pages of the longest known prefix, each with one more holder."""
        found: list[int] = []
        for digest in digests:
            page = self._pages.get(digest)
            if page is None:
                break
            self._cached.pop(page, None)
            self._holders[page] = self._holders.get(page, 0) + 1
            found.append(page)
        return found

    def name(self, page: int, digest: bytes) -> None:
        """Tell what a held page holds, once all of it is written; the first of equals is kept."""
        if digest not in self._pages and page not in self._digests:
            self._pages[digest] = page
            self._digests[page] = digest

    def release(self, pages: Sequence[int]) -> None:
        """One holder fewer for each. Later pages go first: a prefix outlives what follows it."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            digest = self._digests.get(page)
            if digest is None:
                self._empty.append(page)
            else:
                self._cached[page] = digest

    def holders(self, page: int) -> int:
        """How many sequences hold a page."""
        return self._holders.get(page, 0)


class Chain:
    """Digests of a sequence's full pages, made one after the other.

    A digest covers ids, positions and, for rows of media, their content and place: two images in
    equal placeholders never share a page.
    """

    def __init__(self, spans: Sequence[Span], page_size: int) -> None:
        self._spans = spans
        self._page_size = page_size
        self.digests: list[bytes] = []

    def extend(self, token_ids: Sequence[int], positions: np.ndarray) -> None:
        """Name every full page of the tokens so far; ``positions`` is (3, tokens)."""
        size = self._page_size
        for page in range(len(self.digests), len(token_ids) // size):
            start, end = page * size, (page + 1) * size
            digest = hashlib.sha256(self.digests[-1] if self.digests else b"")
            digest.update(np.asarray(token_ids[start:end], np.int64).tobytes())
            digest.update(np.ascontiguousarray(positions[:, start:end], np.int32).tobytes())
            for span in self._spans:
                if span.start < end and start < span.start + span.length:
                    place = (span.start - start, span.length, span.first)
                    digest.update(span.media.content + repr(place).encode())
            self.digests.append(digest.digest())


def chain_of(prompt: Prompt, page_size: int) -> Chain:
    """The chain of a prompt's full pages."""
    chain = Chain(prompt.spans, page_size)
    chain.extend(prompt.token_ids, prompt.positions)
    return chain
