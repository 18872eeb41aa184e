"""Encoders that several tests share: one recorded, one with every call direct."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ostinato
from ostinato.cli.wiring import load_encoder
from tests.cli.encoders import MODEL, settings


def quiet(done: int, total: int) -> None:
    pass


@pytest.fixture(scope="session")
def recorded() -> Iterator[ostinato.Encoder]:
    encoder = load_encoder(MODEL, settings(), device="cpu", progress=quiet)
    yield encoder
    encoder.close()


@pytest.fixture(scope="session")
def direct() -> Iterator[ostinato.Encoder]:
    off = settings(is_recording_on=False)
    encoder = load_encoder(MODEL, off, device="cpu", progress=quiet)
    yield encoder
    encoder.close()
