"""The api role: health, readiness, metrics, status, training and feedback over HTTP. It decides nothing."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request, Response

from onward.api import pages, status
from onward.api.feedback import FeedbackApi
from onward.api.training import TrainingApi
from onward.context import Context
from onward.health.readiness import Readiness
from onward.http.app import HttpError, make_app, require
from onward.http.protection import protection
from onward.http.server import Server, check_exposure
from onward.ids import check_id
from onward.reward.scoring.explain import look_up, unknown_id
from onward.roles import ready, to_the_end
from onward.telemetry import logs

_log = logs.get("api")


async def run(ctx: Context) -> None:
    """Serves until cancelled. Raises PortBusyError, ConfigError."""
    http = ctx.settings.http
    check_exposure(http.host, ctx.settings.api_keys(), http.auth)
    training = TrainingApi(ctx)
    app = make_app(
        "api",
        **protection(ctx.settings),
        ready=Readiness(ctx.probes, ctx.ready),
        warnings=ctx.warnings,
        metrics=ctx.metrics,
        clock=ctx.clock,
        health=training.health,
    )
    training.add_to(app)

    @app.get("/status", dependencies=[Depends(require("read"))])
    async def show_status() -> dict[str, Any]:
        """Reports the current state in one document. Scope: read."""
        found = await status.collect(ctx.bus, ctx.warehouse, ctx.settings, ctx.clock)
        restarts = {name: keeper.restarts for name, keeper in ctx.children.items()}
        return {
            **found,
            "ready": dict(ctx.ready),
            "warnings": dict(ctx.warnings),
            "child_restarts": restarts,
        }

    @app.get("/rewards/{trajectory_id}", dependencies=[Depends(require("read"))])
    async def explain(trajectory_id: str) -> dict[str, Any]:
        """Explains the reward of a trajectory. Scope: read."""
        name = check_id(trajectory_id, "Trajectory id")
        found = await look_up(ctx.warehouse, name, ctx.settings.reward.weights())
        if found is None:  # never stored, or a session: its trajectories are then named
            raise await unknown_id(ctx.warehouse, name)
        return found

    @app.exception_handler(404)
    async def unknown_path(request: Request, _: Exception) -> Response:
        shown, here = request.url.path[:80], str(request.base_url)
        message = (
            f"There is no {shown} here: {here} lists what there is, and the gateway's address for agents."
        )
        return HttpError(404, message, type="not_found_error").response()

    feedback = FeedbackApi(ctx)
    feedback.add_to(app)
    pages.add_to(app, ctx, feedback)
    server = Server(
        app, http.host, http.api_port, what="The api (http.api_port)", max_connections=http.max_connections
    )
    await server.start()
    ctx.endpoints["api_url"] = server.url
    try:
        with ready(ctx, "api"):
            _log.info("api serves", url=server.url)
            await feedback.intake.deliver(ctx.bus)
    finally:
        try:
            await to_the_end(server.stop())
        finally:
            feedback.intake.close()
