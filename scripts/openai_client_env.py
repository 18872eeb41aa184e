"""Makes environments of their own for the published openai client and for schemathesis.

python scripts/openai_client_env.py        # prints the paths of their pythons
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file too

from scripts.own_env import ROOT, own_python


def client_python(root: Path = ROOT) -> Path:
    """With the openai client. Raises ``RuntimeError`` where it cannot be installed."""
    return own_python("openai", ("openai==3.57.0",), root)


def schemathesis_python(root: Path = ROOT) -> Path:
    """With schemathesis. Raises ``RuntimeError`` where it cannot be installed."""
    return own_python("schemathesis", ("schemathesis==4.32.5",), root)


if __name__ == "__main__":
    try:
        print(client_python(), schemathesis_python(), sep="\n")
    except RuntimeError as error:
        sys.exit(f"cannot be installed: {error}")
