"""Identical concurrent requests with one idempotency key share one answer: a retry costs no second call."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.responses import Response

from onward.http.app import Caller, HttpError
from onward.serving.http.streaming import CLIENT_GONE

IDEMPOTENCY_HEADER = "idempotency-key"


class Coalescing:
    """The answers that are being made now, by key, path and body. Streams are not shared."""

    def __init__(self) -> None:
        self._running: dict[bytes, asyncio.Future[Response]] = {}

    async def shared(
        self, request: Request, caller: Caller, answer: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Returns the answer of the identical request that runs now, else that of ``answer``. If the client
        that was first goes away, its call ends, and the next one makes its own."""
        given = request.headers[IDEMPOTENCY_HEADER]
        parts = (caller.key_hash, given, request.url.path, request.headers.get("onward-session", ""))
        name = hashlib.sha256("\x1f".join(parts).encode() + b"\x1f" + await request.body()).digest()
        while (running := self._running.get(name)) is not None:
            try:
                first = await asyncio.shield(running)
            except HttpError as error:
                if error.status == CLIENT_GONE:
                    continue
                raise
            headers = {n: v for n, v in first.headers.items() if n not in ("content-length", "content-type")}
            return Response(first.body, first.status_code, headers, media_type=first.headers["content-type"])
        mine = self._running[name] = asyncio.get_running_loop().create_future()
        try:
            response = await answer()
            mine.set_result(response)
            return response
        except BaseException as error:
            is_ours = isinstance(error, Exception)
            mine.set_exception(error if is_ours else HttpError(CLIENT_GONE, "The client went away."))
            mine.exception()  # nobody may wait for it
            raise
        finally:
            del self._running[name]
