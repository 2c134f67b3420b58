"""Health, readiness and metrics of a role that runs alone (``onward run collector``).

Beside other roles the api serves them; the gateway and the api have ports of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onward.context import Context
from onward.health.readiness import Readiness
from onward.http.app import make_app
from onward.http.protection import protection
from onward.http.server import Server, check_exposure
from onward.roles import to_the_end

WITH_A_PORT = frozenset({"gateway", "api"})
_PROBED = ("bus", "disk", "warehouse")
"""Parts that any role's login may ask. Streams and consumers are judged where the whole service runs."""


@asynccontextmanager
async def served_alone(ctx: Context, role: str) -> AsyncIterator[None]:
    """Serves ``/health``, ``/ready`` and ``/metrics`` while the block runs. Raises PortBusyError,
    ConfigError."""
    if role in WITH_A_PORT:
        yield
        return
    settings = ctx.settings
    http = settings.http
    check_exposure(http.host, settings.api_keys(), http.auth)
    app = make_app(
        role,
        **protection(settings),
        ready=Readiness({name: ctx.probes[name] for name in _PROBED if name in ctx.probes}, ctx.ready),
        warnings=ctx.warnings,
        metrics=ctx.metrics,
        clock=ctx.clock,
    )
    server = Server(app, http.host, http.role_port, what=f"The {role} (http.role_port)", max_connections=64)
    await server.start()
    ctx.endpoints[f"{role}_url"] = server.url
    try:
        yield
    finally:
        await to_the_end(server.stop())
