"""One request to the chat API of a language model, sent again while its server fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from onward.retry import Backoff

TRIES = 3


async def post(send: Callable[[], Awaitable[httpx.Response]], pauses: tuple[float, float]) -> httpx.Response:
    """Returns the answer to ``send``, which posts once. ``pauses`` between tries are the first and the
    longest, in seconds.

    Raises httpx.HTTPStatusError or httpx.RequestError of the last try. A request that the server refuses is
    not sent again.
    """
    backoff, tries = Backoff(*pauses), 1
    while True:
        try:
            response = await send()
            response.raise_for_status()
            return response
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if tries == TRIES or (status < 500 and status != 429):
                raise
        except httpx.RequestError:
            if tries == TRIES:
                raise
        tries += 1
        await asyncio.sleep(backoff.next())
