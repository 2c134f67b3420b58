"""Opens a few paths to web pages in a browser: pages of the configured origins, and no others.

Pure ASGI; every other path stays closed to browsers.

Invariants: this layer stands before all others, so that a page can also read the errors of the protections
behind it. Cookies hold nothing, so credentials are never allowed.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onward.http.app import HttpError

_MAX_AGE = b"600"
_HEADERS = b"authorization, content-type, idempotency-key"


class Cors:
    """Middleware for ``paths``: pages of ``origins`` and of the service's own address may call them."""

    def __init__(self, app: ASGIApp, *, paths: Collection[str], origins: Collection[str]) -> None:
        self.app, self._paths, self._origins = app, frozenset(paths), frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if not origin:
            await self.app(scope, receive, send)
            return
        own = f"{scope['scheme']}://{headers.get(b'host', b'').decode('latin-1')}".lower()
        if origin not in self._origins and origin != own:
            refused = HttpError(
                403,
                "Pages of this origin may not send feedback: add it to feedback.origins.",
                type="permission_error",
                param="Origin",
                headers={"Vary": "Origin"},
            )
            await refused.response()(scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await Response(status_code=204, headers=_preflight(origin, headers))(scope, receive, send)
        else:
            await self.app(scope, receive, _allowing(origin, send))


def _preflight(origin: str, headers: dict[bytes, bytes]) -> dict[str, str]:
    answer = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": _HEADERS.decode(),
        "Access-Control-Max-Age": _MAX_AGE.decode(),
        "Vary": "Origin",
    }
    if headers.get(b"access-control-request-private-network") == b"true":
        answer["Access-Control-Allow-Private-Network"] = "true"
    return answer


def _allowing(origin: str, send: Send) -> Send:
    """Wraps ``send`` so that pages of ``origin`` may read the answer and its Retry-After header."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            added = [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", b"retry-after"),
                (b"vary", b"Origin"),
            ]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return with_headers
