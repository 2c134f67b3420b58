"""Requests to the chat API of a language model: the key, and another try while the server fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from onward.errors import ConfigError, hide_login
from onward.retry import Backoff

TRIES = 3


def key_header(url: str, key: str) -> dict[str, str]:
    """Returns the headers that carry ``key``; none without a key.

    Raises ConfigError for a key together with a login in the address: a request has one Authorization
    header, and httpx would send the login in place of the key, without a word.
    """
    if not key:
        return {}
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            f"The address {hide_login(url)} has a login, and a key is given too, but a request has one "
            f"Authorization header: leave the login out of the address, or unset the key."
        )
    return {"Authorization": f"Bearer {key}"}


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
