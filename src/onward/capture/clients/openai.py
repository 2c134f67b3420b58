"""``wrap_openai``: records every task of an agent, with a change of one line in its code.

The package ``openai`` is not imported here: a caller who has a client has it.

Invariants: the caller gets the client's own objects, streams included, and its own exceptions. Errors in
recording are logged and not raised.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from onward.capture.clients.apis import api_of, late_id, not_recorded
from onward.capture.clients.calls import Call, Errors, guard
from onward.capture.clients.matching import Chats
from onward.capture.clients.watching import Watch, in_thread, is_on_its_way
from onward.errors import ConfigError
from onward.ids import check_id, is_id

if TYPE_CHECKING:
    from onward.capture.recorder import Recorder

C = TypeVar("C")
SESSION_HEADER = "Onward-Session"
CAPTURE_HEADER = "Onward-Capture"
"""Signals to our gateway that the client records already; any other server ignores it."""
ATTRIBUTE = "onward"
CHAT_PATH = "/chat/completions"


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
    target: Any = client
    if not callable(getattr(completions, "create", None)):
        raise ConfigError(
            f"A {type(client).__name__} has no chat.completions.create: give an OpenAI or AsyncOpenAI client."
        )
    if callable(getattr(target, "post", None)):
        target.post = _recorded_post(target.post, target, chats)
        target.get = _recorded_get(target.get, chats)
        for resource in _resources(target, target):
            resource._post, resource._get = target.post, target.get
    else:  # a client of another make
        for name in ("create", "parse"):
            if callable(getattr(completions, name, None)):
                setattr(completions, name, _recorded_method(getattr(completions, name), target, chats))
    for name in ("copy", "with_options"):
        if callable(getattr(target, name, None)):
            setattr(target, name, _copied(getattr(target, name), chats))
    if callable(getattr(target, "_prepare_options", None)):
        target._prepare_options = _reporting_sockets(target._prepare_options, chats)
    if callable(getattr(target, "close", None)):
        target.close = _closing(target.close, chats)
    setattr(target, ATTRIBUTE, chats)
    return client


def _resources(owner: Any, client: Any) -> Iterator[Any]:
    """Yields the parts of a client that exist already (``chat``, ``chat.completions`` …)."""
    for part in list(vars(owner).values()):
        if getattr(part, "_client", None) is client and hasattr(part, "_post"):
            yield part
            yield from _resources(part, client)


def _recorded_post(original: Callable[..., Any], client: Any, chats: Chats) -> Callable[..., Any]:
    """Wraps the client's ``post``, through which the requests of all its methods pass."""

    @functools.wraps(original)
    def post(path: str, *args: Any, **given: Any) -> Any:
        options = _fields(given.get("options"))
        body = {**_fields(given.get("body")), **_fields(options.get("extra_json"))}
        headers = _fields(options.get("headers"))
        call = _begin(client, chats, str(path), body, headers)
        if call is not None:
            given["options"] = {**options, "headers": {**_our_headers(call, client, headers), **headers}}
        # A cancelled background response is answered with what it became.
        watch = chats.late(late_id(str(path))) if call is None else _watch_of(call, str(path))
        return _watched(lambda: original(path, *args, **given), watch)

    return post


def _recorded_get(original: Callable[..., Any], chats: Chats) -> Callable[..., Any]:
    """Wraps the client's ``get``, by which it fetches the answer to a request in the background."""

    @functools.wraps(original)
    def get(path: str, *args: Any, **given: Any) -> Any:
        return _watched(lambda: original(path, *args, **given), chats.late(late_id(str(path))))

    return get


def _recorded_method(original: Callable[..., Any], client: Any, chats: Chats) -> Callable[..., Any]:
    """Wraps one method of a client without ``post``."""

    @functools.wraps(original)
    def create(*args: Any, **given: Any) -> Any:
        if not isinstance(given.get("messages"), (list, tuple, type(None))):
            given["messages"] = list(given["messages"])  # an iterator can be read once
        headers = _fields(given.get("extra_headers"))
        call = _begin(client, chats, CHAT_PATH, given, headers)
        if call is not None:
            given["extra_headers"] = {**_our_headers(call, client, headers), **headers}
        watch = None if call is None else _watch_of(call, CHAT_PATH)
        return _watched(lambda: original(*args, **given), watch)

    return create


def _begin(
    client: Any, chats: Chats, path: str, body: Mapping[str, Any], headers: Mapping[str, Any]
) -> Call | None:
    """Registers a request. Returns None for one that is not recorded."""
    with guard(chats.errors):
        api = api_of(path)
        if api is not None:
            user = body.get("user")
            return chats.begin(
                api.messages(body),
                api.tools(body),
                _session(client, headers),
                user if isinstance(user, str) and user else None,
                after=api.continued(body),
                near=_place(),
            )
        if (known := not_recorded(path)) is not None:
            chats.report(*known)
    return None


def _watch_of(call: Call, path: str) -> Watch | None:
    api = api_of(path)
    return None if api is None else Watch(call, api)


def _watched(request: Callable[[], Any], watch: Watch | None) -> Any:
    """Sends a request and records its answer. With an asynchronous client both happen when it is awaited."""
    if watch is None:
        return request()
    try:
        answer = request()
    except BaseException as error:
        watch.fail(error)
        raise
    if inspect.isawaitable(answer):
        return _awaited(answer, watch)
    watch.take(answer)
    return answer


async def _awaited(request: Awaitable[Any], watch: Watch) -> Any:
    try:
        answer = await request
    except BaseException as error:
        watch.fail(error)
        raise
    if is_on_its_way(answer):
        watch.take(answer)
    else:
        await in_thread(watch.take, answer)
    return answer


def _our_headers(call: Call, client: Any, headers: Mapping[str, Any]) -> dict[str, str]:
    """Returns the headers for our gateway."""
    ours = {CAPTURE_HEADER: "off"}
    if _session(client, headers) is None and is_id(call.session_id):
        ours[SESSION_HEADER] = call.session_id
    return ours


def _fields(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {}


def _place() -> tuple[Any, ...]:
    """Returns the thread and the coroutine that call."""
    try:
        coroutine = id(asyncio.current_task())
    except RuntimeError:
        coroutine = 0
    return threading.get_ident(), coroutine


def _reporting_sockets(original: Callable[..., Any], chats: Chats) -> Callable[..., Any]:
    """Reports a connection by WebSocket: its messages do not pass through ``post``."""

    @functools.wraps(original)
    def prepare(options: Any, *args: Any, **given: Any) -> Any:
        with guard(chats.errors):
            if str(getattr(options, "url", "")).startswith(("ws:", "wss:")):
                chats.report("connect", "its messages go through a WebSocket")
        return original(options, *args, **given)

    return prepare


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


def _session(client: Any, given: Mapping[str, Any]) -> str | None:
    """Returns the value of the caller's own session header."""
    for headers in (given, getattr(client, "_custom_headers", None)):
        for name, value in (headers if isinstance(headers, Mapping) else {}).items():
            if str(name).lower() == SESSION_HEADER.lower() and isinstance(value, str) and value:
                return value
    return None
