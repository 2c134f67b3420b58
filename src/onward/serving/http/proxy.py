"""Answers a call that a provider answers: passes it on, and records it as the gateway's own calls are.

Invariants: the client's key never leaves the gateway, and the provider's never enters an answer. What a lost
client received is recorded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from onward.http.app import Caller
from onward.http.direct import FastJson
from onward.serving.http.admission import Admission
from onward.serving.http.streaming import BROKEN, LEFT, STOPPED, Streamed, while_connected
from onward.serving.providers import standby
from onward.serving.providers.catalog import Provider
from onward.serving.providers.dialect import Dialect, StreamReader
from onward.serving.recording.capture import Capture, CapturedCall
from onward.serving.routing.session_ids import session_of

SESSION_HEADER, TRAJECTORY_HEADER = "Onward-Session", "Onward-Trajectory"
_PASSED_HEADERS = ("anthropic-version", "anthropic-beta")
_ANTHROPIC_VERSION = "2023-06-01"
Spent = Callable[[int], None]
"""Takes the tokens that an answer used."""


@dataclass(frozen=True)
class ProviderCall:
    """One call: its provider, the model's name there, and how it is read."""

    provider: Provider
    model: str
    dialect: Dialect
    document: dict[str, Any]
    headers: Mapping[str, str]

    @classmethod
    def of(
        cls, found: tuple[Provider, str], dialect: Dialect, document: dict[str, Any], request: Request
    ) -> ProviderCall:
        provider, model = found
        given = ((name, request.headers.get(name, "")) for name in _PASSED_HEADERS)
        passed = {name: value for name, value in given if value and value.isascii()}
        if provider.settings.kind == "anthropic":
            passed.setdefault("anthropic-version", _ANTHROPIC_VERSION)
        return cls(provider, model, dialect, document, passed)

    async def open(self) -> httpx.Response:
        """Returns the provider's answer, not read yet. Raises HttpError."""
        body = self.dialect.request(self.document, self.model)
        return await self.provider.upstream.post(self.dialect.path, body, self.headers)


