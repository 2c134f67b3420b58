"""Answers in a provider's place while its circuit is open, for instance in TensorZero's.

The current model answers, on the gateway's own engine or at another provider. Such an answer is marked by the
header ``Onward-Standby`` and in the trajectory's metadata. It names its model, so it is part of no release.
After the breaker's pause one call goes to the provider again, and an answer to it ends the standby.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from onward.http.app import HttpError
from onward.serving.providers.catalog import Catalog, Provider
from onward.serving.recording.capture import CapturedCall

HEADER = "Onward-Standby"
"""Name of the provider in whose place the answer was given."""
METADATA = "standby_for"
CURRENT = "current"

Found = tuple[Provider, str]
PassOn = Callable[[Found, dict[str, Any]], Awaitable[Response]]


async def answer(
    catalog: Catalog, request: Request, document: dict[str, Any], current: str, pass_on: PassOn
) -> Response | dict[str, Any]:
    """Returns the answer of the provider or of its standby; or the document, if the gateway's engine is to
    answer it. ``current``: id of the current model. Raises HttpError."""
    found = catalog.find(document.get("model"))
    if found is None:
        return document
    provider, _ = found
    breaker, standby = provider.upstream.breaker, provider.settings.standby
    if not standby or breaker.retry_after == 0.0:
        try:
            return await pass_on(found, document)
        except HttpError as error:
            if not standby or error.status < 500 or breaker.state == "closed":
                raise
    request.state.standby_for = provider.name
    model = current if standby == CURRENT else standby.replace("{current}", current)
    changed = {**document, "model": model}
    other = catalog.find(model)
    if other is None:
        return changed
    response = await pass_on(other, changed)
    response.headers.update(headers(request))
    return response


def headers(request: Request) -> dict[str, str]:
    """Returns the header of an answer by a standby; nothing for another answer."""
    name = getattr(request.state, METADATA, None)
    return {} if name is None else {HEADER: name}


def mark(request: Request, asked: CapturedCall) -> None:
    """Marks the trajectory of a call that a standby answers."""
    name = getattr(request.state, METADATA, None)
    if name is not None and asked.conversation is not None:
        asked.conversation.metadata[METADATA] = name
