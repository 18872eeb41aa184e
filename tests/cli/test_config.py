"""Flags and environment to settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ostinato.cli.config import EncoderSettings, read_switch, resolve_settings
from ostinato.errors import ConfigError


def test_defaults_listen_on_loopback_with_recordings_on() -> None:
    settings = resolve_settings(environ={})
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 30000)
    assert (settings.server.api_key, settings.device) == (None, "auto")
    assert settings.is_recording_on
    assert settings.cuda_visible_devices is None


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve_settings(environ={}).device = "cpu"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("environ", "is_on"),
    [
        ({}, True),
        ({"OSTINATO_VIT_CUDA_GRAPH": "0"}, False),
        ({"SGLANG_VIT_ENABLE_CUDA_GRAPH": "0"}, False),
        ({"SGLANG_VIT_ENABLE_CUDA_GRAPH": "false"}, False),
        ({"OSTINATO_VIT_CUDA_GRAPH": "1", "SGLANG_VIT_ENABLE_CUDA_GRAPH": "0"}, True),
        ({"OSTINATO_VIT_CUDA_GRAPH": "0", "SGLANG_VIT_ENABLE_CUDA_GRAPH": "1"}, False),
    ],
)
def test_our_switch_decides_before_the_peers(environ: dict[str, str], is_on: bool) -> None:
    assert read_switch(environ) is is_on


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"environ": {"OSTINATO_VIT_CUDA_GRAPH": "yes"}}, "'yes': expected 0 or 1"),
        ({"device": "tpu", "environ": {}}, "device 'tpu': expected one of auto, cuda, cpu"),
        ({"port": 65536, "environ": {}}, "port 65536: expected 0"),
        ({"cache_bytes": -1, "environ": {}}, "cache-bytes -1: expected 0 to"),
        ({"max_items": 0, "environ": {}}, "max-items 0: expected 1 to"),
        ({"allow_files": Path("/missing"), "environ": {}}, "'/missing' is no directory"),
        (
            {"encoder": EncoderSettings(dtype="int8"), "environ": {}},
            "dtype 'int8': expected one of",
        ),
        ({"encoder": EncoderSettings(top_patches=0), "environ": {}}, "top-patches 0: expected 1"),
    ],
)
def test_a_wrong_value_is_named(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_settings(**arguments)


def test_the_flag_wins_over_the_environment() -> None:
    environ = {"OSTINATO_API_KEY": "env", "CUDA_VISIBLE_DEVICES": "1"}
    assert resolve_settings(environ=environ).server.api_key == "env"
    assert resolve_settings(api_key="flag", environ=environ).server.api_key == "flag"
    assert resolve_settings(environ=environ).cuda_visible_devices == "1"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_API_KEY", "from the process")
    assert resolve_settings().server.api_key == "from the process"


def test_by_default_nothing_is_read_and_nothing_is_kept() -> None:
    settings = resolve_settings(environ={})
    assert (settings.server.media.directory, settings.server.media.hosts) == (None, frozenset())
    assert settings.cache_bytes == 0


def test_a_flag_turns_recordings_off_and_the_environment_too() -> None:
    assert not resolve_settings(environ={}, is_recording_on=False).is_recording_on
    assert not resolve_settings(environ={"OSTINATO_VIT_CUDA_GRAPH": "0"}).is_recording_on


def test_the_ladders_top_goes_by_device_unless_given() -> None:
    assert EncoderSettings().top_patches_on("cuda") == 16_384
    assert EncoderSettings().top_patches_on("cpu") < 16_384
    assert EncoderSettings(top_patches=99).top_patches_on("cuda") == 99
