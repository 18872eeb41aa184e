"""Makes an environment of its own for the published openpi-client: it wants an older numpy than we.

python scripts/openpi_client_env.py        # prints the path of its python
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file too

from scripts.own_env import ROOT, own_python

PACKAGES = ("openpi-client==0.1.2", "typing_extensions")  # the second is imported, not declared


def client_python(root: Path = ROOT) -> Path:
    """The python of ``.venv-openpi``, made if it is not there.

    Raises ``RuntimeError`` with pip's words where it cannot be installed.
    """
    return own_python("openpi", PACKAGES, root)


if __name__ == "__main__":
    try:
        print(client_python())
    except RuntimeError as error:
        sys.exit(f"openpi-client cannot be installed: {error}")
