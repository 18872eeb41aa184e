"""Flags that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Option("--model", "--model-path", help="Checkpoint directory, hub name or tiny model."),
]
Device = Annotated[str, typer.Option(help="auto, cuda or cpu.")]
DType = Annotated[str, typer.Option(help="auto (as stored), float32, float16 or bfloat16.")]
Numerics = Annotated[
    str,
    typer.Option(
        help="fast; reference: bit-exact operators only; invariant: answers do not depend on what "
        "else is served."
    ),
]
Quantization = Annotated[
    str | None, typer.Option(help="fp8: E4M3 linear layers, rounded at load. As stored without.")
]
TopPatches = Annotated[
    int | None, typer.Option(help="Largest recorded size; larger inputs are served directly.")
]
LadderRatio = Annotated[float, typer.Option(help="Largest step between recorded sizes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoGraph = Annotated[
    bool, typer.Option("--disable-cuda-graph", help="Record nothing: every call is direct.")
]
MinPixels = Annotated[int | None, typer.Option(help="Enlarge images below this many pixels.")]
MaxPixels = Annotated[int | None, typer.Option(help="Shrink images above this many pixels.")]
Fps = Annotated[float | None, typer.Option(help="Frames of a video to look at per second.")]

DTYPE_NAMES = {"auto": None, "half": "float16", "float": "float32"}


def dtype_of(name: str) -> str | None:
    """``None`` for as stored; SGLang's short names are known."""
    return DTYPE_NAMES.get(name, name)
