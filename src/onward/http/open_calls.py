"""Calls without an API key: which of them are answered all the same. Pure.

Two rules open a service. ``http.auth = "none"`` opens all of it, for a network of its own such as that of a
compose file. On loopback, a route that allows it is open as long as no key is configured.

Invariants: a key that is given is always checked. A browser's call and a proxy's call never count as local.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Request

from onward.http.server import is_loopback

SERVICE_NAMES = ("agentgym-rl", "tensorzero-gateway")
"""Host names of the published documents; clients may call the services by them."""
_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip", "x-client-ip", "x-original-", "via")
"""Beginnings of the headers that proxies add."""
_FROM_BROWSERS = ("origin", "referer", "sec-fetch-")


@dataclass(frozen=True)
class OpenCalls:
    """The calls of one service that need no key."""

    everything: bool = False
    """True with ``http.auth = "none"``."""
    host: str | None = None
    """Address that the service binds to, if no key is configured; None: a local call needs a key too."""
    names: tuple[str, ...] = ()
    """Configured host names. With any, others call too, and no call counts as local."""

    def allow(self, request: Request, *, local: bool) -> bool:
        """Returns whether a call without a key is answered. ``local``: the route is open on loopback."""
        if self.everything:
            return True
        if not local or self.host is None or _is_browsers(request):
            return False
        return is_local(request, self.host, self.names, SERVICE_NAMES)


def is_local(request: Request, host: str, names: Iterable[str], also: Iterable[str] = ()) -> bool:
    """Returns whether a program or browser on this machine sent ``request`` to a service bound to ``host``.

    Configured host names (``names``) mean that others call too, so no caller counts as local then. ``also``
    are names that stand for this machine. A call by HTTP/1.0 is a proxy's: nginx sends it by default, without
    a header of its own.
    """
    client = request.client.host if request.client else ""
    named = request.url.hostname or ""
    if tuple(names) or request.scope["http_version"] == "1.0" or _has(request, _FORWARDED):
        return False
    return is_loopback(host) and is_loopback(client) and (is_loopback(named) or named in also)


def _is_browsers(request: Request) -> bool:
    """Returns whether a browser sent ``request``. A page under a name of the service, such as agentgym-rl in
    a network that answers that name falsely, reads without a header that says so: its user agent does."""
    agent = request.headers.get("user-agent", "")
    return _has(request, _FROM_BROWSERS) or agent.startswith("Mozilla/")


def _has(request: Request, beginnings: tuple[str, ...]) -> bool:
    return any(name.startswith(beginnings) for name in request.headers)
