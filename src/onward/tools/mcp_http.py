"""The MCP server over streamable HTTP, behind the protections of every other service of Onward.

Invariants: each request needs an API key, whatever ``http.auth`` says, and a caller has the scopes that both
the server and its key have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from onward.http.app import NONE_OPEN, Caller, HttpError, authorize, make_app
from onward.http.hosts import AllowedHosts
from onward.http.protection import protection
from onward.http.server import Server, check_exposure
from onward.tools.mcp_server import protocol
from onward.tools.tool import KEY_SCOPES
from onward.tools.toolbox import Toolbox

PATH = "/mcp"
IDLE_SECONDS = 1800.0
MOST_SESSIONS = 100


@asynccontextmanager
async def serving_http(box: Toolbox, host: str, port: int) -> AsyncIterator[str]:
    """Serves clients over streamable HTTP while the block runs; yields the address. Raises PortBusyError,
    ConfigError."""
    settings = box.settings
    check_exposure(host, settings.api_keys(), "keys")
    sessions = StreamableHTTPSessionManager(
        protocol(box, over_http=True), session_idle_timeout=IDLE_SECONDS, max_sessions=MOST_SESSIONS
    )
    app = http_app(box, host, sessions)
    server = Server(app, host, port, what="The MCP server (--port)")
    async with sessions.run():
        await server.start()
        try:
            yield server.url + PATH
        finally:
            await server.stop()


def http_app(box: Toolbox, host: str, sessions: StreamableHTTPSessionManager) -> FastAPI:
    """Returns the service: the protections of every other one, and ``/mcp`` behind an API key."""
    given = {**protection(box.settings), "open_calls": NONE_OPEN}
    given["hosts"] = [*given["hosts"], host]
    app = make_app("mcp", **given, ready=lambda: {})
    app.router.routes.append(Route(PATH, endpoint=_Door(sessions, AllowedHosts(given["hosts"]))))
    return app


class _Door:
    """ASGI: lets a request pass that has an API key and, from a page, an origin of this service."""

    def __init__(self, sessions: StreamableHTTPSessionManager, hosts: AllowedHosts) -> None:
        self._sessions, self._hosts = sessions, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        origin = request.headers.get("origin")
        if origin is not None and not self._hosts.allows(urlsplit(origin).netloc):
            raise HttpError(
                403, "Pages of this origin may not call tools.", type="permission_error", param="Origin"
            )
        user = _user(authorize(request, "read"))
        await self._sessions.handle_request({**scope, "user": user}, receive, send)


def _user(caller: Caller) -> AuthenticatedUser:
    """Returns the owner of a session, with the scopes of tools that its key allows."""
    has = caller.scopes
    scopes: list[str] = [scope for scope, key in KEY_SCOPES.items() if key in has or "admin" in has]
    return AuthenticatedUser(AccessToken(token="", client_id=caller.key_hash, scopes=scopes))
