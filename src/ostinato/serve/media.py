"""The bytes behind a URL of a request: data URLs; files and hosts only where a flag allows them.

Importable without torch. Runs in a worker thread. What is checked is what is read: a path is
resolved before it is compared, and a host is connected to by the name that was compared.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import os
import stat
from pathlib import Path
from urllib.parse import SplitResult, unquote, unquote_to_bytes, urlsplit

from ostinato.errors import InputError
from ostinato.serve.settings import MediaPolicy

Content = bytes | list[bytes]


def read_url(url: str, policy: MediaPolicy) -> Content:
    """What ``url`` holds; several frames for ``data:video/jpeg;base64,F1,F2,...`` (vLLM's form).

    Raises ``InputError`` that names the rule.
    """
    if url[:5].lower() == "data:":
        return read_data_url(url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"[url] {url[:80]!r}: {error}") from None
    if parts.scheme == "file":
        return _read_file(parts, policy)
    if parts.scheme in ("http", "https"):
        return _fetch(parts, policy)
    raise InputError(f"[url] {url[:80]!r} is no data URL (data:image/png;base64,...)")


def read_data_url(url: str) -> Content:
    """The payload of a data URL."""
    header, comma, payload = url.partition(",")
    if not comma:
        raise InputError(f"[data-url] no comma in {header[:60]!r}")
    if not header.lower().endswith(";base64"):
        data = unquote_to_bytes(payload)
    elif header[5:].lower().startswith("video/jpeg"):
        return [_decoded(frame) for frame in payload.split(",")]
    else:
        data = _decoded(payload)
    if not data:
        raise InputError("[empty] 0 bytes hold no image or video")
    return data


def _decoded(payload: str) -> bytes:
    try:
        return base64.b64decode("".join(payload.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"[data-url] base64 payload: {error}") from None


def _read_file(parts: SplitResult, policy: MediaPolicy) -> bytes:
    if policy.directory is None:
        raise InputError("[no-files] this server reads no files (see --allow-files)")
    path = Path(unquote(parts.path))
    try:
        resolved = path.resolve(strict=True)
        is_below = resolved.is_relative_to(policy.directory.resolve())
    except (OSError, ValueError, RuntimeError):
        is_below = False
    if parts.netloc not in ("", "localhost") or not is_below:
        # one answer for what is outside and what is missing: nobody can ask what exists
        raise InputError(f"[no-files] {str(path)[:200]!r} is no file below the allowed directory")
    try:
        with open(os.open(resolved, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"[unreadable-file] {str(path)[:200]!r} is not a regular file")
            return _bounded(file.read(policy.max_bytes + 1), policy)
    except OSError as error:
        raise InputError(f"[unreadable-file] {str(path)[:200]!r}: {error.strerror}") from None


def _fetch(parts: SplitResult, policy: MediaPolicy) -> bytes:
    host = parts.hostname or ""
    named = host if parts.port is None else f"{host}:{parts.port}"
    if named not in policy.hosts:
        raise InputError(f"[no-network] this server does not fetch from {named[:80]!r}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(host, parts.port, timeout=policy.timeout_s)
    try:
        target = parts.path or "/"
        connection.request("GET", f"{target}?{parts.query}" if parts.query else target)
        response = connection.getresponse()
        if response.status != 200:
            raise InputError(f"[fetch] {named} answered {response.status}, expected 200")
        return _bounded(response.read(policy.max_bytes + 1), policy)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"[fetch] {named}: {type(error).__name__}") from None
    finally:
        connection.close()


def _bounded(data: bytes, policy: MediaPolicy) -> bytes:
    if not data:
        raise InputError("[empty] 0 bytes hold no image or video")
    if len(data) > policy.max_bytes:
        raise InputError(f"[max-encoded-bytes] more than {policy.max_bytes} bytes")
    return data
