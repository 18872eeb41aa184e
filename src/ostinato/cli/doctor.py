"""``ostinato doctor``: finds a callable or loads a tower, asks the doctor.

The rules themselves live in ``ostinato.recording.doctor``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ostinato.errors import ConfigError
from ostinato.recording.doctor import MachineReport, Report, examine, machine, resolve
from ostinato.recording.doctor_resolve import calls_of, find_callable


def see_current_folder() -> None:
    """Let modules of the current folder be found."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def examine_callable(target: str, inputs: str | None) -> Report:
    """The report on ``package.module:callable``, with the examples beside it or those given."""
    see_current_folder()
    if inputs is not None:
        return examine(find_callable(target), calls_of(find_callable(inputs), f"{inputs}()"))
    found = resolve(target)
    return examine(found.fn, found.calls)


def examine_model(model: str) -> Report:
    """The report on a vision tower, with an image and a short video as example."""
    import torch

    from ostinato.vision.layout import Layouts, to_tensors
    from ostinato.vision.load import load_tower

    tower = load_tower(model).eval()
    side = tower.config.merge_size
    layout = Layouts(tower.config).exact([(1, 4 * side, 3 * side), (2, 2 * side, 2 * side)])
    dtype = next(tower.parameters()).dtype
    patches = torch.randn(layout.num_patches, tower.config.patch_width).to(dtype)
    bounds = {"max_segment": layout.size.max_segment, "max_window": layout.size.max_window}
    with torch.inference_mode():
        return examine(tower, [((patches, to_tensors(layout.arrays)), bounds)])


def examine_machine(cuda_visible_devices: str | None) -> MachineReport:
    """The report on this machine."""
    return machine(cuda_visible_devices=cuda_visible_devices)


def only_one(*subjects: object) -> None:
    """Refuse none of them, and more than one."""
    if sum(bool(subject) for subject in subjects) != 1:
        raise ConfigError("doctor wants one of package.module:callable, --model and --machine")
