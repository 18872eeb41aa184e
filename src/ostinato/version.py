"""The installed version of this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """As installed; "unknown" where the source is run without being installed."""
    try:
        return version("ostinato")
    except PackageNotFoundError:
        return "unknown"
