"""Watches an answer on its way to the caller, in any form in which an OpenAI client hands it out.

A client returns a parsed answer, a stream, or a raw response: the headers, with a body that the caller may
parse, read as bytes or lines, or leave unread. An answer is recorded when it is whole, or when it broke off
or the caller left it, with what had arrived.

Invariants: the caller gets the client's own objects, and its own exceptions. Nothing here raises.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from onward.capture.clients.apis import Api, failure
from onward.capture.clients.calls import Call, guard
from onward.capture.conversations.content import document_of
from onward.errors import ContractError

UNREADABLE = "The answer was not recorded: the caller did not read it in a form that the recorder knows."


class AnswerError(Exception):
    """Error that the server put in the place of an answer."""


class Watch:
    """The answer to one call."""

    def __init__(self, call: Call, api: Api) -> None:
        self._call = call
        self._api = api
        self._parts = api.assembly()
        self._body: list[bytes] = []
        self._is_reading = False
        """True while the client itself reads: then a close of the connection is not the caller's."""
        self._is_late = False
        """True while the server makes the answer in the background."""
        self._is_parsed = False
        """True if the caller reads a stream of chunks: then its bytes are not read here, too."""
        self._is_receiving = False
        """True while the client itself receives bytes."""

    def take(self, answer: Any) -> None:
        """Records a whole answer, or prepares to record one that is still on its way."""
        with guard(self._call.errors):
            try:
                self._take(answer)
            except Exception as error:
                self._call.add_interruption(None, error)
                raise

    def _take(self, answer: Any) -> None:
        response = getattr(answer, "http_response", None)
        if response is None and hasattr(answer, "iter_bytes"):
            response = answer  # the caller asked for the response of the HTTP client
        if _is_stream(answer):
            self._follow(answer)
        elif response is None:
            self._add_whole(answer)
        elif (body := _body_of(response)) is not None:
            self._add_body(body)
        else:
            self._follow_bytes(answer, response)

    def fail(self, error: BaseException) -> None:
        """Records that the call ended in ``error``. One of the client's errors has the answer, which it could
        not parse."""
        with guard(self._call.errors):
            if self._is_late:
                return  # the client could not fetch it, and may try again
            completion = getattr(error, "completion", None)
            document = None if completion is None else self._api.completion(_document(completion))
            self._call.add_interruption(document, error)

    def _add_whole(self, answer: Any) -> None:
        document = _document(answer)
        told = failure(document)
        if self._api.is_pending(document):
            for name in self._api.names(document)[:1]:
                self._is_late = True
                self._call.chats.note_late(name, self)
        elif told is not None:
            self._call.add_interruption(self._said(document), AnswerError(told))
        else:
            self._call.add_answer(self._api.completion(document), self._api.names(document))

    def _said(self, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
        completion = self._api.completion(document)
        return completion if completion.get("choices") else None

    def _add_body(self, body: bytes) -> None:
        """Records a body: one JSON document, or the events of a stream."""
        text = body.decode("utf-8", "replace")
        if text.lstrip().startswith("{"):
            self._add_whole(json.loads(text))
            return
        events = list(_events(text))
        if not events:
            raise ContractError("answer", "The answer is neither JSON nor a stream of events.")
        for event in events:
            self._parts.add_chunk(event)
        self._add_whole(self._parts.document)

    def _finish(self) -> None:
        with guard(self._call.errors):
            self._add_whole(self._parts.document)

    def _leave(self) -> None:
        """Records an answer that the caller reads no further. It may be whole all the same."""
        with guard(self._call.errors):
            if self._parts.is_complete:
                self._add_whole(self._parts.document)
            else:
                self._call.add_interruption(self._said(self._parts.document), None)

    def _break(self, error: BaseException) -> None:
        with guard(self._call.errors):
            self._call.add_interruption(self._said(self._parts.document), error)

    def _add_chunk(self, chunk: Any) -> None:
        with guard(self._call.errors):
            self._parts.add_chunk(chunk)

    # Streams of chunks

    def _follow(self, stream: Any) -> None:
        self._is_parsed, self._body = True, []
        self._call.so_far = lambda: self._api.completion(self._parts.document)
        self._call.leave = lambda: None if self._is_reading else self._leave()
        response = getattr(stream, "response", None)
        if hasattr(stream, "__aiter__"):
            stream._iterator = self._read_async(stream._iterator)
            _extend(response, "aclose", _closing_async(lambda: self._is_reading, self._leave))
        else:
            stream._iterator = self._read(stream._iterator)
            _extend(response, "close", _closing(lambda: self._is_reading, self._leave))

    def _read(self, chunks: Iterator[Any]) -> Iterator[Any]:
        while True:
            self._is_reading = True
            try:
                chunk = next(chunks)
            except StopIteration:
                break
            except BaseException as error:
                self._break(error)
                raise
            finally:
                self._is_reading = False
            self._add_chunk(chunk)
            try:
                yield chunk
            except BaseException:
                self._leave()
                raise
        self._finish()

    async def _read_async(self, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            self._is_reading = True
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                break
            except BaseException as error:
                self._break(error)
                raise
            finally:
                self._is_reading = False
            self._add_chunk(chunk)
            try:
                yield chunk
            except BaseException:
                self._leave()
                raise
        await in_thread(self._finish)

    # Raw responses

    def _follow_bytes(self, answer: Any, response: Any) -> None:
        if answer is not response:
            answer.parse = self._parsing(answer.parse)
        leave = partial(self._leave_body, response)
        if _is_async(response):
            _extend(response, "aiter_bytes", self._reading_async)
            _extend(response, "aclose", _closing_async(lambda: self._is_receiving, leave))
        else:
            _extend(response, "iter_bytes", self._reading)
            _extend(response, "close", _closing(lambda: self._is_receiving, leave))

    def _parsing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Follows the stream that ``parse`` returns. It returns the same one each time."""

        def parsed(result: Any) -> Any:
            with guard(self._call.errors):
                if _is_stream(result) and not self._is_parsed:
                    self._follow(result)
            return result

        if inspect.iscoroutinefunction(original):

            async def parse_async(*args: Any, **given: Any) -> Any:
                return parsed(await original(*args, **given))

            return parse_async
        return lambda *args, **given: parsed(original(*args, **given))

    def _reading(self, original: Callable[..., Iterator[bytes]]) -> Callable[..., Iterator[bytes]]:
        def iter_bytes(*args: Any, **given: Any) -> Iterator[bytes]:
            self._is_receiving = True
            try:
                for piece in original(*args, **given):
                    self._add_bytes(piece)
                    self._is_receiving = False
                    yield piece
                    self._is_receiving = True
            except Exception as error:
                self._end_body(error)
                raise
            finally:
                self._is_receiving = False
            self._end_body(None)

        return iter_bytes

    def _reading_async(self, original: Callable[..., Any]) -> Callable[..., AsyncIterator[bytes]]:
        async def aiter_bytes(*args: Any, **given: Any) -> AsyncIterator[bytes]:
            self._is_receiving = True
            try:
                async for piece in original(*args, **given):
                    self._add_bytes(piece)
                    self._is_receiving = False
                    yield piece
                    self._is_receiving = True
            except Exception as error:
                self._end_body(error)
                raise
            finally:
                self._is_receiving = False
            await in_thread(self._end_body, None)

        return aiter_bytes

    def _add_bytes(self, piece: bytes) -> None:
        if not self._is_parsed:
            self._body.append(piece)

    def _end_body(self, error: Exception | None) -> None:
        if self._is_parsed:
            return  # the stream of chunks is followed
        with guard(self._call.errors):
            if error is None:
                try:
                    self._add_body(b"".join(self._body))
                except Exception as failure:
                    self._call.add_interruption(None, failure)
                    raise
            else:
                self._add_events()
                self._call.add_interruption(self._said(self._parts.document), error)

    def _leave_body(self, response: Any) -> None:
        if self._is_parsed:
            return
        with guard(self._call.errors):
            if not self._body and getattr(response, "is_stream_consumed", False):
                self._call.add_interruption(None, ContractError("answer", UNREADABLE))
                return
            self._add_events()
        self._leave()

    def _add_events(self) -> None:
        for event in _events(b"".join(self._body).decode("utf-8", "replace")):
            self._parts.add_chunk(event)
        self._body = []


async def in_thread(work: Callable[..., None], *args: Any) -> None:
    """Runs ``work`` in a thread, since a final answer is written to disk. Shielded: it is recorded even if
    the caller is cancelled meanwhile. Without asyncio it runs here."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None:
        work(*args)
    else:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(work, *args)))


