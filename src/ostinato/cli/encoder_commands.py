"""``ostinato encode``, ``verify`` and ``ladder``: flags in, text or JSON out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli import flags


def load(
    model: str,
    *,
    device: str,
    dtype: str,
    numerics: str,
    quantization: str | None,
    top_patches: int | None,
    ladder_ratio: float,
    is_direct: bool,
    is_quiet: bool,
) -> Any:
    """The encoder that a command's flags ask for, recorded behind a progress bar."""
    from ostinato.cli.config import EncoderSettings, resolve_settings
    from ostinato.cli.device import resolve_device
    from ostinato.cli.progress import progress_bar
    from ostinato.cli.wiring import load_encoder

    encoder = EncoderSettings(
        flags.dtype_of(dtype), numerics, top_patches, ladder_ratio, quantization=quantization
    )
    settings = resolve_settings(device=device, is_recording_on=not is_direct, encoder=encoder)
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    with progress_bar("recording", is_quiet=is_quiet) as progress:
        return load_encoder(model, settings, device=chosen, progress=progress)


def encode(
    files: Annotated[list[str], typer.Argument(metavar="IMAGE|VIDEO ...", help="What to encode.")],
    model: flags.Model,
    out: Annotated[Path | None, typer.Option(help="Write a safetensors file.")] = None,
    as_json: flags.AsJson = False,
    device: flags.Device = "auto",
    dtype: flags.DType = "auto",
    numerics: flags.Numerics = "fast",
    quantization: flags.Quantization = None,
    top_patches: flags.TopPatches = None,
    ladder_ratio: flags.LadderRatio = 1.25,
    disable_cuda_graph: flags.NoGraph = False,
    min_pixels: flags.MinPixels = None,
    max_pixels: flags.MaxPixels = None,
    fps: flags.Fps = None,
) -> None:
    """Encode image and video files and say how each was served.

    A file that cannot be served is named with the rule it breaks; the others are served, and the
    exit status is 1.
    """
    from ostinato.cli import encode as command

    encoder = load(
        model,
        device=device,
        dtype=dtype,
        numerics=numerics,
        quantization=quantization,
        top_patches=top_patches,
        ladder_ratio=ladder_ratio,
        is_direct=disable_cuda_graph,
        is_quiet=as_json,
    )
    given = {"min_pixels": min_pixels, "max_pixels": max_pixels, "fps": fps}
    options = {name: value for name, value in given.items() if value is not None}
    try:
        results, arrays = command.encode_files(encoder, files, options)
    finally:
        encoder.close()
    if out is not None:
        command.write_file(out, results, arrays)
    typer.echo(command.as_json(results) if as_json else "\n".join(map(str, results)))
    raise typer.Exit(1 if any(result.error for result in results) else 0)


def verify(
    model: flags.Model,
    images: Annotated[Path, typer.Option(help="Directory of images and videos.")],
    as_json: flags.AsJson = False,
    min_cosine: Annotated[float, typer.Option(help="Smallest cosine that is good.")] = 0.999,
    device: flags.Device = "auto",
    dtype: flags.DType = "auto",
    numerics: flags.Numerics = "fast",
    quantization: flags.Quantization = None,
    top_patches: flags.TopPatches = None,
    ladder_ratio: flags.LadderRatio = 1.25,
) -> None:
    """Compare recorded with direct calls, on your weights and images; exit status 1 if not good."""
    from ostinato.cli import verify as command

    found = command.find_files(images)
    encoder = load(
        model,
        device=device,
        dtype=dtype,
        numerics=numerics,
        quantization=quantization,
        top_patches=top_patches,
        ladder_ratio=ladder_ratio,
        is_direct=False,
        is_quiet=as_json,
    )
    try:
        verdict = command.verify(encoder, found, min_cosine=min_cosine)
    finally:
        encoder.close()
    typer.echo(verdict.to_json() if as_json else str(verdict))
    raise typer.Exit(0 if verdict.is_good else 1)


def ladder(
    sizes: Annotated[Path, typer.Option(help="One HxW (pixels) or number of patches a line.")],
    model: flags.Model = "tiny-qwen3-vl",
    as_json: flags.AsJson = False,
    top_patches: flags.TopPatches = None,
    ladder_ratio: flags.LadderRatio = 1.25,
) -> None:
    """Say which sizes a traffic wants recorded, how much they pad, and what they cost."""
    from ostinato.cli import ladder as command
    from ostinato.cli.config import TOP_PATCHES
    from ostinato.cli.wiring import tower_and_processing

    tower, processing = tower_and_processing(model)
    traffic = command.read_sizes(sizes, processing.image)
    top = top_patches or TOP_PATCHES["cuda"]
    plans = command.advise(traffic, tower, top=top, ratio=ladder_ratio)
    typer.echo(command.as_json(traffic, plans) if as_json else command.as_text(traffic, plans))