class Proxy:
    def __init__(self, capture: Capture, admission: Admission, signing_key: bytes) -> None:
        self._capture, self._admission, self._signing_key = capture, admission, signing_key

    async def answer(self, request: Request, caller: Caller, call: ProviderCall, spent: Spent) -> Response:
        """Answers a call. Raises HttpError."""
        call.dialect.request(call.document, call.model)  # refused before anything is recorded
        chat = call.dialect.observed(call.document)
        session = session_of(request, chat, caller, self._signing_key)
        asked = self._capture.begin_call(request.headers, caller, chat, session, call.provider.name)
        standby.mark(request, asked)
        leave = self._admission.enter()
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._capture.free_conversation(asked)
                leave()

        try:
            opened = await while_connected(request, call.open(), self._admission.ending)
            if chat.stream:
                events = _Events(self, call, asked, opened, spent)
                streamed = Streamed(events.sent(), lambda: events.close(end))
                streamed.headers.update(_named(asked))
                return streamed
            body = await while_connected(request, call.provider.upstream.read(opened), self._admission.ending)
            answer = call.dialect.answer(body)
            self.record(call, asked, answer)
            spent(answer["usage"]["total_tokens"])
        except BaseException:
            end()
            raise
        end()
        reply = call.dialect.reply(body)
        if "choices" in reply:
            reply = {**reply, "onward": self._onward(call, asked)}
        return FastJson(reply, headers=_named(asked))

    async def pass_through(self, call: ProviderCall, path: str) -> Response:
        """Passes on a request that is no answer of a model, such as a count of tokens."""
        upstream = call.provider.upstream
        body = {**call.document, "model": call.model}
        return JSONResponse(await upstream.read(await upstream.post(path, body, call.headers)))

    def record(
        self, call: ProviderCall, asked: CapturedCall, answer: dict[str, Any], *, cut: str | None = None
    ) -> None:
        """Records an answer in the form of a chat completion, without tokens: a provider gives none."""
        whole = {**answer, "model": call.model, "onward": {"sampling": None, "release": None}}
        self._capture.record_answer(asked, whole, answer["choices"][0]["message"]["content"] or "", cut=cut)

    def is_stopping(self) -> bool:
        return self._admission.ending.is_set()

    async def until_stopped(self, work: Any) -> Any:
        """Returns the result of ``work``, or None if the gateway ends first."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._admission.ending.waiting()}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _onward(self, call: ProviderCall, asked: CapturedCall) -> dict[str, Any]:
        named = {"session_id": asked.session_id, "provider": call.provider.name, "model_id": call.model}
        recorded = asked.trajectory_id
        return named if recorded is None else {**named, "trajectory_id": recorded}


class _Events:
    """One streamed answer on its way to the client."""

    def __init__(
        self, proxy: Proxy, call: ProviderCall, asked: CapturedCall, opened: httpx.Response, spent: Spent
    ) -> None:
        self._proxy, self._call, self._asked, self._opened = proxy, call, asked, opened
        self._spent = spent
        self._reader: StreamReader = call.dialect.reader(call.document)
        self._broken: str | None = LEFT
        """Reason why the answer is not whole; the client's leaving until something else is known."""

    async def sent(self) -> AsyncIterator[bytes]:
        """Yields the events for the client."""
        upstream = self._call.provider.upstream
        blocks = _blocks(self._opened)
        try:
            while (block := await self._proxy.until_stopped(anext(blocks, None))) is not None:
                event, data = _parsed(block)
                if sent := self._reader.read(event, data, block):
                    yield sent
        except httpx.HTTPError as error:
            self._broken = BROKEN
            yield self._reader.failure(upstream.lost(error).message)
            return
        if self._reader.ended:
            self._broken = None
        elif self._proxy.is_stopping():
            self._broken = STOPPED
            yield self._reader.failure("The gateway is stopping and did not finish this call: send it again.")
        else:
            self._broken = BROKEN
            yield self._reader.failure(f"The provider {upstream.name} ended before its answer was complete.")

    async def close(self, end: Callable[[], None]) -> None:
        """Ends the answer in every case and records what the client received."""
        try:
            answer = self._reader.answer()
            message = answer["choices"][0]["message"]
            if self._broken is None or self._reader.ended:
                self._proxy.record(self._call, self._asked, answer)
            elif message["content"]:
                message.pop("tool_calls", None)
                self._proxy.record(self._call, self._asked, answer, cut=self._broken)
            self._spent(answer["usage"]["total_tokens"])
        finally:
            end()
            await self._opened.aclose()


async def _blocks(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yields the events of a stream, each with its blank line."""
    lines: list[bytes] = []
    async for line in _lines(response):
        if line:
            lines.append(line)
        elif lines:
            yield b"\n".join(lines) + b"\n\n"
            lines = []
    if lines:
        yield b"\n".join(lines) + b"\n\n"


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yields the lines of a stream, without their ends. httpx would end one at U+2028 as well, which a JSON
    text may have in it."""
    held = b""
    async for piece in response.aiter_bytes():
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
    if held:
        yield held.removesuffix(b"\r")


def _parsed(block: bytes) -> tuple[str, dict[str, Any] | None]:
    """Returns the name of an event and its JSON object; None if it has none, as ``[DONE]``."""
    event, data = "", ""
    for line in block.decode(errors="replace").split("\n"):
        name, _, value = line.partition(":")
        if name == "event":
            event = value.strip()
        elif name == "data":
            data += value.removeprefix(" ")
    try:
        document = json.loads(data) if data else None
    except (ValueError, RecursionError):
        document = None
    return event, document if isinstance(document, dict) else None


def _named(asked: CapturedCall) -> dict[str, str]:
    """Returns the headers that name the session and the trajectory of a call."""
    recorded = asked.trajectory_id
    return {SESSION_HEADER: asked.session_id} | ({} if recorded is None else {TRAJECTORY_HEADER: recorded})
