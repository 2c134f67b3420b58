"""The api role: health, readiness, metrics and status over HTTP. It decides nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Depends

from onward.api import status
from onward.context import Context
from onward.httpbase import Server, check_exposure, load_keys, make_app, require
from onward.telemetry import logs

_log = logs.get("api")


async def run(ctx: Context) -> None:
    """Serve until cancelled. Raises PortBusyError, ConfigError."""
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
        found = await status.collect(ctx.bus, ctx.warehouse, ctx.settings, ctx.clock)
        return {**found, "ready": dict(ctx.ready)}

    server = Server(app, http.host, http.api_port, what="The api (http.api_port)")
    await server.start()
    ctx.endpoints["api_url"] = server.url
    ctx.ready["api"] = True
    _log.info("api serves", url=server.url)
    try:
        await asyncio.Event().wait()
    finally:
        ctx.ready["api"] = False
        await server.stop()
