"""``ostinato serve``: flags of a server, and SGLang's."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import flags
from ostinato.errors import ConfigError
from ostinato.version import installed_version

if TYPE_CHECKING:
    from ostinato.cli.config import Settings
    from ostinato.cli.sglang_chat_flags import ChatFlags
    from ostinato.serve.openpi.settings import RobotSettings

POLICY_FLAGS = (
    *("rename", "resize_cameras", "action_bounds", "clamp_actions", "keep_warm"),
    *("record", "record_bytes", "variant"),
)
ENCODER_FLAGS = (
    *("encoder_only", "top_patches", "ladder_ratio", "numerics", "cache_bytes", "max_batch"),
    *("quantization",),
    *("max_items", "max_image_pixels", "workers", "allow_files", "allow_hosts"),
)
NOT_CHATS = (*POLICY_FLAGS, "cache_bytes", "max_batch", "quantization")
ARTICLES = {"encoder": "an", "policy": "a", "chat": "a"}
OTHERS = {"encoder": POLICY_FLAGS, "policy": ENCODER_FLAGS, "chat": NOT_CHATS}
"""Flags that mean nothing for a kind of model."""
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def serve(
    context: typer.Context,
    model: flags.Model,
    device: flags.Device = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(help="Port; 0 for any free one. 30000, or 8000 for policies."),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Key that clients must send.")] = None,
    encoder_only: Annotated[
        bool, typer.Option("--encoder-only", help="Serve the vision encoder alone.")
    ] = False,
    served_model_name: Annotated[
        str | None, typer.Option(help="The name that clients use.")
    ] = None,
    dtype: flags.DType = "auto",
    numerics: flags.Numerics = "fast",
    quantization: flags.Quantization = None,
    disable_cuda_graph: flags.NoGraph = False,
    top_patches: flags.TopPatches = None,
    ladder_ratio: flags.LadderRatio = 1.25,
    budget_bytes: Annotated[
        int | None, typer.Option(help="All recordings together; an eighth of the memory.")
    ] = None,
    cache_bytes: Annotated[
        int, typer.Option(help="Keep results of equal content up to this size; 0 keeps none.")
    ] = 0,
    max_batch: Annotated[
        int, typer.Option(help="Most images and videos that share one turn of the device.")
    ] = 32,
    max_queued: Annotated[
        int,
        typer.Option("--max-queued", "--max-queued-requests", help="Most that may wait."),
    ] = 256,
    max_items: Annotated[int, typer.Option(help="Most images and videos of one request.")] = 64,
    max_body_bytes: Annotated[int, typer.Option(help="Largest body of a request.")] = 64 * 2**20,
    max_image_pixels: Annotated[
        int, typer.Option(help="Largest image or frame, in pixels, before it is resized.")
    ] = 89_478_485,
    workers: Annotated[int, typer.Option(help="Threads that decode and resize.")] = 2,
    allow_files: Annotated[
        Path | None, typer.Option(help="Directory from which file:// URLs are read.")
    ] = None,
    allow_hosts: Annotated[
        str, typer.Option(help="Host names, comma between, from which http(s):// URLs are fetched.")
    ] = "",
    rename: Annotated[
        list[str] | None,
        typer.Option(help="Policies: SENT=DECLARED, a name that robots send; may be repeated."),
    ] = None,
    resize_cameras: Annotated[
        bool, typer.Option("--resize-cameras", help="Policies: take cameras of other sizes.")
    ] = False,
    action_bounds: Annotated[
        str | None,
        typer.Option(help="Policies: LOW:HIGH for all dimensions, or one each, comma between."),
    ] = None,
    clamp_actions: Annotated[
        bool, typer.Option("--clamp-actions", help="Policies: clamp to the bounds, and say so.")
    ] = False,
    keep_warm: Annotated[
        float, typer.Option(help="Policies: seconds of silence before a call of our own; 0 never.")
    ] = 10.0,
    record: Annotated[
        Path | None, typer.Option(help="Policies: directory for the newest requests and replies.")
    ] = None,
    record_bytes: Annotated[int, typer.Option(help="Policies: its largest size.")] = 2**30,
    variant: Annotated[
        str, typer.Option(help="Policies: the package's folder below variants/; base is its root.")
    ] = "base",
    skip_server_warmup: Annotated[
        bool, typer.Option("--skip-server-warmup", help="Do not greet the fresh server.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Leave after the greeting.")] = False,
) -> None:
    """Serve a chat with images (OpenAI's routes), its vision encoder alone (POST /pooling), or a
    policy to robots (websocket, POST).
    """
    from ostinato.cli.chat_wiring import is_chat
    from ostinato.cli.config import PORTS, EncoderSettings, resolve_robots, resolve_settings
    from ostinato.cli.device import resolve_device
    from ostinato.cli.policy_wiring import is_policy
    from ostinato.cli.sglang_chat_flags import ChatFlags, read_chat_flags
    from ostinato.cli.sglang_flags import check_unknown

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    kind = "policy" if is_policy(model, variant) else "encoder"
    if kind == "encoder" and not encoder_only and is_chat(model):
        kind = "chat"
    chat = ChatFlags()
    if kind == "chat":
        chat = read_chat_flags(context.args, typer.echo)
    else:
        check_unknown(context.args, typer.echo)
    refuse_flags(context, kind)
    encoder = EncoderSettings(
        flags.dtype_of(dtype),
        numerics,
        top_patches,
        ladder_ratio,
        budget_bytes,
        workers,
        max_image_pixels,
        quantization,
    )
    settings = resolve_settings(
        device=device,
        host=host,
        port=PORTS[kind] if port is None else port,
        api_key=api_key,
        is_recording_on=not disable_cuda_graph,
        served_name=served_model_name,
        cache_bytes=cache_bytes,
        allow_files=allow_files,
        allow_hosts=[name.strip() for name in allow_hosts.split(",") if name.strip()],
        encoder=encoder,
        max_batch=max_batch,
        max_queued=max_queued,
        max_items=max_items,
        max_body_bytes=max_body_bytes,
    )
    robots = resolve_robots(
        rename=rename or (),
        resize_cameras=resize_cameras,
        keep_warm_s=keep_warm,
        record=record,
        record_bytes=record_bytes,
        action_bounds=action_bounds,
        clamp_actions=clamp_actions,
    )
    check_address(settings.server.host, settings.server.port)
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    part = ", the vision encoder alone" if kind == "encoder" and not encoder_only else ""
    typer.echo(f"ostinato {installed_version()}: {model}{part} on {chosen}")
    is_greeting = not skip_server_warmup
    if kind == "policy":
        status = _run_policy(model, variant, settings, robots, chosen, once, is_greeting)
    elif kind == "chat":
        status = _run_chat(model, settings, chat, chosen, once, is_greeting)
    else:
        status = _run_encoder(model, settings, chosen, once, is_greeting)
    raise typer.Exit(status)


def check_address(host: str, port: int) -> None:
    """``ConfigError`` where nobody can listen, before weights are loaded for it."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def refuse_flags(context: typer.Context, kind: str) -> None:
    """``ConfigError`` for a flag that was given and means nothing for this kind of model."""
    for name in OTHERS[kind]:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} was given; expected no such flag for {ARTICLES[kind]} {kind}"
            )


