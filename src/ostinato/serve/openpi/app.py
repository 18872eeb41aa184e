"""Builds the application around a policy. No global state: two apps share nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from fastapi import FastAPI

from ostinato.serve.app import assemble
from ostinato.serve.device_thread import DeviceThread
from ostinato.serve.metrics import Metrics
from ostinato.serve.models import models_router
from ostinato.serve.openpi.codec import CodecLimits
from ostinato.serve.openpi.contract import PolicyService
from ostinato.serve.openpi.desk import Desk
from ostinato.serve.openpi.metadata import check_settings
from ostinato.serve.openpi.metrics import RobotMetrics
from ostinato.serve.openpi.records import Recorder
from ostinato.serve.openpi.routes import actions_router
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.openpi.sockets import sockets_router
from ostinato.serve.openpi.turns import Turns
from ostinato.serve.settings import ServerSettings


def build_policy_app(
    service: PolicyService, settings: ServerSettings, robots: RobotSettings
) -> FastAPI:
    """The application; its threads start and stop with it (``app.state.device``).

    Raises ``ConfigError`` for a directory that cannot hold records, and for bounds and names that
    do not fit the policy.
    """
    check_settings(service, robots)
    metrics = Metrics(service)
    robot_metrics = RobotMetrics(metrics)

    def keep_warm() -> None:
        service.keep_warm()
        robot_metrics.count_warming()

    device = DeviceThread(
        service,
        max_queued=settings.max_queued,
        max_queued_bytes=settings.max_queued_bytes,
        max_batch=1,  # observations of two robots are never joined
        on_batch=metrics.count_batch,
        queue=Turns(),
        is_open_early=True,  # a robot that comes during the warm-up waits; its pings are answered
        idle_s=robots.keep_warm_s or None,
        on_idle=keep_warm,
    )
    metrics.watch(device)
    workers = ThreadPoolExecutor(settings.num_workers, thread_name_prefix="ostinato-request")
    recorder = None
    if robots.record is not None:
        recorder = Recorder(
            robots.record,
            robots.record_bytes,
            server=recorded_settings(service, robots),
            on_drop=robot_metrics.dropped_records.inc,
        )
    desk = Desk(
        service,
        device,
        robot_metrics,
        workers,
        robots=robots,
        limits=CodecLimits(max_bytes=settings.max_body_bytes),
        recorder=recorder,
    )
    routers = [
        models_router(service),
        actions_router(desk),
        sockets_router(desk, robots.max_in_flight),
    ]
    app = assemble(
        settings,
        metrics,
        device,
        workers,
        routers,
        on_start=recorder.start if recorder else None,
        on_stop=recorder.stop if recorder else None,
    )
    app.state.desk = desk
    return app


def recorded_settings(service: PolicyService, robots: RobotSettings) -> dict[str, object]:
    """What an answer depends on besides its request, for a replay: plain values."""
    bounds = None if robots.bounds is None else robots.bounds.describe()
    intake = asdict(robots.intake) | {"rename": dict(robots.intake.rename)}
    return {"model": service.name, "intake": intake, "bounds": bounds}
