"""Callables that the doctor's command is pointed at."""

from __future__ import annotations


def add(a: int, b: int = 0) -> int:
    return a + b


def two_inputs() -> tuple[int, int]:
    return 2, 3


def named_inputs() -> dict[str, int]:
    return {"a": 2, "b": 5}


def one_input() -> int:
    return 7


class Holder:
    @staticmethod
    def nested(a: int) -> int:
        return a
