"""Sends an answer while it is sampled, and handles a client or gateway that goes away.

Invariants: the first token decides the answer's status, so nothing is sent before it. A client that leaves
ends the sampling, and so does a gateway that stops. The tokens sampled until then are recorded exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from onward.capture.conversations.answers import streamable_text
from onward.clock import Clock
from onward.http.app import HttpError, error_body
from onward.lm.stop_text import settled
from onward.serving.http.calls import Call, Calls, LiveAnswer
from onward.serving.protocol.events import Chunks, MakeChunks
from onward.serving.protocol.openai import token_logprobs
from onward.serving.recording.capture import Capture, CapturedCall

T = TypeVar("T")
CLIENT_GONE = 499
LEFT = "the client went away before the end of the answer"
BROKEN = "the engine failed before the end of the answer"
STOPPED = "the gateway stopped before the end of the answer"
STOPPED_RETRY_AFTER_SECONDS = 5


def stopping() -> HttpError:
    """Returns the error for a call that arrives, or is still running, when the gateway stops."""
    return HttpError(
        503,
        "The gateway is stopping and did not finish this call: send it again in a moment.",
        type="stopping",
        headers={"Retry-After": str(STOPPED_RETRY_AFTER_SECONDS)},
    )


class Ending(asyncio.Event):
    """The end of the gateway. One task waits for it, for all calls together."""

    _waiting: asyncio.Task[Any] | None = None

    def waiting(self) -> asyncio.Task[Any]:
        if self._waiting is None:
            self._waiting = asyncio.create_task(self.wait(), name="gateway-ending")
        return self._waiting


async def while_connected(request: Request, work: Coroutine[Any, Any, T], ending: Ending) -> T:
    """Returns the result of ``work``, which is cancelled if the client goes away or ``ending`` is set. Raises
    HttpError: 499 for a client that went away (no one reads it), 503 at the end of the gateway."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone, ending.waiting()}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise HttpError(CLIENT_GONE, "The client went away.", type="client_gone")
        raise stopping()
    finally:
        for each in (task, gone):
            each.cancel()
        if not task.done():
            await asyncio.gather(task, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class AnswerStream:
    """One streamed answer. ``leave`` is called once, at its end, however it ends. When ``ending`` is set, the
    answer ends with an error."""

    def __init__(
        self,
        calls: Calls,
        capture: Capture,
        call: Call,
        asked: CapturedCall,
        clock: Clock,
        leave: Callable[[], None],
        ending: Ending,
        make_chunks: MakeChunks = Chunks,
        *,
        spent: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``spent`` gets the tokens that the answer used, whole or not."""
        self._make_chunks, self._spent = make_chunks, spent
        self._calls, self._capture, self._call, self._asked = calls, capture, call, asked
        self._clock, self._leave, self._ending = clock, leave, ending
        self._ended: asyncio.Task[Any] | None = None
        self._news = asyncio.Event()
        self._live = LiveAnswer(lambda text: self._news.set())
        self._sent = 0
        """Characters of the text that were sent as content."""
        self._sent_logprobs = 0
        """Entries of log-probs that were sent."""
        self._told = False
        """True if the whole answer was passed to capture."""

    async def response(self, request: Request) -> StreamingResponse:
        """Waits for the first token and returns the response. Raises HttpError if there is none."""
        work = asyncio.create_task(self._calls.stream(self._call, self._live))
        self._ended = asyncio.create_task(self._ending.wait())
        for each in (work, self._ended):
            each.add_done_callback(lambda _: self._news.set())
        try:
            await while_connected(request, self._begun(work), self._ending)
            if work.done():
                work.result()
        except BaseException:
            await self._end(work)
            raise
        return Streamed(self._events(work), lambda: self._end(work))

    async def _begun(self, work: asyncio.Task[Any]) -> None:
        while not work.done() and not self._live.token_ids:
            self._news.clear()
            await self._news.wait()

    async def _events(self, work: asyncio.Task[tuple[dict[str, Any], str, float]]) -> AsyncIterator[bytes]:
        chunks = self._chunks(work)
        yield chunks.role()
        while not work.done() and not self._ending.is_set():
            self._news.clear()
            if text := self._new_content():
                yield chunks.content(text, self._new_logprobs())
            else:
                await self._news.wait()
        try:
            if not work.done():
                raise stopping()
            answer, text, _ = work.result()
        except HttpError as error:
            if text := self._new_content():
                yield chunks.content(text, self._new_logprobs())
            yield chunks.failure(error_body(error.type, error.message, error.param))
            return
        message = answer["choices"][0]["message"]
        if rest := (message["content"] or "")[self._sent :]:
            self._sent += len(rest)
            yield chunks.content(rest, self._new_logprobs())
        self._told = True
        self._capture.record_answer(self._asked, answer, text)
        yield chunks.calls(message.get("tool_calls") or []) + chunks.end(answer)

    def _chunks(self, work: asyncio.Task[tuple[dict[str, Any], str, float]]) -> Chunks:
        created = int(self._clock.now().timestamp())
        usage = self._call.chat.include_usage
        if work.done():
            answer = work.result()[0]
            generation_id = answer["onward"]["generation_id"]
            return self._make_chunks(generation_id, answer["model"], created, include_usage=usage)
        assert self._live.record is not None and self._live.arm is not None
        generation_id = self._live.record["generation_id"]
        return self._make_chunks(generation_id, self._live.arm.model_id, created, include_usage=usage)

    def _new_content(self) -> str:
        """Returns text that is certainly content and was not sent yet."""
        text = settled(self._live.text, stops) if (stops := self._call.chat.stops) else self._live.text
        text = streamable_text(text) if self._call.chat.calls_tools else text
        new = text[self._sent :]
        self._sent += len(new)
        return new

    def _new_logprobs(self) -> dict[str, Any] | None:
        """Returns the log-probs of tokens that begin in the text sent so far; None if they are not wanted."""
        chat = self._call.chat
        if chat.options is None or chat.options.top_logprobs is None:
            return None
        entries = self._live.alternatives[self._sent_logprobs :]
        new = token_logprobs(entries, self._sent, with_places=chat.is_raw)
        self._sent_logprobs += len(new["content"])
        return new

    async def _end(self, work: asyncio.Task[tuple[dict[str, Any], str, float]]) -> None:
        """Ends the answer in every case: stops the sampling, records the part that a lost client received."""
        work.cancel()
        if self._ended is not None:
            self._ended.cancel()
        try:
            await asyncio.gather(work, return_exceptions=True)
        finally:  # the waiting task may be cancelled once more
            try:
                if not self._told and self._sent:
                    self._told = True
                    self._record_part(work)
            finally:
                self._spent(self._tokens(work))
                self._capture.free_conversation(self._asked)
                self._leave()

    def _tokens(self, work: asyncio.Task[tuple[dict[str, Any], str, float]]) -> int:
        """Returns the tokens that were used; of an answer that was cut off, those that were sampled."""
        if work.done() and not work.cancelled() and work.exception() is None:
            return work.result()[0]["usage"]["total_tokens"]
        return len(self._live.token_ids)

    def _record_part(self, work: asyncio.Task[tuple[dict[str, Any], str, float]]) -> None:
        generation, cut = self._live.partial_generation(), STOPPED if self._ending.is_set() else LEFT
        if not work.cancelled() and work.exception() is not None:
            cut = BROKEN
        if not work.cancelled() and work.exception() is None:
            answer, text, _ = work.result()
        elif generation is not None and self._live.arm is not None:
            text = generation.text
            answer = self._calls.completion(self._call, generation, self._live.arm, self._live.assignment)
        else:
            return
        answer["choices"][0]["message"] = {"role": "assistant", "content": text[: self._sent]}
        self._capture.record_answer(self._asked, answer, text, cut=cut)


class Streamed(StreamingResponse):
    """A streaming response that runs ``on_end`` even if its events were never requested."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._on_end()
