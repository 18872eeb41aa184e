"""Loading and running a tower imports no recording, no transformers and no hub client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ostinato

_PROGRAM = """
import sys
from ostinato.vision.load import load_tower
from ostinato.vision.layout import Layouts, to_tensors
import torch
tower = load_tower("tiny-qwen2.5-vl")
layout = Layouts(tower.config).exact([(1, 4, 4)])
tower(torch.zeros(16, tower.config.patch_width), to_tensors(layout.arrays),
      max_segment=16, max_window=16)
unwanted = ("ostinato.recording", "transformers", "huggingface_hub")
print([name for name in unwanted if name in sys.modules])
"""


def test_a_shipped_tower_needs_torch_and_numpy_only() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(ostinato.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == "[]"
