"""``wrap_openai``: records every task of an agent, with a change of one line in its code.

The package ``openai`` is not imported here: a caller who has a client has it.

Invariants: the caller gets the client's own objects, streams included, and its own exceptions. Errors in
recording are logged and not raised.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from onward.capture.clients.matching import Call, Chats, Errors, guard
from onward.capture.conversations.assembly import Assembly
from onward.errors import ConfigError
from onward.ids import check_id, is_id
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.capture.recorder import Recorder

C = TypeVar("C")
SESSION_HEADER = "Onward-Session"
CAPTURE_HEADER = "Onward-Capture"
"""Signals to our gateway that the client records already; any other server ignores it."""
ATTRIBUTE = "onward"
_log = logs.get("recorder")


def wrap_openai(
    client: C,
    recorder: Recorder,
    *,
    session_id: str | None = None,
    idle_seconds: float = 600.0,
    errors: Errors = "log",
    **described: Any,
) -> C:
    """Returns ``client`` (``OpenAI`` or ``AsyncOpenAI``), which from now on records its calls.

    One trajectory for each task: from the first request over all tool calls to the answer that calls no tool.
    Without such an answer it ends after ``idle_seconds`` of silence, or when the client or the recorder is
    closed. Session: header ``Onward-Session``, else one for each ``user``, else ``session_id``, else one for
    each conversation. The ``user`` itself is not stored; with a ``user_key`` the recorder stores its hash.
    Within ``with recorder.task(…)`` the calls are turns of that task. ``described`` (``domain``,
    ``task_type``, ``metadata`` …) goes to ``Recorder.task``. With ``errors="raise"`` the agent sees errors of
    recording. Requests get two headers for our gateway: ``Onward-Capture: off``, so that it does not record
    them again, and, unless they have one of their own, ``Onward-Session``, so that both use the same session.

    Raises ConfigError for an object without ``chat.completions.create``, ContractError for a bad session.
    """
    if getattr(client, ATTRIBUTE, None) is not None:
        return client
    if session_id is not None:
        check_id(session_id, "session_id")
    chats = Chats(
        recorder,
        source="openai_client",
        idle_seconds=idle_seconds,
        errors=errors,
        session_id=session_id,
        **described,
    )
    return _wrapped(client, chats)


def _wrapped(client: C, chats: Chats) -> C:
    completions = getattr(getattr(client, "chat", None), "completions", None)
    if not callable(getattr(completions, "create", None)):
        raise ConfigError(
            f"A {type(client).__name__} has no chat.completions.create: give an OpenAI or AsyncOpenAI client."
        )
    target: Any = client
    for name in ("create", "parse"):
        if callable(getattr(completions, name, None)):
            setattr(completions, name, _recorded(getattr(completions, name), target, chats))
    for name in ("copy", "with_options"):
        if callable(getattr(target, name, None)):
            setattr(target, name, _copied(getattr(target, name), chats))
    if callable(getattr(target, "close", None)):
        target.close = _closing(target.close, chats)
    setattr(target, ATTRIBUTE, chats)
    return client


def _recorded(original: Callable[..., Any], client: Any, chats: Chats) -> Callable[..., Any]:
    """Wraps ``original`` and records its input and output."""

    @functools.wraps(original)
    def create(*args: Any, **given: Any) -> Any:
        if not isinstance(given.get("messages"), (list, tuple, type(None))):
            given["messages"] = list(given["messages"])  # an iterator can be read once
        call = _begin(client, chats, given)
        if call is not None:
            ours = {CAPTURE_HEADER: "off"}
            if _session(client, given) is None and is_id(call.session_id):
                ours[SESSION_HEADER] = call.session_id
            given["extra_headers"] = {**ours, **(given.get("extra_headers") or {})}
        try:
            result = original(*args, **given)
        except BaseException as error:
            if call is not None:
                call.add_interruption(None, error)
            raise
        if call is None:
            return result
        if inspect.isawaitable(result):
            return _awaited(result, call, chats)
        return _taken(result, call, chats)

    return create


def _begin(client: Any, chats: Chats, given: Mapping[str, Any]) -> Call | None:
    with guard(chats.errors):
        messages = [_message(message) for message in given.get("messages") or ()]
        tools = given.get("tools")
        user = given.get("user")
        return chats.begin(
            messages,
            tools if isinstance(tools, (list, tuple)) else None,
            _session(client, given),
            user if isinstance(user, str) and user else None,
        )
    return None


async def _awaited(result: Awaitable[Any], call: Call, chats: Chats) -> Any:
    import asyncio

    try:
        answer = await result
    except BaseException as error:
        call.add_interruption(None, error)
        raise
    if hasattr(answer, "__aiter__"):
        return _taken(answer, call, chats)
    with guard(chats.errors):
        # In a thread: a final answer is written to disk. Shielded, so that it is written in any case.
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(_take, answer, call)))
    return answer


def _taken(answer: Any, call: Call, chats: Chats) -> Any:
    with guard(chats.errors):
        iterator = getattr(answer, "_iterator", None)
        if hasattr(answer, "__aiter__") and iterator is not None:
            answer._iterator = _watch_async(iterator, call)
        elif hasattr(answer, "__next__") and iterator is not None:
            answer._iterator = _watch(iterator, call)
        else:
            _take(answer, call)
    return answer


def _take(answer: Any, call: Call) -> None:
    """Records a completion, or the raw response of one, which caches its parsed form."""
    if not hasattr(answer, "choices") and hasattr(answer, "http_response") and callable(answer.parse):
        answer = answer.parse()
    if hasattr(answer, "choices"):
        call.add_answer(answer)
    else:
        call.add_interruption(None, None)
        _log.warning("an answer of this form is not recorded", form=type(answer).__name__)


def _watch(chunks: Iterator[Any], call: Call) -> Iterator[Any]:
    parts = Assembly()
    call.so_far = parts.completion
    try:
        for chunk in chunks:
            with guard("log"):
                parts.add_chunk(chunk)
            yield chunk
    except BaseException as error:
        call.add_interruption(parts.completion(), None if isinstance(error, GeneratorExit) else error)
        raise
    call.add_answer(parts.completion())


async def _watch_async(chunks: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
    import asyncio

    parts = Assembly()
    call.so_far = parts.completion
    try:
        async for chunk in chunks:
            with guard("log"):
                parts.add_chunk(chunk)
            yield chunk
    except BaseException as error:
        call.add_interruption(parts.completion(), None if isinstance(error, GeneratorExit) else error)
        raise
    await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(call.add_answer, parts.completion())))


def _copied(original: Callable[..., Any], chats: Chats) -> Callable[..., Any]:
    @functools.wraps(original)
    def copy(*args: Any, **given: Any) -> Any:
        return _wrapped(original(*args, **given), chats)

    return copy


def _closing(original: Callable[..., Any], chats: Chats) -> Callable[..., Any]:
    @functools.wraps(original)
    def close(*args: Any, **given: Any) -> Any:
        with guard(chats.errors):
            chats.close()
        return original(*args, **given)

    return close


def _message(message: Any) -> Mapping[str, Any]:
    return message if isinstance(message, Mapping) else message.model_dump(mode="json", exclude_none=True)


def _session(client: Any, given: Mapping[str, Any]) -> str | None:
    """Returns the value of the caller's own session header."""
    for headers in (given.get("extra_headers"), getattr(client, "_custom_headers", None)):
        for name, value in (headers or {}).items():
            if name.lower() == SESSION_HEADER.lower() and isinstance(value, str) and value:
                return value
    return None
