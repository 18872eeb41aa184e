"""Clients that leave before their reply: what was done for them stops at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


class ClientLeft(Exception):
    """Nobody is there to read the reply."""


async def until_left(request: Request) -> None:
    """Return when the client has gone; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, or ``ClientLeft`` as soon as the client leaves; then ``work`` is
    cancelled and has cleaned up.
    """
    works = asyncio.ensure_future(work)
    leaves = asyncio.ensure_future(until_left(request))
    try:
        await asyncio.wait({works, leaves}, return_when=asyncio.FIRST_COMPLETED)
        if not works.done():
            raise ClientLeft
        return works.result()
    finally:
        works.cancel()
        leaves.cancel()
        await asyncio.wait({works, leaves})
