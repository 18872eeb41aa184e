"""Environments of their own for published programs that judge our servers and need not suit us."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def own_python(name: str, packages: Sequence[str], root: Path = ROOT) -> Path:
    """The python of ``.venv-NAME`` with ``packages``, made if it is not there.

    Raises ``RuntimeError`` with pip's words where it cannot be installed.
    """
    home = root / f".venv-{name}"
    python, done = home / "bin" / "python", home / "complete"
    if not done.is_file():
        venv.create(home, with_pip=False, clear=True)
        command = [sys.executable, "-m", "pip", "--python", str(python)]
        command += ["install", "--quiet", *packages]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(made.stderr.strip().splitlines()[-1])
        done.touch()
    return python
