"""The api role: health, readiness, metrics, status and feedback over HTTP. It decides nothing."""

from __future__ import annotations

from typing import Any

from fastapi import Depends

from onward.api import pages, rewards, status
from onward.api.feedback import FeedbackApi
from onward.context import Context
from onward.http.app import Server, check_exposure, load_keys, make_app, require
from onward.roles import ready
from onward.telemetry import logs

_log = logs.get("api")


async def run(ctx: Context) -> None:
    """Serves until cancelled. Raises PortBusyError, ConfigError."""
    http = ctx.settings.http
    check_exposure(http.host, http.keys)
    app = make_app(
        "api",
        keys=load_keys(http.keys, ctx.settings.run_dir),
        ready=lambda: dict(ctx.ready),
        metrics=ctx.metrics,
        hosts=[http.host, *http.names],
    )

    @app.get("/status", dependencies=[Depends(require("read"))])
    async def show_status() -> dict[str, Any]:
        """Reports the current state in one document. Scope: read."""
        found = await status.collect(ctx.bus, ctx.warehouse, ctx.settings, ctx.clock)
        return {**found, "ready": dict(ctx.ready)}

    rewards.add_to(app, ctx)
    feedback = FeedbackApi(ctx)
    feedback.add_to(app)
    pages.add_to(app, ctx, feedback)
    server = Server(app, http.host, http.api_port, what="The api (http.api_port)")
    await server.start()
    ctx.endpoints["api_url"] = server.url
    try:
        with ready(ctx, "api"):
            _log.info("api serves", url=server.url)
            await feedback.intake.deliver(ctx.bus)
    finally:
        await server.stop()
        feedback.intake.close()
