"""A service without a model: doubles the image's values, and can be made to wait or to fail."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from ostinato.serve.service import Reply, Request


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
        self.is_closed = False

    def warm_up(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.may_warm_up.wait(10)
        if self.warm_up_error is not None:
            raise self.warm_up_error

    def serve(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        self.threads.add(threading.current_thread().name)
        self.batches.append(len(requests))
        self.may_serve.wait(10)
        results: list[Reply | Exception] = []
        for request in requests:
            error = request.inputs.get("error")
            image = request.inputs.get("image", np.zeros(1))
            if error is not None:
                results.append(error)
            elif image.shape[:2] == (6, 6):
                results.append(ZeroDivisionError("secret"))
            else:
                doubled = image.astype(np.float32) * 2
                results.append(Reply({"tokens": doubled}, "exact", "stub", {"encode": 4.0}))
        return results

    def snapshot(self) -> Mapping[str, float]:
        return {"recordings": 3.0}

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.is_closed = True
