"""A service without a model: the bytes of an item are its embeddings, four to a row; it can be
made to wait or to fail.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ostinato.errors import InputError
from ostinato.serve.service import Reply, Request


def matrix_of(content: bytes) -> np.ndarray:
    """What the stub makes of a content, four bytes a row."""
    return np.frombuffer(content, np.uint8).reshape(-1, 4).astype(np.float32) / 3


class StubService:
    name = "stub"

    def __init__(self) -> None:
        self.may_warm_up = threading.Event()
        self.may_warm_up.set()
        self.may_serve = threading.Event()
        self.may_serve.set()
        self.warm_up_error: Exception | None = None
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self.prepare_threads: set[str] = set()
        self.options: list[Mapping[str, Any]] = []
        self.is_closed = False

    def describe(self) -> Mapping[str, Any]:
        return {"patch_size": 16}

    def warm_up(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.may_warm_up.wait(10)
        if self.warm_up_error is not None:
            raise self.warm_up_error

    def prepare(self, requests: Sequence[Request]) -> list[Request | Reply | Exception]:
        self.prepare_threads.add(threading.current_thread().name)
        return [self._prepare(request) for request in requests]

    def _prepare(self, request: Request) -> Request | Reply | Exception:
        content = request.inputs["content"]
        self.options.append(request.inputs["options"])
        if content.startswith(b"broken"):
            return InputError("[broken-image] PNG data: cut off")
        if content.startswith(b"prepare!"):
            return ZeroDivisionError("secret")
        if content.startswith(b"held"):
            return Reply({"embeddings": matrix_of(content)}, "cache", "held")
        return Request({"image": np.frombuffer(content, np.uint8), "kind": request.inputs["kind"]})

    def serve(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        self.threads.add(threading.current_thread().name)
        self.batches.append(len(requests))
        self.may_serve.wait(10)
        return [self._serve(request) for request in requests]

    def _serve(self, request: Request) -> Reply | Exception:
        error = request.inputs.get("error")
        if isinstance(error, Exception):
            return error
        content = request.inputs["image"].tobytes()
        if content.startswith(b"fail"):
            return ZeroDivisionError("secret")
        main = matrix_of(content)
        outputs = {"embeddings": main, "deepstack.0": main + 1}
        facts = {"kind": request.inputs.get("kind"), "grid_thw": [1, len(main), 4]}
        stages = {"decode": 1.0, "resize": 2.0, "pack": 3.0, "upload": 4.0, "replay": 5.0}
        return Reply(outputs, "exact", "stub", stages, facts)

    def snapshot(self) -> Mapping[str, float]:
        return {"recordings": 3.0}

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.is_closed = True
