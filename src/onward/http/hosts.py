"""The Host headers that a service answers: the defence against DNS rebinding. Pure."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")


class AllowedHosts:
    """The host names and addresses of one service; names are compared whole."""

    def __init__(self, hosts: Iterable[str]) -> None:
        given = {_plain_host(host.strip("[]").lower()) for host in hosts if host}
        self._wildcard = bool(given & {"0.0.0.0", "::"})
        self._names = {"localhost", "127.0.0.1", "::1"} | given
        if self._wildcard:
            self._names.add(_plain_host(socket.gethostname().lower()))
        self._last = ("", False)
        """The last header and its answer: most clients send one and the same."""

    def allows(self, header: str) -> bool:
        """Returns whether ``header`` is allowed, a Host header: name, name:port, [v6] or [v6]:port. Case and
        one dot at the end of a name do not matter."""
        last, is_allowed = self._last
        if header != last:
            is_allowed = self._judge(header)
            self._last = header, is_allowed
        return is_allowed

    def _judge(self, header: str) -> bool:
        found = _HOST.fullmatch(header.strip(" \t").lower())
        if found is None:
            return False
        host = _plain_host(found[1].strip("[]"))
        if found[1].startswith("[") and ":" not in host:
            return False
        return host in self._names or (self._wildcard and _is_address(host))


def _plain_host(host: str) -> str:
    """Returns the one form of a host: an address as ``ipaddress`` writes it, a name without its last dot."""
    return str(ipaddress.ip_address(host)) if _is_address(host) else host.removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