def _run_encoder(
    model: str, settings: Settings, device: str, is_once: bool, is_greeting: bool
) -> int:
    from ostinato.cli.progress import progress_bar
    from ostinato.cli.run_server import run_server
    from ostinato.cli.wiring import load_service

    with progress_bar("recording") as progress:
        service = load_service(model, settings, device=device, progress=progress)
        return run_server(
            service, settings.server, is_once=is_once, is_greeting=is_greeting, echo=typer.echo
        )


def _run_chat(
    model: str,
    settings: Settings,
    chat: ChatFlags,
    device: str,
    is_once: bool,
    is_greeting: bool,
) -> int:
    from ostinato.cli.chat_greeting import greet_chat
    from ostinato.cli.chat_wiring import load_chat_service
    from ostinato.cli.run_server import run_app
    from ostinato.serve.openai.app import build_chat_app

    service = load_chat_service(model, settings, chat, device=device)
    return run_app(
        build_chat_app(service, settings.server),
        settings.server,
        name=service.name,
        is_once=is_once,
        echo=typer.echo,
        greeting=greet_chat if is_greeting else None,
    )


def _run_policy(
    model: str,
    variant: str,
    settings: Settings,
    robots: RobotSettings,
    device: str,
    is_once: bool,
    is_greeting: bool,
) -> int:
    from ostinato.cli.policy_greeting import greet_policy
    from ostinato.cli.policy_wiring import load_policy_service
    from ostinato.cli.run_server import run_app
    from ostinato.serve.openpi.app import build_policy_app

    service = load_policy_service(model, settings, device=device, variant=variant)
    return run_app(
        build_policy_app(service, settings.server, robots),
        settings.server,
        name=service.name,
        is_once=is_once,
        echo=typer.echo,
        greeting=greet_policy if is_greeting else None,
    )
