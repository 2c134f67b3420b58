"""Chooses the dialect of a call by the path that the client uses and the API that the provider serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from onward.clock import Clock
from onward.http.app import Caller
from onward.serving.http.proxy import ProviderCall, Proxy, Spent
from onward.serving.protocol.parameters import bad
from onward.serving.providers.catalog import Provider
from onward.serving.providers.chat import Chat
from onward.serving.providers.messages import Messages
from onward.serving.providers.responses import Responses
from onward.serving.providers.translation import Translation

Found = tuple[Provider, str]
"""A provider, and the name that it has for the model."""
PassOn = Callable[[Request, Caller, dict[str, Any], Found, Spent], Awaitable[Response]]


class ProviderEndpoints:
    """Answers the calls of each path for the models of providers."""

    def __init__(self, proxy: Proxy, clock: Clock) -> None:
        self._proxy, self._clock = proxy, clock

    async def chat(
        self, request: Request, caller: Caller, document: dict[str, Any], found: Found, spent: Spent
    ) -> Response:
        settings = found[0].settings
        created = int(self._clock.now().timestamp())
        dialect = Chat() if settings.kind == "openai" else Translation(settings.max_tokens, created)
        call = ProviderCall.of(found, dialect, document, request)
        return await self._proxy.answer(request, caller, call, spent)

    async def responses(
        self, request: Request, caller: Caller, document: dict[str, Any], found: Found, spent: Spent
    ) -> Response:
        if found[0].settings.kind != "openai":
            raise bad("A model of an Anthropic API has no responses: use /v1/chat/completions.", "model")
        call = ProviderCall.of(found, Responses(), document, request)
        return await self._proxy.answer(request, caller, call, spent)

    async def messages(
        self, request: Request, caller: Caller, document: dict[str, Any], found: Found, spent: Spent
    ) -> Response:
        call = ProviderCall.of(found, Messages(), document, request)
        return await self._proxy.answer(request, caller, call, spent)

    async def count_tokens(
        self, request: Request, caller: Caller, document: dict[str, Any], found: Found, spent: Spent
    ) -> Response:
        call = ProviderCall.of(found, Messages(), document, request)
        return await self._proxy.pass_through(call, "/v1/messages/count_tokens")
