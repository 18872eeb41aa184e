"""What openpi's server does, with our codec and a stub: a plain ``websockets`` server that computes
in its coroutine. Prints its port; ends with standard input.

    python -m bench.peers.plain_websockets STUB_MS
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Any

import numpy as np
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from ostinato.serve.openpi.codec import packb, unpackb


async def main(stub_ms: float) -> None:
    actions = np.zeros((8, 8), np.float32)

    async def answer(connection: Any) -> None:
        await connection.send(packb({}))
        with contextlib.suppress(ConnectionClosed):
            while True:
                unpackb(await connection.recv())
                began_s = time.perf_counter()
                if stub_ms:
                    time.sleep(stub_ms / 1e3)
                timing = {"infer_ms": (time.perf_counter() - began_s) * 1e3}
                await connection.send(packb({"actions": actions, "server_timing": timing}))

    async with serve(answer, "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
