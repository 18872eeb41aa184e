"""Makes an environment of its own for the published openai client, so that it chooses its httpx.

python scripts/openai_client_env.py        # prints the path of its python
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("openai==3.57.0",)


def client_python(root: Path = ROOT) -> Path:
    """The python of ``.venv-openai``, made if it is not there.

    Raises ``RuntimeError`` with pip's words where it cannot be installed.
    """
    home = root / ".venv-openai"
    python, done = home / "bin" / "python", home / "complete"
    if not done.is_file():
        venv.create(home, with_pip=False, clear=True)
        command = [sys.executable, "-m", "pip", "--python", str(python)]
        command += ["install", "--quiet", *PACKAGES]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(made.stderr.strip().splitlines()[-1])
        done.touch()
    return python


if __name__ == "__main__":
    try:
        print(client_python())
    except RuntimeError as error:
        sys.exit(f"the openai client cannot be installed: {error}")
