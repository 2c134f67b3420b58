"""The api role: health, readiness, metrics and status over HTTP. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends

from onward.context import Context
from onward.httpbase import Server, check_exposure, load_keys, make_app, require
from onward.telemetry import logs

Status = Callable[[], Awaitable[dict[str, Any]]]
_log = logs.get("api")


async def run(ctx: Context, status: Status | None = None) -> None:
    """Serve until cancelled. ``status`` is what ``onward status`` shows; without it, the roles' readiness."""
    http = ctx.settings.http
    check_exposure(http.host, http.keys)
    app = make_app(
        "api",
        keys=load_keys(http.keys, ctx.settings.run_dir),
        ready=lambda: dict(ctx.ready),
        metrics=ctx.metrics,
        hosts=[http.host, *getattr(http, "names", ())],
    )

    @app.get("/status", dependencies=[Depends(require("read"))])
    async def show_status() -> dict[str, Any]:
        return await status() if status is not None else {"ready": dict(ctx.ready)}

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