def is_on_its_way(answer: Any) -> bool:
    """Returns whether the caller has yet to read the answer."""
    response = getattr(answer, "http_response", answer)
    return _is_stream(answer) or (hasattr(response, "iter_bytes") and _body_of(response) is None)


def _is_stream(answer: Any) -> bool:
    return hasattr(answer, "_iterator") and (hasattr(answer, "__next__") or hasattr(answer, "__aiter__"))


def _document(answer: Any) -> Mapping[str, Any]:
    if isinstance(answer, Mapping):
        return answer
    if not hasattr(answer, "model_dump"):
        raise ContractError("answer", f"The answer is a {type(answer).__name__}, not a document.")
    return document_of(answer)


def _body_of(response: Any) -> bytes | None:
    """Returns the body of a response of the HTTP client; None if it was not received yet."""
    try:
        body = response.content
    except Exception:  # each HTTP client has its own error
        return None
    return body if isinstance(body, bytes) else None


def _is_async(response: Any) -> bool:
    stream = getattr(response, "stream", None)
    return hasattr(stream, "__aiter__") and not hasattr(stream, "__iter__")


def _events(text: str) -> Iterator[Mapping[str, Any]]:
    """Yields the documents of server-sent events. A document that is not whole is left out."""
    for line in text.splitlines():
        if line.startswith("data:"):
            try:
                document = json.loads(line[5:])
            except ValueError:
                continue
            if isinstance(document, Mapping):
                yield document


Close = Callable[[], Any]


def _closing(by_client: Callable[[], bool], leave: Callable[[], None]) -> Callable[[Close], Close]:
    """Returns an extension of ``close``: it calls ``leave`` first, unless the client itself closes."""

    def extend(original: Close) -> Close:
        def close() -> Any:
            if not by_client():
                leave()
            return original()

        return close

    return extend


def _closing_async(by_client: Callable[[], bool], leave: Callable[[], None]) -> Callable[[Close], Close]:
    """Returns an extension of ``aclose``, as ``_closing`` does of ``close``."""

    def extend(original: Close) -> Close:
        async def aclose() -> Any:
            if not by_client():
                await in_thread(leave)
            return await original()

        return aclose

    return extend


def _extend(target: Any, name: str, extension: Callable[[Any], Any]) -> None:
    original = getattr(target, name, None)
    if callable(original):
        setattr(target, name, extension(original))
